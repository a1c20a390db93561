"""A process that asks math_verify and sympy whether two answers are equal; `algebra.py` starts it.

Run as a script. A line in is {"gold", "answer", "seconds"}. A line out is {"equal": true | false | null}, or
{"over": true} for a question that took more than its budget, or {"failed": reason} if something else ended it.

Each question is answered in a copy of this process, made when all is imported and warm. So what a question costs does
not depend on those before it, nothing of it stays, and a copy that ends early costs the next question nothing.

The budget is one of work, so that a busy machine makes no verdict. Work is counted by the collections of Python's
garbage collector, one for every 700 new objects: equal questions count the same on every machine, at any load. Work
that makes no objects, as a power of huge numbers, is ended by its CPU time, at several times the budget.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import math
import os
import signal
import sys
from typing import Any, NoReturn

MEMORY_BYTES = 2 << 30
COLLECTIONS_PER_S = 140
"""Collections in a second of sympy's work, on a core of a server of 2021."""
CPU_PER_WORK = 4.0
"""CPU seconds allowed per second of budget: a core that others slow down is not so much slower."""
CPU_TO_START_S = 0.5
"""CPU seconds allowed besides: a copy begins by copying the pages that it writes, whatever its budget."""
EQUAL, UNEQUAL, UNREAD, OVER = range(4)
"""Exit statuses of the copy that answers."""
WARMING_UP = (
    ("x^2", "x \\cdot x"), ("\\int_0^1 x dx", "\\frac{1}{2}"), ("\\sin(x)^2", "1-\\cos(x)^2"), ("\\Gamma(5)", "24"),
    ("\\sum_{k=1}^{\\infty} \\frac{1}{k^2}", "\\frac{\\pi^2}{6}"), ("\\lim_{x \\to 0} \\frac{\\sin x}{x}", "1"),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{pmatrix}1&2\\\\3&5\\end{pmatrix}"),
)  # fmt: skip


def limit() -> None:
    """Bound address space and files written, where the platform can."""
    try:
        import resource
    except ImportError:
        return
    for kind, most in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))


def start_timer(seconds: float) -> None:
    """End this process when it has used `seconds` more of CPU time; 0 stops the timer.

    The system ends it, in the middle of a computation too: a handler in Python would wait for the computation.
    """
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)


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


def answer(question: dict[str, Any], tools: Any) -> NoReturn:
    """Answer one question within its budget, and end this process with the answer as its exit status."""
    most, count = math.ceil(question["seconds"] * COLLECTIONS_PER_S), itertools.count(1)

    def on_collection(phase: str, _: dict[str, int]) -> None:
        if phase == "start" and next(count) > most:
            os._exit(OVER)

    gc.callbacks.append(on_collection)
    start_timer(CPU_TO_START_S + question["seconds"] * CPU_PER_WORK)
    try:
        equal = is_equal(question["gold"], question["answer"], tools)
    except (Exception, RecursionError):
        equal = None
    os._exit(UNREAD if equal is None else EQUAL if equal else UNEQUAL)


def reply(status: int) -> dict[str, Any]:
    """Return the reply for the wait status of the copy that answered."""
    code = os.waitstatus_to_exitcode(status)
    if code in (EQUAL, UNEQUAL, UNREAD):
        return {"equal": {EQUAL: True, UNEQUAL: False, UNREAD: None}[code]}
    # Its own time or stack has ended it, unless it was killed from outside, as by a kernel that is short of memory.
    return {"failed": f"ended by {code}"} if code == -signal.SIGKILL or code > OVER else {"over": True}


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
    gc.collect()
    gc.freeze()  # a copy looks through its own objects only
    gc.set_threshold(700, 10, 10)
    out.write('{"ready": true}\n')
    for line in sys.stdin:
        question = json.loads(line)
        copy = os.fork()
        if copy == 0:
            answer(question, tools)
        _, status = os.waitpid(copy, 0)
        out.write(json.dumps(reply(status)) + "\n")


if __name__ == "__main__":
    main()
