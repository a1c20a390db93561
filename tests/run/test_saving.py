"""What a run writes down: the folder of its recipe."""

import pytest

from tests.stages.tiny import tiny
from verizero.pipeline.config.load import dump
from verizero.pipeline.errors import RunError
from verizero.pipeline.run.saving import recipe_folder, recipe_of_run, write_origin


def test_a_recipes_folder_is_found_again_or_the_file_is_named(tmp_path):
    run, recipes = tmp_path / "run", tmp_path / "recipes"
    run.mkdir()
    recipes.mkdir()
    assert recipe_folder(run) is None
    write_origin(run, recipes)
    assert recipe_folder(run) == recipes.resolve()
    (run / "recipe.yaml").write_text(dump(tiny()))
    assert recipe_of_run(run, ["seed=7"]) == (tiny(overrides=["seed=7"]), recipes.resolve())
    recipes.rename(tmp_path / "elsewhere")
    with pytest.raises(RunError, match=f"came from {recipes}, which is not there any more; .* into {run}/origin.json"):
        recipe_folder(run)
    (run / "origin.json").write_text("{}")
    with pytest.raises(RunError, match=r"origin\.json cannot be read"):
        recipe_folder(run)
