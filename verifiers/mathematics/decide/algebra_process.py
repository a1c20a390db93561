"""The other side of `algebra.py`: a process that asks math_verify and sympy whether two answers are equal.

Run as a script, isolated. One JSON line in, {"gold", "said", "seconds"}; one line out, {"equal": true | false | null}.
Limits are set before anything of the answer is read: address space, CPU time of the process, and CPU time per question
by a timer whose only action is to end the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

MEMORY_BYTES = 2 << 30
LIFETIME_CPU_S = 120
WARMING_UP = (("x^2", "x \\cdot x"), ("\\int_0^1 x dx", "\\frac{1}{2}"), ("\\sin(x)^2", "1-\\cos(x)^2"))


def limit() -> None:
    """Bound address space, CPU time, files written and processes, where the platform can."""
    try:
        import resource
    except ImportError:
        return
    for kind, most in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, LIFETIME_CPU_S),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))


def start_timer(seconds: float) -> None:
    """End this process when it has used `seconds` more of CPU time; 0 stops the timer.

    The system ends it, in the middle of a computation too: a handler would wait for the computation.
    """
    try:
        import signal

        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, seconds)
    except (ImportError, AttributeError):
        return


def answer(gold: str, said: str, tools: Any) -> bool | None:
    """Whether the two are equal, None if one of them is not read as LaTeX mathematics."""
    parse, verify, config = tools
    read = []
    for text in (gold, said):
        found = parse(f"${text}$", extraction_config=config, fallback_mode="no_fallback", parsing_timeout=None)
        if not found:
            return None
        read.append(found)
    return bool(verify(read[0], read[1], strict=True, timeout_seconds=None))


def main() -> None:
    """Serve questions until the other side closes the pipe."""
    limit()
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    import logging

    logging.disable(logging.CRITICAL)
    from math_verify import LatexExtractionConfig, parse, verify

    tools = (parse, verify, [LatexExtractionConfig()])
    for gold, said in WARMING_UP:
        with contextlib.suppress(Exception):
            answer(gold, said, tools)
    out.write('{"ready": true}\n')
    for line in sys.stdin:
        question = json.loads(line)
        start_timer(question["seconds"])
        equal: bool | None
        try:
            equal = answer(question["gold"], question["said"], tools)
        except (Exception, RecursionError):
            equal = None
        start_timer(0)
        out.write(json.dumps({"equal": equal}) + "\n")


if __name__ == "__main__":
    main()
