"""A process that asks math_verify and sympy whether two answers are equal; `algebra.py` starts it.

Run as a script, isolated. A line in is {"gold", "answer", "seconds"}, a line out {"equal": true | false | null}.
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
    """Bound address space, CPU time and files written, where the platform can."""
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

    The system ends it, in the middle of a computation too: a handler in Python would wait for the computation.
    """
    try:
        import signal

        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, seconds)
    except (ImportError, AttributeError):
        return


def is_equal(gold: str, answer: str, tools: Any) -> bool | None:
    """True if the two are equal, None if one of them cannot be read as LaTeX mathematics."""
    parse, verify, config = tools
    trees = []
    for text in (gold, answer):
        # Its own timeouts are signals that Python handles late; this process has a harder one.
        tree = parse(f"${text}$", extraction_config=config, fallback_mode="no_fallback", parsing_timeout=None)
        if not tree:
            return None
        trees.append(tree)
    return bool(verify(*trees, strict=True, timeout_seconds=None))


def main() -> None:
    """Serve questions until the other side closes the pipe."""
    limit()
    # Replies go to a copy of stdout. What the libraries print goes nowhere, so that it cannot pass for a reply.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    import logging

    logging.disable(logging.CRITICAL)
    from math_verify import LatexExtractionConfig, parse, verify

    tools = (parse, verify, [LatexExtractionConfig()])
    for pair in WARMING_UP:
        with contextlib.suppress(Exception):
            is_equal(*pair, tools)
    out.write('{"ready": true}\n')
    for line in sys.stdin:
        question = json.loads(line)
        start_timer(question["seconds"])
        equal: bool | None
        try:
            equal = is_equal(question["gold"], question["answer"], tools)
        except (Exception, RecursionError):
            equal = None
        start_timer(0)
        out.write(json.dumps({"equal": equal}) + "\n")


if __name__ == "__main__":
    main()
