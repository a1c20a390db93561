"""The recipes of docs/adapters.md: one for each adapter, which load and name what is there."""

import re

import pytest

from tests.source import ROOT
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.data.prompts import read_prompts
from verizero.pipeline.errors import DataError
from verizero.pipeline.run.episodes import bind_environments

PAGE = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```(?:yaml|json) (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
ENVIRONMENTS = ("openenv", "verifiers_package")


@pytest.fixture
def folder(tmp_path):
    """The page's files, and an interpreter where the page has a virtual environment."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    python = tmp_path / "library" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    return tmp_path


def test_the_page_has_a_recipe_for_each_adapter():
    table = re.findall(r"^\| [^|]+ \| ((?:generator|environment) [^|]+) \|", PAGE, re.MULTILINE)
    adapters = {name for cell in table for name in re.findall(r"(?:generator|environment) `(\w+)`", cell)}
    assert adapters == {"reasoning_gym", *ENVIRONMENTS}
    assert {name.removesuffix(".yaml") for name in FILES if name.endswith(".yaml")} == {"base", *adapters}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_recipe_of_an_environment_loads_and_its_parameters_are_those_of_the_adapter(name, folder):
    config = load_recipe(folder / f"{name}.yaml")
    prompts, _ = read_prompts(config.data.train, config.seed, folder)
    (choice,) = config.data.environments.values()
    assert (choice.name, len(prompts)) == (name, 1)
    (bound,) = bind_environments(prompts, config.data.environments, folder).values()
    assert bound.name == name
    text = FILES[f"{name}.yaml"].replace("params: {", "params: {speed: 9, ", 1)
    (folder / "other.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(Exception, match="speed"):
        bind_environments(prompts, load_recipe(folder / "other.yaml").data.environments, folder)


def test_without_its_virtual_environment_a_recipe_is_refused_with_the_row(folder):
    config = load_recipe(folder / "verifiers_package.yaml")
    prompts, _ = read_prompts(config.data.train, config.seed, folder)
    with pytest.raises(DataError, match=r"row '\w+/1': .*no interpreter at .*python -m venv"):
        bind_environments(prompts, config.data.environments, folder / "nowhere")


@pytest.mark.run
def test_the_recipe_of_a_generator_makes_rows_that_its_verifier_grades(folder):
    pytest.importorskip("reasoning_gym")
    text = FILES["reasoning_gym.yaml"].replace("num_train: 2000", "num_train: 6").replace(": 200\n", ": 2\n")
    (folder / "reasoning_gym.yaml").write_text(text, encoding="utf-8")
    config = load_recipe(folder / "reasoning_gym.yaml")
    prompts, _ = read_prompts(config.data.train, config.seed, folder)
    assert [p.verifier for p in prompts] == ["reasoning_gym"] * 6
