"""A grader whose marks depend on the text alone: some answers to a prompt are right, whatever a tiny policy says."""

import json
from pathlib import Path
from zlib import crc32

from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.base import VerifierParams, verifier

MARKS = {"path": f"{Path(__file__)}:marks"}
MARKED = f"data.train.0.verifier={json.dumps(MARKS)}"
SOME_FLAT = f"data.train.0.verifier={json.dumps({**MARKS, 'params': {'some_flat': True}})}"
"""As `MARKED`, and to about half of the prompts no answer is right."""


class Params(VerifierParams):
    """Whether to some prompts no answer is right."""

    some_flat: bool = False


@verifier
def marks(attempt: Attempt, params: Params) -> Verdict:
    """Return 1 for about half of the texts, with a step for the thinking; text of a policy that is broken is no answer.

    A policy that has learned anything begins with "<think>".
    """
    thinking, end, _ = attempt.response.partition("</think>")
    steps = ((thinking + end, _mark(thinking)),) if end else ()
    if not thinking.startswith("<think>"):
        return Verdict("no_answer", 0.0, steps=steps)
    is_flat = params.some_flat and not _mark(attempt.prompt or "")
    return Verdict("graded", 0.0 if is_flat else _mark(attempt.response), steps=steps)


def _mark(text: str) -> float:
    return float(crc32(text.encode()) % 2)
