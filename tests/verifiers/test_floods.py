"""Hostile lengths: whatever is repeated, no verifier takes longer than a second or rewards it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pipeline.types import Attempt
from verifiers.base import load

LONG = 60_000
PIECES = [
    " ", "\n", "\t ", "a", "A ", "A or ", "B, ", "1", "1,", "1.", "-", "(", ")", "[", "{", "}", "[1,",
    '{"a":', "\\", "$", "\\boxed{", "*", "`", "```\n", "~~~\n", "<think>", "</think>", "<answer>",
    "</answer>", "answer is ", "####", "####\n", "Ann and ", "Ann is ", "is a knight ", "knights: Ann, ",
    "def f(x):\n ", "<<", "*a", "e9", "9e", "9^", "½", "\x00", "\u202e", "é", "好", "'", '"', "the choice ",
]  # fmt: skip
TARGETS: list[tuple[str, dict[str, Any], Any]] = [
    ("choice", {}, {"answer": "B", "choices": ["Rome", "Paris"]}),
    ("exact", {"ignore_punctuation": True, "ignore_articles": True}, "Paris"),
    ("numeric", {}, "42"),
    ("format", {}, None),
    ("countdown", {}, {"numbers": [2, 3], "target": 6}),
    ("sudoku", {}, "1000000000000001"),
    ("knights_knaves", {}, {"people": ["Ann", "Bob"], "solution": {"Ann": "knave", "Bob": "knight"}}),
    ("json_schema", {}, {"schema": {"type": "object", "uniqueItems": True}}),
]


@pytest.mark.parametrize(("name", "params", "reference"), TARGETS)
def test_floods_are_refused_within_a_second(name: str, params: dict[str, Any], reference: Any) -> None:
    bound = load(name).bind(params)
    for piece in PIECES:
        flood = piece * (LONG // len(piece))
        for text in (f"B{flood}!", rf"\boxed{{B{flood}!}}", f"Answer: 1{flood}x"):
            start = time.thread_time()
            said = bound.score([Attempt(text, reference)])[0]
            assert time.thread_time() - start < 1.0, (piece, text[:20])
            closed_at_once = piece == "}" and text.startswith("\\boxed")
            assert said.score == 0.0 or closed_at_once, (piece, text[:20], said)
