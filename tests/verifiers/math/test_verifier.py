"""The verifier `math`: its options, verdicts, rewritten answers, and the process that answers what is undecided."""

import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest

import verizero.verifiers.mathematics as package
from verizero.pipeline.errors import DataError, GradingError
from verizero.pipeline.types import Attempt
from verizero.verifiers.base import load
from verizero.verifiers.mathematics import MathParams, grade, score
from verizero.verifiers.mathematics.decide import algebra
from verizero.verifiers.mathematics.decide.algebra_process import COLLECTIONS_PER_S, reply


def _pid(asked):
    assert asked.helper._process is not None
    return asked.helper._process.pid


def _one(response, gold, prompt="", truncated=False, **options):
    return load("math").bind(options).score([Attempt(response, gold, prompt, truncated)])[0]


GOLDS = ["42", 42, 42.0, "$42$", r"so \boxed{42}", "6*7 = <<6*7=42>>42\n#### 42"]
LONG = "\\boxed{42.00000000000000000}"
VERDICTS = [
    *(("<think>12 3</think>\\boxed{42}", gold, {}, 1.0) for gold in GOLDS),
    *(("\\boxed{41}", gold, {}, 0.0) for gold in GOLDS),
    ("<think>\\boxed{42}", "42", {}, "unclosed_thinking"),
    ("The answer is 42.", "42", {"truncated": True}, "truncated"),
    ("\\boxed{17+25}", "42", {"prompt": "What is 17+25?"}, "restatement"),
    ("\\boxed{42}", "42", {"prompt": "What is 17+25?"}, 1.0),
    ("\\boxed{x^2+1}", "x^2+1", {"prompt": "Write x^2+1 again."}, 1.0),
    (LONG, "42", {}, 1.0),
    (LONG, "42", {"max_answer_chars": 16}, "too_long: 20 characters"),
    ("\\boxed{3,5}", "3.5", {}, 0.0),
    ("\\boxed{3,5}", "3.5", {"decimal_comma": True}, 1.0),
    ("La réponse est 3,5.", "3.5", {}, 1.0),
]
"""Responses with golds and options, and the score or the reason for none."""


@pytest.mark.parametrize(("response", "gold", "options", "wanted"), VERDICTS)
def test_golds_prompts_and_options(response, gold, options, wanted):
    verdict = _one(response, gold, **options)
    assert wanted == (verdict.reason if isinstance(wanted, str) else verdict.score), verdict
    assert (verdict.status == "no_answer") == (wanted in ("unclosed_thinking", "truncated"))


@pytest.mark.parametrize("gold", [None, "", "  ", True])
def test_a_missing_gold_is_the_row_s_fault_not_a_wrong_answer(gold):
    assert _one("\\boxed{42}", gold).status == "verifier_error"
    assert score([("\\boxed{42}", gold), ("\\boxed{42}", "42")])[0].status == "verifier_error"
    with pytest.raises(DataError, match="reference"):
        grade("\\boxed{42}", gold)


REWRITES = [
    "\\boxed{@}", "$\\boxed{@}$", "\\[\\boxed{@}\\]", "<think>9</think>\\boxed{@}", "The answer is $@$.",
    "**Answer:** $@$", "#### @", "<answer>$@$</answer>", "\\boxed{ @ }", "\\boxed{\\displaystyle @}",
    "\\boxed{\\,@\\,}",
    "\\boxed{@.}", "\\boxed{{@}}", "\\boxed{\\boxed{@}}", "So \\boxed{1}? No. \\boxed{@}", "Final Answer: \\(@\\)",
]  # fmt: skip
ANSWERS = [
    ("42", "42", "43"),
    (r"\frac{3}{4}", "0.75", r"\frac{4}{3}"),
    (r"2\sqrt{3}", r"\sqrt{12}", r"3\sqrt{2}"),
    ("x^2-1", "(x-1)(x+1)", "x^2+1"),
    ("(2,5]", "(2,5]", "[2,5)"),
    (r"\{1,2\}", "2,1", "1,3"),
    (r"5\pi", r"5\pi", "15.7"),
    ("C", "C", "D"),
]


@pytest.mark.parametrize(("gold", "right", "wrong"), ANSWERS)
def test_an_answer_rewritten_keeps_its_verdict(gold, right, wrong):
    for wrapper in REWRITES:
        assert grade(wrapper.replace("@", right), gold).score == 1.0, wrapper
        assert grade(wrapper.replace("@", wrong), gold).score == 0.0, wrapper


def test_every_gold_accepts_itself_and_no_other_of_another_type():
    golds = ["42", r"\frac12", "x^2", "(1,2)", r"\{1,2,3\}", r"\text{east}", "C", "x>3", "y=2x+1", "2:3", r"\emptyset"]
    golds.append(r"35\%")
    for gold in golds:
        for answer in golds:
            assert grade(f"\\boxed{{{answer}}}", gold).is_correct is (answer == gold), (gold, answer)


def test_no_module_of_the_trainer_s_side_uses_signals_or_evaluates_text():
    folder = Path(package.__file__).parent
    for file in folder.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if file.name != "algebra_process.py":
            assert re.search(r"^\s*(?:import|from) (?:signal|sympy|math_verify)", text, re.MULTILINE) is None, file
        assert re.search(r"\b(?:eval|exec|sympify|parse_expr)\(", text) is None, file


@pytest.fixture(scope="module")
def asked():
    """The helper process of this module, which takes two seconds to begin: it answers, is killed, and is replaced."""
    algebra.ALGEBRA.helper.close()
    return algebra.ALGEBRA


@pytest.mark.run
def test_the_first_question_pays_for_no_imports_and_none_for_another(asked):
    """What a question may cost depends on no clock."""

    def fewest():
        for most in range(1, 40):
            with suppress(algebra.TimedOut):
                asked.equal(r"\sum_{k=1}^{n} k", r"\frac{n(n+1)}{2}", (most - 0.5) / COLLECTIONS_PER_S)
                return most
        raise AssertionError("it never ends")

    assert asked.equal(r"\sum_{k=1}^{\infty} \frac{1}{k^4}", r"\frac{\pi^4}{90}", 0.5) is True
    first = fewest()
    for other in (r"\zeta(3)", r"\sum_{k=1}^{n} k^2"):
        asked.equal(other, "2", 0.5)
    assert 1 < first == fewest()


@pytest.mark.run
def test_what_the_grammar_does_not_know_is_asked(asked):
    assert grade(r"\boxed{24}", r"\int_0^4 6\,dx").reason == "equal_by_algebra"
    assert grade(r"\boxed{25}", r"\int_0^4 6\,dx").score == 0.0
    assert grade(r"\boxed{24}", r"\int_0^4 6\,dx", MathParams(slow_path=False)).score == 0.0


@pytest.mark.run
def test_a_question_that_takes_too_long_is_ended_and_the_next_is_answered(asked):
    assert asked.equal("x^2", "x\\cdot x", 5.0) is True
    helper = _pid(asked)
    for hard in ("9^{9^{9^9}}", r"\int_0^\infty \frac{\sin x}{x} dx"):
        with pytest.raises(algebra.TimedOut):
            asked.equal("1", hard, 0.1)
    assert asked.equal("3", "4", 5.0) is False
    assert _pid(asked) == helper


@pytest.mark.run
def test_a_helper_that_is_halted_or_killed_makes_no_verdict(asked, monkeypatch):
    assert asked.equal("1", "1", 5.0) is True
    os.kill(_pid(asked), signal.SIGSTOP)  # as a machine that is too busy to run it
    with monkeypatch.context() as patched:
        patched.setattr(algebra, "WALL_S", 1.0)
        with pytest.raises(GradingError, match="grade again"):
            asked.equal("1", "2", 0.01)
    assert asked.equal("1", "1", 5.0) is True
    os.kill(_pid(asked), signal.SIGKILL)  # as one that is short of memory
    with suppress(GradingError):  # or it is seen to be dead, and another is asked
        assert asked.equal("1", "2", 5.0) is False
    assert asked.equal("1", "1", 5.0) is True


def test_how_a_copy_ends_is_told_apart():
    ended = {0: {"equal": True}, 1 << 8: {"equal": False}, 2 << 8: {"equal": None}}
    ended |= {status: {"over": True} for status in (3 << 8, signal.SIGPROF, 11)}  # work, CPU time and stack
    assert {status: reply(status) for status in ended} == ended
    assert [list(reply(status)) for status in (signal.SIGKILL, 77 << 8)] == [["failed"], ["failed"]]


def test_a_helper_that_cannot_start_is_a_grading_error(monkeypatch, tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit(3)\n")
    monkeypatch.setattr(algebra, "SCRIPT", broken)
    with pytest.raises(GradingError, match="slow_path"):
        algebra.Algebra().equal("1", "1", 1.0)
