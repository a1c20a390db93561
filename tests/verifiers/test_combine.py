"""Several verifiers as one."""

import copy
import json

import pytest
import yaml

from tests.stages.tiny import TREE
from verizero.pipeline.commands.verifiers.labelled_rows import Defaults, good_rows
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.scoring.score import bind_components, bind_verifiers
from verizero.pipeline.types import Attempt, Prompt
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


GATE, LOST, LATE = {"gate": True}, {"status": "no_answer"}, {"status": "timeout"}
VERDICTS = [
    ([{"weight": 3}, {"score": 0.5}, {"score": 0.0}], "graded", 0.7),
    ([{}, LOST], "no_answer", 0.0),
    ([LOST, LOST], "no_answer", 0.0),
    ([{}, LATE], "graded", 0.5),
    ([LATE], "timeout", 0.0),
    ([{}, {"status": "verifier_error"}], "verifier_error", 0.0),
    ([{}, {"status": "sandbox_error"}], "sandbox_error", 0.0),
    ([GATE | {"status": "verifier_error"}, {}], "verifier_error", 0.0),
    ([GATE | {"status": "sandbox_error"}, {}], "sandbox_error", 0.0),
    ([{}, {"status": "verifier_error", "weight": 0}], "graded", 1.0),
    ([GATE, {"score": 0.3}], "graded", 0.3),
    ([{"tag": "main"}, GATE | {"score": 0.9, "tag": "gate"}], "graded", 0.0),
]
"""Parts, and the verdict that they make: infrastructure is never averaged away."""


def test_parts_make_one_verdict(tmp_path):
    (tmp_path / "says.py").write_text(ASKED)
    for parts, status, score in VERDICTS:
        named = []
        for part in parts:
            params = {name: part[name] for name in ("status", "score", "tag") if name in part}
            rest = {name: part[name] for name in ("gate", "weight") if name in part}
            named.append({"path": f"{tmp_path / 'says.py'}:says", "params": params, **rest})
        (tmp_path / "asked").unlink(missing_ok=True)
        verdict = combine.bind({"parts": named}).score([Attempt("r", None)])[0]
        assert (verdict.status, verdict.score) == (status, pytest.approx(score)), parts
    assert "gate" in verdict.reason
    assert (tmp_path / "asked").read_text() == "gate r ", "nothing behind a closed gate runs"


def test_parts_get_their_own_reference():
    parts = [
        {"name": "exact", "reference": "answer", "gate": True},
        {"name": "instructions", "reference": "rules"},
    ]
    rules = {"answer": "blue", "rules": [{"type": "case", "case": "lower"}]}
    bound = combine.bind({"parts": parts})
    assert [v.score for v in bound.score([Attempt(said, rules) for said in ("blue", "Blue", "red")])] == [1, 0, 0]
    assert bound.score([Attempt("blue", {"answer": "blue"})])[0].status == "verifier_error"


def test_it_nests_and_mixes_with_real_verifiers():
    inner = {"name": "combine", "params": {"parts": [{"name": "numeric"}, {"name": "exact"}]}}
    bound = combine.bind({"parts": [inner, {"name": "format", "gate": True}]})
    right, bare = "<think>x</think><answer>42</answer>", r"\boxed{42}"
    assert [v.score for v in bound.score([Attempt(right, "42"), Attempt(bare, "42")])] == [1.0, 0.0]


def test_order_is_kept_over_a_batch():
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
def test_bad_parameters_are_named_when_bound(params, named):
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
def folder(tmp_path, monkeypatch):
    """A folder with recipe and check; the working folder has another check of the same name."""
    for place, sign in (("mine", "!"), ("elsewhere", "?")):
        (tmp_path / place / "checks").mkdir(parents=True)
        (tmp_path / place / "checks" / "loud.py").write_text(LOUD.format(sign))
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "mine"


def scores(bound):
    return [v.score for v in bound.score(ATTEMPTS)]


@pytest.mark.parametrize("params", [{"parts": [PART]}, {"parts": [NESTED]}, {"parts": [{**PART, "gate": True}, PART]}])
def test_a_part_is_taken_from_the_base_at_any_depth(folder, params):
    assert scores(combine.bind(params, folder)) == [1, 0]
    assert scores(combine.bind(params)) == [0, 0], "without one, from the working folder"
    (folder / "checks" / "loud.py").unlink()
    with pytest.raises(ConfigError, match=r"mine/checks/loud\.py"):
        combine.bind(params, folder)


def test_a_recipe_is_read_from_any_folder(folder):
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


def test_rows_find_parts_in_the_base_and_then_beside_themselves(folder):
    row = {"verifier": NESTED, "reference": "x", "response": "yes!"}
    (folder / "rows.jsonl").write_text(json.dumps(row))

    def score_of(base):
        (read,) = good_rows(folder / "rows.jsonl", Defaults(base=base))
        return read.verifier.score([read.attempt()])[0].score

    assert score_of(folder.parent / "elsewhere") == 0.0
    assert score_of(folder.parent) == 1.0, "there is none in the base"
    (folder / "checks" / "loud.py").unlink()
    with pytest.raises(DataError, match=r"checks/loud\.py"):
        score_of(folder.parent)
