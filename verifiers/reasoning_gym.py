"""Tasks of the reasoning-gym package, graded by its own scorers, in a process that can be ended."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from verizero.pipeline.errors import DataError, GradingError
from verizero.pipeline.host import child
from verizero.pipeline.types import Attempt, Verdict
from verizero.sandbox.worker.processes import cpu_clock_s
from verizero.verifiers.answer import one_answer
from verizero.verifiers.base import VerifierParams, verifier

INSTALL = "python -m pip install 'reasoning-gym>=0.1.25,<0.2'"
SCORER = Path(__file__).with_name("_gym_scorer.py")
START_S = 60.0
WALL_PER_CPU = 20.0
"""Seconds on the clock allowed per second of CPU time. Past them the machine is too busy: no answer's fault."""
MAX_REQUESTS = 20_000
"""Requests to one process before it is replaced, which bounds the memory that a scorer leaks."""


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

    Reference: {"dataset": name, "config"?: {..}, "entry": {"question", "answer", "metadata"}}, or "index" in place of
    "entry": the task is made again from the configuration's seed. Some data sets of the package make another task in
    another process: an error, if the prompt is known. Scorers that evaluate answers as code get only plain arithmetic
    or lists; all run in a process of their own. Needs the extra `gym`.
    """
    return [_one(a, params) for a in attempts]


def _one(attempt: Attempt, params: ReasoningGymParams) -> Verdict:
    start = time.perf_counter()
    try:
        request = _request(attempt.reference)
    except DataError as exc:
        return Verdict("verifier_error", reason=f"bad_reference: {exc}"[:300])
    # The answer that the package knows keeps the dot at its end.
    text = one_answer(replace(attempt, reference=(request["entry"] or {}).get("answer")), params.max_chars)
    if isinstance(text, Verdict):
        return text
    try:
        reply = PROCESS.ask({**request, "answer": text, "prompt": attempt.prompt}, params.timeout_s, params.memory_mib)
    except TimeoutError:
        return Verdict("timeout", 0.0, "scorer_timeout", text, time.perf_counter() - start)
    except GradingError as exc:
        return Verdict("verifier_error", 0.0, str(exc)[:300], text, time.perf_counter() - start)
    return _verdict(reply, text, params, time.perf_counter() - start)


def _verdict(reply: Mapping[str, Any], text: str, params: ReasoningGymParams, seconds: float) -> Verdict:
    if "missing" in reply:
        reason = f"reasoning-gym is not installed ({reply['missing']}); run: {INSTALL}"
        return Verdict("verifier_error", 0.0, reason, text, seconds)
    if "error" in reply:
        return Verdict("verifier_error", 0.0, str(reply["error"]), text, seconds)
    if "unsafe" in reply:
        return Verdict("graded", 0.0, "not_plain: this task's answers are arithmetic or lists", text, seconds)
    score = min(1.0, max(0.0, float(reply["score"])))
    if score < 1.0 and not params.partial:
        return Verdict("graded", 0.0, f"wrong: the package gives {score:.3g}", text, seconds)
    return Verdict("graded", score, "right" if score == 1.0 else f"partial: {score:.3g}", text, seconds)


def _request(reference: Any) -> dict[str, Any]:
    if not isinstance(reference, Mapping) or not isinstance(reference.get("dataset"), str):
        raise DataError(f"reference: expected an object with 'dataset', got {reference!r:.80}")
    index, entry = reference.get("index"), reference.get("entry")
    if (entry is None) == (index is None) or (entry is not None and "answer" not in entry):
        raise DataError("reference: give either 'index' or 'entry' with 'question', 'answer' and 'metadata'")
    config = reference.get("config", {})
    return {"dataset": reference["dataset"], "config": config, "index": index, "entry": entry}


class ScoringProcess:
    """A process that scores one answer at a time, and is replaced when an answer takes too long. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._asked = 0
        self._loaded: set[str] = set()
        """The data sets that the process has made, which is no answer's work."""
        self._memory_mib = 0
        self._owner = 0

    def ask(self, request: Mapping[str, Any], timeout_s: float, memory_mib: int) -> dict[str, Any]:
        """Return the reply to a request.

        Raises: TimeoutError past `timeout_s` CPU seconds; GradingError if the process dies or does not answer.
        """
        with self._lock:
            fresh = self._process is None or self._asked >= MAX_REQUESTS or memory_mib != self._memory_mib
            if fresh or self._owner != os.getpid() or (self._process and self._process.poll() is not None):
                self._start(memory_mib)
            dataset = json.dumps([request["dataset"], request["config"]], sort_keys=True, default=str)
            if dataset not in self._loaded:
                first_task = {"index": 0, "entry": None, "answer": "", "prompt": ""}
                try:
                    self._exchange({**request, **first_task}, START_S)
                except TimeoutError as exc:
                    raise GradingError(f"reasoning-gym took over {START_S:g} CPU seconds for {dataset:.80}") from exc
                self._loaded.add(dataset)
            self._asked += 1
            return self._exchange(request, timeout_s)

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            child.end(process, grace_s=0)
            child.close_pipes(process)

    def _start(self, memory_mib: int) -> None:
        self.close()
        self._process = child.start(
            [sys.executable, "-I", str(SCORER), str(memory_mib), "3600"],
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/nonexistent", "OPENBLAS_NUM_THREADS": "1"},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._lines = child.Lines(self._process)
        self._asked, self._memory_mib, self._owner = 0, memory_mib, os.getpid()
        self._loaded.clear()

    def _exchange(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        process = self._process
        assert process is not None
        cpu_end, end = cpu_clock_s(process.pid) + timeout_s, time.monotonic() + timeout_s * WALL_PER_CPU
        try:
            self._lines.send(json.dumps(request, default=str))
            # Its one thread needs at least as long as that for the CPU time that is left.
            while (line := self._lines.next(max(0.01, cpu_end - cpu_clock_s(process.pid)))) is None:
                self._require_time(cpu_end, end)
            if not line:
                raise OSError("it ended")
            reply: dict[str, Any] = json.loads(line)
        except TimeoutError:
            self.close()
            raise
        except (OSError, ValueError) as exc:
            self.close()
            raise GradingError(f"the scoring process of reasoning-gym failed: {exc}") from exc
        return reply

    def _require_time(self, cpu_end: float, end: float) -> None:
        """Raise TimeoutError if the process has used its CPU time, OSError if the clock has run out first."""
        assert self._process is not None
        if cpu_clock_s(self._process.pid) >= cpu_end:
            raise TimeoutError
        if time.monotonic() > end:
            raise OSError("the machine is too busy, or it hangs")


PROCESS = ScoringProcess()
atexit.register(PROCESS.close)
