"""The files that `verizero new verifier` writes work without a change."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stages.test_episodes import chat_folder
from verizero.pipeline.cli import main
from verizero.pipeline.commands.verifiers.audit import audit
from verizero.pipeline.commands.verifiers.check import check
from verizero.pipeline.commands.verifiers.labelled_rows import good_rows
from verizero.pipeline.commands.verifiers.scaffold import EVALUATION, new_verifier
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.data.prompts import load_prompts, read_demonstrations
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.scoring.score import bind_verifiers
from verizero.pipeline.types import Attempt


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("domain")
    written = new_verifier("my_domain", made)
    assert all(p.is_file() for p in written)
    assert {p.name for p in written} == {
        "my_domain.py",
        "test_my_domain.py",
        "my_domain_rows.jsonl",
        "my_domain_train.jsonl",
        "my_domain_evaluation.jsonl",
        "my_domain.yaml",
    }
    return made


@pytest.mark.integration
def test_its_own_tests_pass(folder: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder / "test_my_domain.py")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout
    assert "9 passed" in done.stdout


def test_it_is_fit_and_withstands_the_audit(folder: Path) -> None:
    report = check("my_domain", folder / "my_domain_rows.jsonl", base=folder)
    assert report.passed, str(report)
    found = audit(good_rows(folder / "my_domain_rows.jsonl"))
    assert found.passed, str(found)


def test_its_recipe_loads_and_its_data_is_graded_by_it(folder: Path) -> None:
    config = load_recipe(folder / "my_domain.yaml")
    train = load_prompts(config.data.train, config.seed, folder)
    held_out = load_prompts(config.data.evaluation, config.seed, folder)
    assert len(held_out) == EVALUATION
    assert not {p.question for p in train} & {p.question for p in held_out}
    bound = bind_verifiers([*train, *held_out], config.data.verifiers, folder)
    shown = read_demonstrations(config.data.demonstrations, config.data.train, config.seed, folder).prompts
    scores = [bound[p.verifier].score([Attempt(p.demonstration or "", p.reference)])[0].score for p in shown]
    assert 0.6 < sum(scores) / len(scores) < 0.8
    gold = [bound[p.verifier].score([Attempt("".join(sorted(p.reference)), p.reference)])[0] for p in held_out]
    assert all(v.is_correct for v in gold)


def test_the_characters_of_its_model_write_all_of_its_data(folder: Path) -> None:
    config = load_recipe(folder / "my_domain.yaml")
    assert config.model.create is not None
    rows = [json.loads(x) for x in (folder / "my_domain_train.jsonl").read_text().splitlines()]
    used = set("".join(r["question"] + r["demonstration"] for r in rows))
    assert used == set(config.model.create.characters)


@pytest.mark.parametrize("name", ["my-domain", "class", "2nd", "_hidden", "", "numeric"])
def test_a_name_that_cannot_be_one_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="verifier"):
        new_verifier(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("precious")
    with pytest.raises(ConfigError, match=r"mine.yaml is already there"):
        new_verifier("mine", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.yaml"]
    assert (tmp_path / "mine.yaml").read_text() == "precious"


def test_with_a_model_the_recipe_trains_that_one_and_asks_in_words(tmp_path: Path) -> None:
    path = chat_folder(tmp_path / "model", "merges_answers")
    assert main(["new", "verifier", "mine", "--folder", str(tmp_path), "--model", path]) == 0
    config = load_recipe(tmp_path / "mine.yaml")
    assert config.model.path == path
    assert config.model.create is None
    prompts = load_prompts(config.data.train, config.seed, tmp_path)
    assert all(p.question.startswith("Sort the letters of ") for p in prompts)
    bound = bind_verifiers(prompts, config.data.verifiers, tmp_path)
    gold = [bound[p.verifier].score([Attempt("".join(sorted(p.reference)), p.reference)])[0] for p in prompts[:5]]
    assert all(v.is_correct for v in gold)
    assert main(["new", "environment", "game", "--folder", str(tmp_path), "--model", path]) == 1
