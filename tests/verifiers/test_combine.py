"""Several verifiers as one."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.stages.tiny import TREE
from verizero.pipeline.commands.verifiers.labelled_rows import Defaults, good_rows
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.scoring.score import bind_components, bind_verifiers
from verizero.pipeline.types import Attempt, Prompt, Verdict
from verizero.verifiers.combine import combine

ASKED = """
from pathlib import Path
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.base import VerifierParams, verifier


class Says(VerifierParams):
    status: str = "graded"
    score: float = 1.0
    tag: str = ""

@verifier
def says(attempt: Attempt, params: Says) -> Verdict:
    with Path(__file__).with_name("asked").open("a") as asked:
        asked.write(f"{params.tag} {attempt.response} ")
    return Verdict(params.status, params.score, params.tag, attempt.reference and str(attempt.reference))
"""


@pytest.fixture
def says(tmp_path: Path) -> str:
    (tmp_path / "says.py").write_text(ASKED)
    return f"{tmp_path / 'says.py'}:says"


def part(path: str, score: float = 1.0, status: str = "graded", **more: Any) -> dict[str, Any]:
    return {"path": path, "params": {"score": score, "status": status, "tag": more.pop("tag", "x")}, **more}


def one(parts: Sequence[dict[str, Any]]) -> Verdict:
    return combine.bind({"parts": list(parts)}).score([Attempt("r", None)])[0]


def test_weights_make_a_mean(says: str) -> None:
    said = one([part(says, 1.0, weight=3), part(says, 0.5, weight=1), part(says, 0.0, weight=1)])
    assert said.score == pytest.approx((3 * 1.0 + 0.5) / 5)


def test_one_part_without_an_answer_leaves_the_whole_without(says: str) -> None:
    said = one([part(says), part(says, status="no_answer")])
    assert (said.status, said.score) == ("no_answer", 0.0)
    assert one([part(says), part(says, status="timeout")]).score == 0.5
    assert one([part(says, status="no_answer"), part(says, status="no_answer")]).status == "no_answer"
    assert one([part(says, status="timeout")]).status == "timeout"


def test_infrastructure_is_never_averaged_away(says: str) -> None:
    for broken in ("verifier_error", "sandbox_error"):
        assert one([part(says), part(says, status=broken)]).status == broken
        assert one([part(says, status=broken, gate=True), part(says)]).status == broken
        assert one([part(says), part(says, status=broken, weight=0)]).score == 1.0


def test_a_closed_gate_ends_it_and_nothing_behind_it_runs(says: str) -> None:
    said = combine.bind({"parts": [part(says, tag="main"), part(says, 0.9, gate=True, tag="gate")]}).score(
        [Attempt("r1", None)]
    )[0]
    assert (said.status, said.score) == ("graded", 0.0)
    assert "gate" in said.reason
    assert Path(says).with_name("asked").read_text() == "gate r1 "
    assert one([part(says, gate=True), part(says, 0.3)]).score == pytest.approx(0.3)


def test_parts_get_their_own_reference(says: str) -> None:
    parts = [
        {"name": "exact", "reference": "answer", "gate": True},
        {"name": "instructions", "reference": "rules"},
    ]
    rules = {"answer": "blue", "rules": [{"type": "case", "case": "lower"}]}
    bound = combine.bind({"parts": parts})
    assert [v.score for v in bound.score([Attempt("blue", rules), Attempt("Blue", rules), Attempt("red", rules)])] == [
        1,
        0,
        0,
    ]
    assert bound.score([Attempt("blue", {"answer": "blue"})])[0].status == "verifier_error"


def test_it_nests_and_mixes_with_real_verifiers() -> None:
    inner = {"name": "combine", "params": {"parts": [{"name": "numeric"}, {"name": "exact"}]}}
    bound = combine.bind({"parts": [inner, {"name": "format", "gate": True}]})
    right, bare = "<think>x</think><answer>42</answer>", r"\boxed{42}"
    assert [v.score for v in bound.score([Attempt(right, "42"), Attempt(bare, "42")])] == [1.0, 0.0]


def test_order_is_kept_over_a_batch() -> None:
    bound = combine.bind({"parts": [{"name": "numeric"}, {"name": "length", "params": {"max_length": 9, "buffer": 0}}]})
    answers = ["1", "2", "", "1" * 20]
    said = bound.score([Attempt(a, "1") for a in answers])
    assert [v.score for v in said] == [1.0, 0.5, 0.0, 0.0]


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"parts": []}, "parts"),
        ({"parts": [{"name": "exat"}]}, "exat"),
        ({"parts": [{"name": "exact", "params": {"wher": "answer"}}]}, "wher"),
        ({"parts": [{"name": "exact", "gate": True}]}, "gate"),
        ({"parts": [{"name": "exact", "weight": 0}]}, "weight"),
        ({"parts": [{"name": "exact", "weight": -1}]}, "weight"),
        ({"parts": [{}]}, "name.*path"),
        ({"parts": [{"name": "exact"}], "mode": "all_of"}, "mode"),
    ],
)
def test_bad_parameters_are_named_when_bound(params: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        combine.bind(params)


LOUD = """from verizero.verifiers.base import verifier

@verifier
def loud(attempt):
    return attempt.response.endswith('{}')
"""
PART = {"path": "checks/loud.py:loud"}
NESTED = {"name": "combine", "params": {"parts": [PART]}}
ATTEMPTS = [Attempt("yes!", None), Attempt("yes", None)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with recipe and check; the working folder has another check of the same name."""
    for place, sign in (("mine", "!"), ("elsewhere", "?")):
        (tmp_path / place / "checks").mkdir(parents=True)
        (tmp_path / place / "checks" / "loud.py").write_text(LOUD.format(sign))
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "mine"


def scores(bound: Any) -> list[float]:
    return [v.score for v in bound.score(ATTEMPTS)]


@pytest.mark.parametrize("params", [{"parts": [PART]}, {"parts": [NESTED]}, {"parts": [{**PART, "gate": True}, PART]}])
def test_a_part_is_taken_from_the_base_at_any_depth(folder: Path, params: dict[str, Any]) -> None:
    assert scores(combine.bind(params, folder)) == [1, 0]
    assert scores(combine.bind(params)) == [0, 0], "without one, from the working folder"
    (folder / "checks" / "loud.py").unlink()
    with pytest.raises(ConfigError, match=r"mine/checks/loud\.py"):
        combine.bind(params, folder)


def test_a_recipe_is_read_from_any_folder(folder: Path) -> None:
    tree = copy.deepcopy(TREE)
    rows = [{"id": "a", "question": "?", "answer": "x"}]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tree["data"]["train"] = [{"file": "rows.jsonl", "verifier": NESTED}]
    tree["scoring"] = {"components": [{"verifier": NESTED}]}
    (folder / "mine.yaml").write_text(yaml.safe_dump(tree))
    config = load_recipe(folder / "mine.yaml")
    choice = config.data.train[0].verifier
    assert not isinstance(choice, str | None)
    (bound,) = bind_verifiers([Prompt("a", "?", choice.key, "x")], {choice.key: choice}, folder).values()
    assert scores(bound) == [1, 0]
    assert scores(bind_components(config.scoring, folder)[0]) == [1, 0]
    (folder / "checks" / "loud.py").unlink()
    with pytest.raises(ConfigError, match=r"mine\.yaml: .*mine/checks/loud\.py"):
        load_recipe(folder / "mine.yaml")


def test_rows_find_parts_in_the_base_and_then_beside_themselves(folder: Path) -> None:
    row = {"verifier": NESTED, "reference": "x", "response": "yes!"}
    (folder / "rows.jsonl").write_text(json.dumps(row))

    def score_of(base: Path) -> float:
        (read,) = good_rows(folder / "rows.jsonl", Defaults(base=base))
        return read.verifier.score([read.attempt()])[0].score

    assert score_of(folder.parent / "elsewhere") == 0.0
    assert score_of(folder.parent) == 1.0, "there is none in the base"
    (folder / "checks" / "loud.py").unlink()
    with pytest.raises(DataError, match=r"checks/loud\.py"):
        score_of(folder.parent)
