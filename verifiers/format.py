"""The shape of a response: R1's `<think>...</think><answer>...</answer>`, or thinking alone."""

from __future__ import annotations

import re
from typing import Literal

from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.answer import is_blank
from verizero.verifiers.base import VerifierParams, verifier

TAG = re.compile(r"<(/?)(think|answer)>")


class FormatParams(VerifierParams):
    """The tags that a response must have."""

    tags: Literal["think_answer", "think"] = "think_answer"


@verifier
def format(attempt: Attempt, params: FormatParams) -> Verdict:
    """Return 1 if the response has each tag exactly once, in order, neither part empty, and nothing outside them.

    The reference is not used. With tags "think", what follows `</think>` is the answer and must not be empty.
    """
    text = attempt.response
    if attempt.prompt.rstrip().endswith("<think>"):
        text = "<think>" + text
    tags = [(m[0], m.start(), m.end()) for m in TAG.finditer(text)]
    wanted = ["<think>", "</think>"]
    wanted += ["<answer>", "</answer>"] if params.tags == "think_answer" else []
    if [t for t, _, _ in tags] != wanted:
        got = " ".join(t for t, _, _ in tags[:8]) or "none"
        return Verdict("graded", 0.0, f"wrong_tags: {got}")
    if is_blank(text[tags[0][2] : tags[1][1]]):
        return Verdict("graded", 0.0, "empty_thinking")
    if params.tags == "think":
        outside, answer = text[: tags[0][1]], text[tags[1][2] :]
    else:
        outside = text[: tags[0][1]] + text[tags[1][2] : tags[2][1]] + text[tags[3][2] :]
        answer = text[tags[2][2] : tags[3][1]]
    if is_blank(answer):
        return Verdict("graded", 0.0, "empty_answer")
    if outside.strip():
        return Verdict("graded", 0.0, "text_outside_tags")
    return Verdict("graded", 1.0, "well_formed", answer.strip()[:200])
