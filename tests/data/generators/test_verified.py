"""The built-in domains against their own verifiers: right demonstrations earn the reward, wrong ones none."""

import pytest

from verizero.pipeline.data.generators.base import Row, generate
from verizero.pipeline.types import Attempt
from verizero.verifiers.base import load

FORMS = {"arithmetic": ["+", "-"], "induction": ["linear", "minus", "shifted"]}


def _grade(rows: list[Row]) -> list[bool]:
    attempts = [Attempt(r["demonstration"], r["answer"], r["question"]) for r in rows]
    verdicts = load(rows[0]["verifier"]).bind().score(attempts)
    assert {v.status for v in verdicts} == {"graded"}
    return [v.is_correct for v in verdicts]


def _is_right(row: Row) -> bool:
    said = row["demonstration"].partition("</think>")[2]
    if row["verifier"] == "math":
        return bool(said == f"\\boxed{{{row['answer']}}}")
    scope: dict = {}
    exec(said, scope)
    return all(scope["f"](*t["args"]) == t["expected"] for t in row["answer"]["tests"])


@pytest.mark.run
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_the_verifier_agrees_with_the_generator(name, noise):
    params = {"forms": FORMS[name], "noise": noise, "num_train": 60, "num_demonstrations": 60}
    rows = generate(name, params, 0).demonstrations
    expected = [_is_right(r) for r in rows]
    assert _grade(rows) == expected
    assert all(expected) if noise == 0 else 5 < sum(expected) < 55
