"""What a run writes down: checkpoints on a full disk, the memory that they need, the folder of its recipe."""

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.stages.sessions import session_of
from tests.stages.tiny import tiny
from verizero.pipeline.config.load import dump
from verizero.pipeline.errors import RunError
from verizero.pipeline.report.ended import ended_by
from verizero.pipeline.run.choose_checkpoint import newest_whole
from verizero.pipeline.run.saving import recipe_folder, recipe_of_run, save, write_origin


def test_a_full_disk_ends_the_run_and_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with session_of(tmp_path) as session:
        save(session)

        def full(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(torch, "save", full)
        with pytest.raises(RunError, match="the disk is full; free space and start the same command again") as caught:
            save(session)
        assert ended_by(caught.value, "").reason == "disk_full"
        monkeypatch.undo()
        path, refused = newest_whole(session.run.folder / "checkpoints")
        assert path is not None
        assert path.name == "00000000"
        assert not refused
        save(session)
        assert newest_whole(session.run.folder / "checkpoints")[0] == path.parent / "00000001"


def test_a_recipes_folder_is_found_again_or_the_file_is_named(tmp_path: Path) -> None:
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
