"""Finds the interpreters of other virtual environments, which have packages that ours need not have."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def interpreter(value: str | None, base: Path | None) -> str:
    """Return the path of an interpreter: this one for None, that of a virtual environment for its folder.

    Relative paths start from `base`; a bare name without such a file is searched in PATH.
    Raises: ValueError if there is none.
    """
    if value is None:
        return sys.executable
    path = (base or Path.cwd()) / Path(value).expanduser()
    # Links are kept: the interpreter of a virtual environment is one.
    program = path / "bin" / "python" if path.is_dir() else path
    if os.sep not in value and not program.exists():
        program = Path(shutil.which(value) or program)
    if not os.access(program, os.X_OK) or program.is_dir():
        raise ValueError(
            f"python: no interpreter at {program}; give its path, or the folder of a virtual environment "
            "(python -m venv FOLDER)"
        )
    return str(program.absolute())
