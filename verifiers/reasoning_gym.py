"""Tasks of the reasoning-gym package, graded by its own scorers, in a process that can be ended."""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from verizero.pipeline.errors import DataError
from verizero.pipeline.host import child
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.answer import one_answer
from verizero.verifiers.base import VerifierParams, verifier

INSTALL = "python -m pip install 'reasoning-gym>=0.1.25,<0.2'"
SCORER = Path(__file__).with_name("_gym_scorer.py")
START_S = 120.0
WALL_PER_CPU = 20.0
"""Seconds on the clock per second of CPU, besides those of making a set. Past them the machine is too busy."""


class ReasoningGymParams(VerifierParams):
    """The credit for answers that are partly right, and the limits of the scoring process."""

    is_cheap: ClassVar[bool] = False
    partial: bool = Field(
        False,
        description="give the package's partial credit; in many tasks it pays for an answer that merely contains the "
        "right one, in some for a wrong answer of the right shape",
    )
    timeout_s: float = Field(5.0, gt=0, description="CPU seconds of the scoring process for one answer")
    memory_mib: int = Field(4096, ge=512, description="address space of the scoring process")
    max_chars: int = Field(5_000, ge=1, description="a longer answer is wrong")


@verifier(batch=True)
def reasoning_gym(attempts: Sequence[Attempt], params: ReasoningGymParams) -> list[Verdict]:
    """Return 1 if the package's scorer gives the final answer full marks.

    Reference: {"dataset": name, "config"?: {..}, "entry": {"question", "answer", "metadata"}}. Scorers that evaluate
    answers as code get only plain arithmetic or lists; all run in a process of their own. Needs the extra `gym`.
    """
    return [_one(a, params) for a in attempts]


def _one(attempt: Attempt, params: ReasoningGymParams) -> Verdict:
    start = time.perf_counter()
    try:
        request = _request(attempt.reference)
    except DataError as exc:
        return Verdict("verifier_error", reason=f"bad_reference: {exc}"[:300])
    # The answer that the package knows keeps the dot at its end.
    text = one_answer(replace(attempt, reference=request["entry"]["answer"]), params.max_chars)
    if isinstance(text, Verdict):
        return text
    try:
        question = {**request, "answer": text, "seconds": params.timeout_s, "memory_mib": params.memory_mib}
        reply = SCORING.ask(question, START_S + params.timeout_s * WALL_PER_CPU)
    except OSError as exc:
        reply = {"error": f"the scoring process of reasoning-gym {exc}"}
    return _verdict(reply, text, params, time.perf_counter() - start)


def _verdict(reply: Mapping[str, Any], text: str, params: ReasoningGymParams, seconds: float) -> Verdict:
    if "missing" in reply:
        reason = f"reasoning-gym is not installed ({reply['missing']}); run: {INSTALL}"
        return Verdict("verifier_error", 0.0, reason, text, seconds)
    if "error" in reply:
        return Verdict("verifier_error", 0.0, str(reply["error"]), text, seconds)
    if "over" in reply:
        return Verdict("timeout", 0.0, "scorer_timeout", text, seconds)
    if "unsafe" in reply:
        return Verdict("graded", 0.0, "not_plain: this task's answers are arithmetic or lists", text, seconds)
    score = min(1.0, max(0.0, float(reply["score"])))
    if score < 1.0 and not params.partial:
        return Verdict("graded", 0.0, f"wrong: the package gives {score:.3g}", text, seconds)
    return Verdict("graded", score, "right" if score == 1.0 else f"partial: {score:.3g}", text, seconds)


def _request(reference: Any) -> dict[str, Any]:
    if not isinstance(reference, Mapping) or not isinstance(reference.get("dataset"), str):
        raise DataError(f"reference: expected an object with 'dataset', got {reference!r:.80}")
    entry = reference.get("entry")
    if not isinstance(entry, Mapping) or "answer" not in entry:
        raise DataError("reference: give 'entry' with 'question', 'answer' and 'metadata'")
    return {"dataset": reference["dataset"], "config": reference.get("config", {}), "entry": entry}


SCORING = child.Helper(
    [sys.executable, "-I", str(SCORER)],
    {"HOME": "/nonexistent", "LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1"},
    START_S,
)
atexit.register(SCORING.close)
