"""A kind of stage from outside: the module of the tutorial, named by an entry point of another distribution."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.source import ROOT
from tests.stages.broken import goes_on_as_if_never_broken, run
from tests.stages.tiny import tiny
from tests.test_documents import block
from verizero.pipeline.api.trained import with_more_steps
from verizero.pipeline.checks.run_facts import read
from verizero.pipeline.config.load import dump, only_stages, parse
from verizero.pipeline.config.run import RunConfig, section_class_of
from verizero.pipeline.config.stages import StageSection
from verizero.pipeline.errors import ConfigError, RunError
from verizero.pipeline.report.page import build_page
from verizero.pipeline.report.row_types import StepRow
from verizero.pipeline.report.run_files import read_metrics, read_run
from verizero.pipeline.report.summary import build_summary

PAGE = (ROOT / "docs" / "stages.md").read_text(encoding="utf-8")
RECIPE: dict[str, Any] = {
    "stages": ["sft", "questions"],
    "rl": None,
    "questions": {"steps": 60, "optimizer": {"learning_rate": 1e-2}},
}
Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """A function that makes a module a distribution with one entry point."""
    folder = tmp_path / "site"
    made: list[str] = []

    def put(name: str, source: str) -> None:
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (folder / f"my_{name}.py").write_text(source, encoding="utf-8")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[verizero.stages]\n{name} = my_{name}\n")
        monkeypatch.syspath_prepend(folder)
        made.append(f"my_{name}")

    yield put
    for module in made:
        sys.modules.pop(module, None)


@pytest.fixture
def questions(install: Install) -> None:
    install("questions", block(PAGE, "python", "stage"))


def refusal(changes: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        tiny({**RECIPE, **changes})
    return str(caught.value)


def steps_of(folder: Path) -> list[StepRow]:
    return [r for r in read_metrics(folder) if isinstance(r, StepRow) and r.stage_kind == "questions"]


@pytest.mark.usefixtures("questions")
def test_its_section_is_part_of_the_recipe() -> None:
    more = {"name": "more", "kind": "questions", "with": {"steps": 5}}
    config = tiny({**RECIPE, "stages": ["sft", "questions", more]})
    sections = config.sections_of(section_class_of("questions"))
    assert {name: (s.steps, s.batch_size) for name, s in sections.items()} == {"questions": (60, 8), "more": (5, 8)}
    again = parse(yaml.safe_load(dump(config)))
    assert again == config
    assert only_stages(config, ["questions"]).stage_names == ("questions",)
    assert tiny({**RECIPE, "stages": [more], "questions": None}).stage_names == ("more",)
    assert "questions" not in yaml.safe_load(dump(tiny()))
    assert type(tiny()) is RunConfig


@pytest.mark.usefixtures("questions")
def test_it_has_more_steps() -> None:
    further = with_more_steps(tiny(RECIPE), 5, Path()).stages[-1]
    assert (further.name, further.kind, further.changes) == ("more_1", "questions", {"steps": 5})


@pytest.mark.usefixtures("questions")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"questions": {"steps": 60, "batchsize": 3}}, ["unknown key 'questions.batchsize'; did you mean batch_size?"]),
        ({"questions": {"steps": 0}}, ["questions.steps", "greater than or equal to 1", "got 0"]),
        ({"stages": ["question"], "questions": {"steps": 60}}, ["one of pretrain, sft", "questions", "got 'question'"]),
        ({"question": {"steps": 60}}, ["unknown key 'question'", "questions"]),
        ({"stages": [{"name": "questions", "kind": "sft"}]}, ["'questions' means a kind of its own"]),
    ],
)
def test_what_is_wrong_in_it_is_refused_with_the_remedy(changes: dict[str, Any], words: list[str]) -> None:
    said = refusal(changes)
    assert all(word in said for word in words), said


def test_a_kind_that_is_not_installed_is_refused() -> None:
    assert "unknown key 'questions'" in refusal({})
    assert section_class_of("questions") is StageSection


@pytest.mark.parametrize("source", ["x = 1\n", "class KIND:\n    section = dict\n"])
def test_a_module_that_is_no_kind_says_why(install: Install, source: str) -> None:
    install("questions", source)
    assert "the entry point 'questions' of verizero.stages must name a module with KIND" in refusal({})


@pytest.mark.run
@pytest.mark.usefixtures("questions")
def test_killed_in_it_a_run_ends_as_if_never_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verizero.pipeline.stages._epochs.CHUNK_STEPS", 12)
    short = ["sft.steps=6", "questions.steps=24", "questions.optimizer.learning_rate=0.02"]
    config = tiny(RECIPE, short)
    # The second phase is the stage's first chunk; the third break comes behind the checkpoint between its two chunks.
    goes_on_as_if_never_broken(config, tmp_path, [("train", 2), ("train", 2)])
    losses = [row.metrics["loss"] for row in steps_of(tmp_path / "broken")]
    assert len(losses) == 24
    assert losses[-1] < losses[0] / 2
    evaluated = [(e.stage, e.stage_kind) for e in read_run(tmp_path / "whole").evaluations]
    assert evaluated == [("base", None), ("sft", "sft"), ("questions", "questions")]
    assert "questions" in build_summary(tmp_path / "whole")["seconds"]
    build_page(tmp_path / "whole")
    assert "questions loss" in (tmp_path / "whole" / "report.html").read_text()
    assert len(read(tmp_path / "whole").imitation) == 30
    with pytest.raises(RunError, match=r"questions\.steps was 24, is 70; a stage that has begun keeps its length"):
        run(tiny(RECIPE, [*short, "questions.steps=70"]), tmp_path / "whole")
