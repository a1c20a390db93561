"""Commands of our own child processes, which import this package and no file of the working folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

SAFE_PATH = "PYTHONSAFEPATH"
"""The environment variable that has the effect of -P, for programs that a launcher starts."""


ROOT = str(Path(__file__).absolute().parents[3])
"""The folder with the package `verizero`: that of a clone, or that of installed packages."""


def import_root() -> str | None:
    """Return the folder by which a child must find this package: ROOT if this process finds it there, else None.

    An installed package needs none. In a clone that folder also has top-level folders with common names, as `verifiers`
    and `pipeline`, which must not hide a library or a file of the user's.
    """
    return ROOT if any(os.path.abspath(folder) == ROOT for folder in sys.path) and not _is_site(ROOT) else None


def import_path() -> dict[str, str]:
    """Return the variable PYTHONPATH with which a child imports this package from the same folder as this process."""
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
    """Remove the variable from this process's environment: the user's own programs may import files next to them."""
    os.environ.pop(SAFE_PATH, None)
