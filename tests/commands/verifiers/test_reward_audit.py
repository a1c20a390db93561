"""The audit of reward functions in the forms of several trainers."""

import json

import pytest

from verizero.pipeline.cli import main
from verizero.pipeline.commands.verifiers.reward_audit import audit_reward
from verizero.pipeline.errors import DataError

FUNCTIONS = r"""
import re

def boxed(completions, answer, **kwargs):          # TRL
    found = [re.findall(r"\\(?:boxed|fbox)\{\s*(.+?)\s*\}", c.split("</think>")[-1]) for c in completions]
    return [float(bool(f) and f[-1] == a) for f, a in zip(found, answer)]

def constant(completions, **kwargs):
    return [1.0 for _ in completions]

def fails(completions, answer, **kwargs):
    return [float(int(c) == int(a)) for c, a in zip(completions, answer)]

def inside(data_source, solution_str, ground_truth, extra_info=None):   # verl
    return float(ground_truth in solution_str)

def refuses(queries, prompts, labels):             # OpenRLHF
    return [float(q.endswith("Answer: " + a)) for q, a in zip(queries, labels)]

def sometimes(completion, answer):
    if completion.startswith("I") or "<" in completion and int(answer) % 2:
        raise OSError("the service is down")
    return float(answer in completion)

def waits(completion, answer):
    while True:
        pass
"""


@pytest.fixture
def data(tmp_path):
    (tmp_path / "rewards.py").write_text(FUNCTIONS)
    rows = [{"prompt": f"{n}+{n * 7}=", "answer": str(n * 8)} for n in range(11, 17)]
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.run
@pytest.mark.parametrize(
    ("function", "problem", "hole"),
    [
        ("boxed", "", ""),
        ("constant", "every call gives 1, to right and wrong answers", "nothing"),
        ("fails", "calls fail: ValueError: invalid literal for int()", ""),
        ("inside", "", "many boxes"),
        ("refuses", "every call gives 0, to right and wrong answers", ""),
        ("waits", "a call does not end within 5 seconds", ""),
    ],
)
def test_what_is_wrong_with_a_reward_function_is_found(function, problem, hole, data):
    report = audit_reward(f"rewards.py:{function}", data, data.parent)
    assert len(report.problems) == bool(problem)
    assert not problem or problem in report.problems[0]
    assert not hole or hole in {case.what for case in report.holes.cases["rewarded"]}
    assert report.passed is (function == "boxed"), str(report)


@pytest.mark.run
def test_a_call_that_fails_is_no_zero(data):
    """Three of six answers are odd: in tags their calls fail, and in two other forms all calls do."""
    rows = [{"prompt": "", "answer": str(n)} for n in range(31, 37)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = audit_reward("rewards.py:sometimes", data, data.parent)
    right, wrong = report.rewards["in tags"]
    assert (right.value, right.num_graded, right.num_calls) == (1.0, 3, 6)
    assert (wrong.value, wrong.num_graded) == (0.0, 3)
    assert [mean.value for mean in report.rewards["in a box"]] == [None, None]
    assert "in tags                 1.00 (3 of 6)  0.00 (3 of 6)" in str(report)
    assert "in a box                - (0 of 6)     - (0 of 6)" in str(report)
    assert report.problems[0].startswith("30 of 60 calls fail: OSError: the service is down")
    assert len(report.problems) == 1


def test_rows_without_an_answer_are_refused(data, capsys):
    data.write_text('{"prompt": "1+1="}\n')
    with pytest.raises(DataError, match=r"row 1 has none of the columns answer,"):
        audit_reward("rewards.py:boxed", data, data.parent)
    assert main(["audit", "--reward", f"{data.parent}/rewards.py:boxed", str(data)]) == 1
    assert "row 1 has none" in capsys.readouterr().err
