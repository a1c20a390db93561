"""Programs of our own as children: they import our modules and Python's, whatever files the working folder has."""

from __future__ import annotations

import os
import sys

SAFE_PATH = "PYTHONSAFEPATH"
"""Variable that does what -P does, for programs that others start for us."""


def module_command(module: str) -> list[str]:
    """Return the command that runs a module.

    With -P: `python -m` would look in the working folder first, where a user may have a `flows.py` or a `random.py`.
    """
    return [sys.executable, "-P", "-m", module]


def leave_safe_path() -> None:
    """Take the variable out of this process's environment: programs of the user's import what lies next to them."""
    os.environ.pop(SAFE_PATH, None)
