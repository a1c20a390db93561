"""Questions to a computer algebra system, in a process that can be killed.

The budget of a question is one of work (`algebra_process.py`), so that no verdict depends on how busy the machine is.
Where the process does not answer for another reason, that is a failure of the grader. No signal is used on this side,
so that threads, asyncio and process groups all work. The process inherits no environment but the path of the
interpreter. It is replaced when it dies, and when it is killed.
"""

from __future__ import annotations

import atexit
import sys
from pathlib import Path

from verizero.pipeline.errors import GradingError
from verizero.pipeline.host import child

STARTUP_S = 120.0
WALL_S = 60.0
"""Seconds on the clock for one question. Past them the machine is too busy, or the process hangs."""
SCRIPT = Path(__file__).with_name("algebra_process.py")


class TimedOut(Exception):
    """The question used up its budget of work, or its memory."""


class Algebra:
    """A helper process that is started when first needed and asked one question at a time."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", "-s", str(SCRIPT)]
        # sympy's work depends on the order of sets
        self.helper = child.Helper(command, {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}, STARTUP_S)

    def equal(self, gold: str, answer: str, seconds: float) -> bool | None:
        """True if two LaTeX answers are equal; None if the algebra system could not read one of them.

        Raises: TimedOut; GradingError if the process does not start, or ends or is silent for no fault of the question.
        """
        question = {"gold": gold, "answer": answer, "seconds": seconds}
        try:
            reply = self.helper.ask(question, WALL_S)
        except OSError as exc:
            raise GradingError(f"{SCRIPT.name} {exc}; grade again, or turn the option slow_path off") from exc
        if "over" in reply:
            raise TimedOut
        if "failed" in reply:
            raise GradingError(f"{SCRIPT.name}: {reply['failed']}; grade again with more free memory")
        return None if reply["equal"] is None else bool(reply["equal"])


ALGEBRA = Algebra()
atexit.register(ALGEBRA.helper.close)
