"""Runs in the sandbox, before a line SOURCE = ...: a checker that is a program with the names of three files.

Such a checker reads the input, the stored output and the program's output, and prints 1 for a right one, else 0.
"""

from __future__ import annotations

import contextlib
import io
import sys
from typing import Any

SOURCE = ""
FILES = ("input.txt", "correct_output.txt", "solution_output.txt")


def check(input: str, output: str, expected: str) -> bool:
    """Return what the checker says of the output. Raises: ValueError if it says neither 1 nor 0."""
    for name, text in zip(FILES, (input, expected, output), strict=True):
        with open(name, "w", encoding="utf-8") as file:
            file.write(text)
    sys.argv = ["checker.py", *FILES]
    printed = io.StringIO()
    space: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        exec(compile(SOURCE, "checker.py", "exec"), space)
    words = printed.getvalue().split()
    if words and words[-1] in ("0", "0.0", "False"):
        return False
    if words and words[-1] in ("1", "1.0", "100", "True"):
        return True
    raise ValueError(f"the checker printed {printed.getvalue()[-60:]!r}, and neither 1 nor 0")
