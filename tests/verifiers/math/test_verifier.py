"""The verifier `math`: its options, verdicts, rewritten answers, and the process that answers what is undecided."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import verizero.verifiers.mathematics as package
from verizero.pipeline.errors import ConfigError, DataError, GradingError
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.base import load
from verizero.verifiers.mathematics import MathParams, grade, score
from verizero.verifiers.mathematics.decide import algebra
from verizero.verifiers.mathematics.decide.algebra_process import COLLECTIONS_PER_S, reply


def _pid(asked: algebra.Algebra) -> int:
    assert asked.helper._process is not None
    return asked.helper._process.pid


def _one(response: str, gold: Any, prompt: str = "", truncated: bool = False, **options: Any) -> Verdict:
    return load("math").bind(options).score([Attempt(response, gold, prompt, truncated)])[0]


@pytest.mark.parametrize("gold", ["42", 42, 42.0, "$42$", r"so \boxed{42}", "6*7 = <<6*7=42>>42\n#### 42"])
def test_golds_of_every_shape(gold: Any) -> None:
    assert _one("<think>12 3</think>\\boxed{42}", gold).is_correct
    assert _one("\\boxed{41}", gold).score == 0.0


@pytest.mark.parametrize("gold", [None, "", "  ", True])
def test_a_missing_gold_is_the_row_s_fault_not_a_wrong_answer(gold: Any) -> None:
    assert _one("\\boxed{42}", gold).status == "verifier_error"
    assert score([("\\boxed{42}", gold), ("\\boxed{42}", "42")])[0].status == "verifier_error"
    with pytest.raises(DataError, match="reference"):
        grade("\\boxed{42}", gold)


def test_an_answer_that_was_not_given_is_no_answer() -> None:
    verdict = _one("<think>\\boxed{42}", "42")
    assert (verdict.status, verdict.score, verdict.reason) == ("no_answer", 0.0, "unclosed_thinking")
    assert _one("The answer is 42.", "42", truncated=True).reason == "truncated"


def test_copying_the_prompt_s_expression_is_no_value() -> None:
    assert _one("\\boxed{17+25}", "42", prompt="What is 17+25?").reason == "restatement"
    assert _one("\\boxed{42}", "42", prompt="What is 17+25?").is_correct
    assert _one("\\boxed{x^2+1}", "x^2+1", prompt="Write x^2+1 again.").is_correct


def test_a_long_answer_is_not_read() -> None:
    long = "\\boxed{42.00000000000000000}"
    assert _one(long, "42").is_correct
    assert _one(long, "42", max_answer_chars=16).reason == "too_long: 20 characters"


def test_decimal_commas_are_read_where_asked_for() -> None:
    assert _one("\\boxed{3,5}", "3.5").score == 0.0
    assert _one("\\boxed{3,5}", "3.5", decimal_comma=True).is_correct
    assert _one("La réponse est 3,5.", "3.5").is_correct


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(ConfigError, match="tolerence"):
        load("math").bind({"tolerence": 1})


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
def test_an_answer_rewritten_keeps_its_verdict(gold: str, right: str, wrong: str) -> None:
    for wrapper in REWRITES:
        assert grade(wrapper.replace("@", right), gold).score == 1.0, wrapper
        assert grade(wrapper.replace("@", wrong), gold).score == 0.0, wrapper


def test_every_gold_accepts_itself_and_no_other_of_another_type() -> None:
    golds = ["42", r"\frac12", "x^2", "(1,2)", r"\{1,2,3\}", r"\text{east}", "C", "x>3", "y=2x+1", "2:3", r"\emptyset"]
    golds.append(r"35\%")
    for gold in golds:
        for answer in golds:
            assert grade(f"\\boxed{{{answer}}}", gold).is_correct is (answer == gold), (gold, answer)


def test_no_module_of_the_trainer_s_side_uses_signals_or_evaluates_text() -> None:
    folder = Path(package.__file__).parent
    for file in folder.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if file.name != "algebra_process.py":
            assert re.search(r"^\s*(?:import|from) (?:signal|sympy|math_verify)", text, re.MULTILINE) is None, file
        assert re.search(r"\b(?:eval|exec|sympify|parse_expr)\(", text) is None, file


@pytest.mark.run
class TestSlowPath:
    """The helper process: it answers, is killed when it takes too long, and is replaced."""

    def test_what_the_grammar_does_not_know_is_asked(self) -> None:
        assert grade(r"\boxed{24}", r"\int_0^4 6\,dx").reason == "equal_by_algebra"
        assert grade(r"\boxed{25}", r"\int_0^4 6\,dx").score == 0.0
        assert grade(r"\boxed{24}", r"\int_0^4 6\,dx", MathParams(slow_path=False)).score == 0.0

    @pytest.fixture(scope="class")
    def asked(self) -> Iterator[algebra.Algebra]:
        """One for several tests: its helper takes two seconds to begin."""
        made = algebra.Algebra()
        yield made
        made.helper.close()

    def test_the_first_question_pays_for_no_imports(self, asked: algebra.Algebra) -> None:
        assert asked.equal(r"\sum_{k=1}^{\infty} \frac{1}{k^4}", r"\frac{\pi^4}{90}", 0.5) is True

    def test_a_question_that_takes_too_long_is_ended_and_the_next_is_answered(self, asked: algebra.Algebra) -> None:
        assert asked.equal("x^2", "x\\cdot x", 5.0) is True
        helper = _pid(asked)
        for hard in ("9^{9^{9^9}}", r"\int_0^\infty \frac{\sin x}{x} dx"):
            with pytest.raises(algebra.TimedOut):
                asked.equal("1", hard, 0.1)
        assert asked.equal("3", "4", 5.0) is False
        assert _pid(asked) == helper

    def test_what_a_question_may_cost_depends_on_no_clock_and_on_no_other_question(
        self, asked: algebra.Algebra
    ) -> None:
        def fewest(asked: algebra.Algebra) -> int:
            for most in range(1, 40):
                with contextlib.suppress(algebra.TimedOut):
                    asked.equal(r"\sum_{k=1}^{n} k", r"\frac{n(n+1)}{2}", (most - 0.5) / COLLECTIONS_PER_S)
                    return most
            raise AssertionError("it never ends")

        fresh = algebra.Algebra()
        for other in (r"\zeta(3)", r"\sum_{k=1}^{n} k^2"):
            asked.equal(other, "2", 0.5)
        assert 1 < fewest(fresh) == fewest(asked)
        fresh.helper.close()

    @pytest.mark.run
    def test_a_helper_that_is_halted_or_killed_makes_no_verdict(self, asked: algebra.Algebra) -> None:
        assert asked.equal("1", "1", 5.0) is True
        os.kill(_pid(asked), signal.SIGSTOP)  # as a machine that is too busy to run it
        with pytest.raises(GradingError, match="grade again"):
            asked.equal("1", "2", 0.01)
        assert asked.equal("1", "1", 5.0) is True
        os.kill(_pid(asked), signal.SIGKILL)  # as one that is short of memory
        with suppress(GradingError):  # or it is seen to be dead, and another is asked
            assert asked.equal("1", "2", 5.0) is False
        assert asked.equal("1", "1", 5.0) is True

    def test_how_a_copy_ends_is_told_apart(self) -> None:
        ended = {
            "equal": 0,
            "unequal": 1 << 8,
            "unread": 2 << 8,
            "work": 3 << 8,
            "CPU time": signal.SIGPROF,
            "stack": 11,
        }
        assert [reply(status) for status in ended.values()] == [
            {"equal": True}, {"equal": False}, {"equal": None}, {"over": True}, {"over": True}, {"over": True},
        ]  # fmt: skip
        assert [list(reply(status)) for status in (signal.SIGKILL, 77 << 8)] == [["failed"], ["failed"]]

    def test_a_helper_that_cannot_start_is_a_grading_error(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        broken = tmp_path / "broken.py"
        broken.write_text("raise SystemExit(3)\n")
        monkeypatch.setattr(algebra, "SCRIPT", broken)
        with pytest.raises(GradingError, match="slow_path"):
            algebra.Algebra().equal("1", "1", 1.0)
