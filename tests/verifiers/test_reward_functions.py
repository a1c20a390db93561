"""Reward functions in the forms of their own libraries: graded as a direct call grades, and failures that say why."""

import asyncio
import math
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tests.verifiers import rewards_by_shape as by_shape
from tests.verifiers import rewards_of_others as theirs
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.scoring.score import tells_right
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers._reward_functions import verdict_of
from verizero.verifiers.base import load, verifier

FILE, SHAPES = Path(theirs.__file__), Path(by_shape.__file__)


def attempts(count=200):
    rng, made = random.Random(3), []
    for i in range(count):
        answer = str(rng.randint(0, 9))
        response = f"<answer>{rng.randint(0, 9)}</answer>" + "." * rng.randint(0, 3)
        row = {
            "prompt": f"{i}?", "answer": answer, "level": i % 3, "data_source": "openai/gsm8k",
            "extra_info": {"index": i}, "info": {"level": i % 3},
        }  # fmt: skip
        made.append(Attempt(response, answer, f"{i}?", row=row, response_ids=tuple(range(len(response)))))
    return made


def bound(function, **params):
    return load(path=f"{FILE}:{function}").bind(params)


def rewards(verdicts):
    assert {v.status for v in verdicts} == {"graded"}, verdicts[0]
    return [v.score if v.reward is None else v.reward for v in verdicts]


SOME = attempts()
CHAT = [{"role": "user", "content": "?"}]
PROMPTS, RESPONSES, ANSWERS = [a.prompt for a in SOME], [a.response for a in SOME], [a.reference for a in SOME]
IDS, ROWS = [list(a.response_ids) for a in SOME], [a.row for a in SOME]
LEVELS = [row["level"] for row in ROWS]


def said_in_chats():
    return [[{"role": "assistant", "content": response}] for response in RESPONSES]


async def awaited():
    said = zip(said_in_chats(), ANSWERS, ROWS, strict=True)
    return [await theirs.exact(completion, answer, row["info"], {}) for completion, answer, row in said]


DIRECT = {
    "plain": lambda: list(map(theirs.plain, RESPONSES, ANSWERS)),
    "of_the_row": lambda: list(map(theirs.of_the_row, RESPONSES, ROWS)),
    "trl": lambda: theirs.trl(PROMPTS, RESPONSES, IDS, answer=ANSWERS, level=LEVELS),
    "trl_of_tokens": lambda: [len(ids) + level for ids, level in zip(IDS, LEVELS, strict=True)],
    "trl_of_prompts": lambda: list(map(len, PROMPTS)),
    "unsloth": lambda: theirs.unsloth([CHAT] * 200, said_in_chats(), ANSWERS),
    "compute_score": lambda: [
        theirs.compute_score("openai/gsm8k", a.response, a.reference, a.row["extra_info"])["score"] for a in SOME
    ],
    "reward_func": lambda: theirs.reward_func(
        [p + r for p, r in zip(PROMPTS, RESPONSES, strict=True)], PROMPTS, ANSWERS
    )["rewards"].tolist(),
    "exact": lambda: asyncio.run(awaited()),
}
"""Functions in the forms of their libraries, each called as its library would."""
PARTS = {"compute_score": ("found", 1.0), "reward_func": ("length", None)}
"""Functions that return a part too: its name, and its value if that is not the response's length."""


@pytest.mark.parametrize("name", DIRECT)
def test_a_form_of_others_is_called_as_they_call_it(name):
    some = [replace(a, row={**a.row, "prompt": CHAT}) for a in SOME] if name == "unsloth" else SOME
    verdicts = bound(name).score(some)
    assert rewards(verdicts) == DIRECT[name]()
    part, value = PARTS.get(name, ("", None))
    assert not part or [dict(v.parts)[part] for v in verdicts] == [value or len(r) for r in RESPONSES]


def test_a_sum_of_several():
    functions = {"plain": f"{FILE}:plain", "signed": f"{FILE}:signed", "math": "math"}
    verdicts = load("rewards").bind({"functions": functions, "weights": {"signed": 0.5}}).score(SOME)
    for a, v in zip(SOME, verdicts, strict=True):
        parts = dict(v.parts)
        assert parts["plain"] == theirs.plain(a.response, a.reference)
        assert parts["signed"] == theirs.signed(a.response, a.reference)
        assert (v.score if v.reward is None else v.reward) == parts["plain"] + 0.5 * parts["signed"] + parts["math"]


def test_one_that_abstains_adds_nothing_and_all_that_abstain_leave_no_reward():
    some = attempts(9)
    functions = {"plain": f"{FILE}:plain", "sometimes": f"{FILE}:sometimes"}
    for a, v in zip(some, load("rewards").bind({"functions": functions}).score(some), strict=True):
        assert ("sometimes" in dict(v.parts)) is (a.row is not None and a.row["level"] > 0)
    verdicts = bound("sometimes").score(some)
    assert [v.status for v in verdicts] == ["abstained" if i % 3 == 0 else "graded" for i in range(9)]
    assert all(v.is_left_out and not v.is_infrastructure for v in verdicts[::3])


def test_what_is_only_shown_costs_no_reward():
    shown = {"a": math.nan, "b": 10**400, "c": -math.inf, "d": "text", "e": [1, 2], "f": np.zeros(2), "g": True}
    verdicts = [verdict_of({"score": 0.5, **shown}), bound("shown").score(attempts(1))[0]]
    verdicts += bound("shown_of_batch").score(attempts(2))
    for verdict in verdicts:
        assert (verdict.status, verdict.score) == ("graded", 0.5)
        assert str(dict(verdict.parts)) == "{'a': nan, 'b': inf, 'c': -inf, 'g': 1.0}"
    with pytest.raises(ValueError, match=r"returned 1e\+200; a reward is a number up to 1e\+100"):
        verdict_of(1e200)


def test_a_number_of_any_kind_is_a_reward():
    numbers = [np.float32(1), np.bool_(True), np.array(1.0), np.array([1.0]), np.int64(1)]
    assert {verdict_of(v) for v in [*numbers, True, Decimal("1.0"), Fraction(1)]} == {Verdict("graded", 1.0, "right")}


def test_a_threshold_says_what_is_right():
    some = attempts(30)
    for a, v in zip(some, bound("signed", success=2.0).score(some), strict=True):
        right = theirs.signed(a.response, a.reference) == 2.0
        assert (v.is_correct, v.score, tells_right(v)) == (right, float(right), True)
        assert v.reward == (2.0 if right else -1.0)
    assert not any(tells_right(v) for v in bound("signed").score(some))


def test_failures_say_what_was_returned_and_where():
    some, line = attempts(2), f", at {FILE}:"
    for function, why in {
        "not_a_number": "ValueError: returned nan; a reward is a number up to 1e+100, or None for no reward",
        "a_text": "TypeError: returned 'good'; a reward is a number, or None for no reward",
        "raises": "KeyError: 'no such key'",
    }.items():
        verdict = bound(function).score(some)[0]
        assert (verdict.status, verdict.reason.partition(line)[0]) == ("verifier_error", why)
        assert line in verdict.reason
    hangs = load(path=f"{FILE}:hangs").bind({}, None, 0.5).score(some[:1])[0]
    assert (hangs.status, hangs.reason.partition(line)[0]) == ("verifier_error", "no verdict within 0.5 s")
    with pytest.raises(ConfigError) as refused:
        bound("of_a_column").require_columns(some[0].row)
    assert str(refused.value) == (
        "reward function 'of_a_column' asks for 'difficulty', and the data has no such column; columns: prompt, "
        "answer, level, data_source, extra_info, info; besides columns it may ask for completion, response, prompt, "
        "question, "
        "answer, reference, row, truncated"
    )


def test_a_bad_value_of_a_batch_costs_no_other_response():
    verdicts = bound("bad_at_times").score(attempts(6))
    assert [v.status for v in verdicts] == ["verifier_error", "graded", "graded"] * 2
    short = bound("too_few").score(attempts(6))
    assert {v.status for v in short} == {"verifier_error"}
    assert "returned 5 values for 6 responses; return one for each" in short[0].reason
    same = load(path=f"{SHAPES}:one_for_all").bind().score(attempts(6))
    assert {v.reason for v in same} == {
        f"WrongCount: returned 1 values for 6 responses; return one for each, at {SHAPES}:"
        f"{by_shape.one_for_all.__code__.co_firstlineno}"
    }


def test_each_shape_is_right_for_two_callers_at_a_time():
    names = list(vars(by_shape))  # in the order of the file: one that awaits precedes one that asks for a loop
    shapes = [n for n in names[names.index("in_main_thread") :] if n not in ("Kind", "AsyncKind", "one_for_all")]
    assert len(shapes) == 21
    some = [Attempt("1", "1", row={"answer": "1"})] * 4
    with ThreadPoolExecutor(2) as callers:
        for shape in shapes:
            verdicts = callers.map(load(path=f"{SHAPES}:{shape}").bind().score, [some] * 10)
            assert {(v.status, v.score, v.reason) for own in verdicts for v in own} == {("graded", 1.0, "right")}, shape


def test_what_cannot_be_called_by_names_is_refused(tmp_path):
    (tmp_path / "r.py").write_text("def f(*texts): return 1\nx = 3\ndef blind(): return 1\n")
    for path, words in (
        (f"{tmp_path}/r.py:blind", r"'blind' sees no response; write def f\(completion"),
        (f"{tmp_path}/r.py:f", r"argument '\*texts' has no name to be given by; write def f\(completion"),
        (f"{tmp_path}/r.py:x", "'x' is int, and a reward is a function"),
        (f"{tmp_path}/r.py:g", "has no 'g'"),
        (f"{SHAPES}:Kind", r"'Kind' is a class; give an object that can be called: Kind\(\)"),
    ):
        with pytest.raises(ConfigError, match=words):
            load(path=path)
    for shape in (by_shape.waits, by_shape.cached, by_shape.kind, by_shape.Kind, by_shape.part):
        with pytest.raises(ConfigError, match="@verifier goes directly above a def without async"):
            verifier(shape)
