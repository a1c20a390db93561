"""Programs of our own as children: they import our modules and Python's, whatever files the working folder has."""

from __future__ import annotations

import os
import sys
from pathlib import Path

SAFE_PATH = "PYTHONSAFEPATH"
"""Variable that does what -P does, for programs that others start for us."""


ROOT = str(Path(__file__).absolute().parents[2])
"""The folder that has the package `verizero`: of a clone, or of installed packages."""


def import_root() -> str | None:
    """Return the folder by which a child must find this package: ROOT if this process finds it there, else None.

    An installed package needs none. In a clone that folder also has top-level folders with common names, as `verifiers`
    and `pipeline`, which must not hide a library or a file of the user's.
    """
    return ROOT if any(os.path.abspath(folder) == ROOT for folder in sys.path) and not _is_site(ROOT) else None


def import_path() -> dict[str, str]:
    """Return the variable PYTHONPATH with which a child finds this package where this process does."""
    folders = [*filter(None, [import_root()]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {"PYTHONPATH": os.pathsep.join(folders)}


def _is_site(folder: str) -> bool:
    return os.path.basename(folder) in ("site-packages", "dist-packages")


def module_command(module: str) -> list[str]:
    """Return the command that runs a module.

    With -P: `python -m` would look in the working folder first, where a user may have a `flows.py` or a `random.py`.
    """
    return [sys.executable, "-P", "-m", module]


def leave_safe_path() -> None:
    """Take the variable out of this process's environment: programs of the user's import what lies next to them."""
    os.environ.pop(SAFE_PATH, None)
