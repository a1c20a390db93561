"""Verdicts with steps: what a verifier may return, what is refused, and the verifier whose steps are equations."""

import pytest

from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers._steps import split_steps
from verizero.verifiers.base import load, verifier
from verizero.verifiers.combine import combine
from verizero.verifiers.equations import equations
from verizero.verifiers.rewards import rewards

OWN = """
from verizero.verifiers.base import Attempt, Verdict, verifier


@verifier
def lines(attempt: Attempt) -> Verdict:
    steps = [(line, "+" in line) for line in attempt.response.splitlines()]
    return Verdict("graded", 0.5, steps=steps)
"""


def said(steps, response="a b\nc", status="graded"):
    @verifier
    def given(attempt):
        return Verdict(status, 0.5, steps=steps)

    return given.bind().score([Attempt(response, None)])[0]


def test_steps_are_pairs_of_a_text_and_any_number():
    assert said([["a", True], ("c", -3)]).steps == (("a", 1.0), ("c", -3.0))
    assert said((("a b\n", 0.5), ("c", 0)), status="no_answer").steps == ()


@pytest.mark.parametrize(
    ("text", "end", "pieces"),
    [
        ("a b\n\n c\n", "\n", ["a b\n\n", " c\n"]),
        ("<think>1 2</think>3", " |</think>", ["<think>1 ", "2</think>", "3"]),
        ("abc", "x*", ["a", "b", "c"]),
        ("abc", "\n", ["abc"]),
        ("\n\na", "\n", ["\n\n", "a"]),
        ("", "\n", []),
    ],
)
def test_a_text_is_divided_behind_each_match(text, end, pieces):
    assert split_steps(text, end) == pieces
    assert "".join(pieces) == text


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([("c", 1), ("a", 1)], "step 2 ('a') is not after step 1; give the texts as they are in it, in order"),
        ([("x", 1)], "step 1 ('x') is not in the response"),
        ([("a", 1), ("", 1)], "step 2 has the text ''; leave out steps without text"),
        ([("a", float("nan"))], "step 1 has reward nan, which is not finite"),
        ([("a", "1")], "step 1 is ('a', '1'); a step is a pair (its text, its reward)"),
        ([1.0, 0.0], "step 1 is 1.0; a step is a pair (its text, its reward)"),
        ("ab", "steps is 'ab'; give a list of pairs (text, reward)"),
        (None, "steps is None; give a list of pairs (text, reward)"),
    ],
)
def test_other_steps_are_a_verifier_error_and_never_a_zero(steps, says):
    verdict = said(steps)
    assert (verdict.status, verdict.steps) == ("verifier_error", ())
    assert says in verdict.reason
    assert "test_steps.py" in verdict.reason


@pytest.mark.run
def test_steps_of_a_file_of_ones_own_come_through_the_wall(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    found = (
        load(path=str(tmp_path / "own.py") + ":lines").bind().score([Attempt("1+1\n2", None), Attempt("1\n\n2", None)])
    )
    assert found[0].steps == (("1+1", 1.0), ("2", 0.0))
    assert found[1].status == "verifier_error"
    assert "step 2 has the text ''" in found[1].reason


@pytest.mark.parametrize(
    ("response", "steps"),
    [
        ("<think>7+8=15 2+5+1=9</think>\\boxed{85}", [("7+8=15", 1), ("2+5+1=9", 0), ("</think>\\boxed{85}", 1)]),
        ("In 3 48/2 = 24, so (1+2)*2=6. \\boxed{85}", [("48/2 = 24", 1), ("(1+2)*2=6", 1), (". \\boxed{85}", 1)]),
        ("1.5*2=3, x+2=5, 2+3=4+1, 2+3=5.5, 2^3+1=9 \\boxed{8}", [(None, 0)]),
        ("2-5=-3 1/0=1 (2+4)/4=3/2 1+1=2/0 \\boxed{85}", [("2-5=-3", 1), ("(2+4)/4=3/2", 1), (None, 1)]),
        ("\\boxed{85}: 80+5=85", [("80+5=85", 1)]),
        ("\\boxed{85}: 80+6=85", [("80+6=85", 1)]),
    ],
)
def test_equations_are_steps_and_the_answer_is_the_last_one(response, steps):
    """The answer stands for an equation behind which nothing follows."""
    verdict = equations.bind().score([Attempt(response, "85", "27+58=")])[0]
    assert [reward for _, reward in verdict.steps] == [reward for _, reward in steps]
    assert all(text in (None, own) for (text, _), (own, _) in zip(steps, verdict.steps, strict=True))
    assert verdict.steps[-1][1] == verdict.score
    assert response.endswith(verdict.steps[-1][0])


def test_no_answer_has_no_steps_and_a_failed_grader_none():
    cut, wrong = equations.bind().score([Attempt("<think>7+8=15", "85", "27+58="), Attempt("\\boxed{1}", None, "")])
    assert (cut.status, cut.steps) == ("no_answer", ())
    assert (wrong.status, wrong.steps) == ("verifier_error", ())


def test_a_combination_has_the_steps_of_its_one_part_that_gives_them():
    attempt = Attempt("<think>7+8=15</think>\\boxed{85}", "85", "27+58=")
    weighted = combine.bind({"parts": [{"name": "equations", "weight": 3}, {"name": "length"}]}).score([attempt])[0]
    assert [reward for _, reward in weighted.steps] == [1.0, 1.0]
    twice = combine.bind({"parts": [{"name": "equations"}, {"name": "equations"}]}).score([attempt])[0]
    assert twice.status == "verifier_error"
    assert "equations and equations give steps" in twice.reason
    closed = combine.bind({"parts": [{"name": "equations", "gate": True}, {"name": "length"}]})
    assert closed.score([Attempt("<think>7+8=15</think>\\boxed{1}", "85", "27+58=")])[0].steps == ()
    summed = rewards.bind({"functions": {"eq": "equations", "len": "length"}}).score([attempt])[0]
    assert [reward for _, reward in summed.steps] == [1.0, 1.0]
