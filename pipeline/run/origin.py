"""The folder that a run's recipe came from, where its own files are: environments, verifiers, programs, rows."""

from __future__ import annotations

import json
from pathlib import Path

from verizero.pipeline.errors import RunError
from verizero.pipeline.files import write_atomic

FILE = "origin.json"
"""Apart from run.json, which the report shows to people who need not know this machine's folders."""


def write_origin(folder: Path, base_dir: Path) -> None:
    """Write the recipe's folder into that of the run."""
    write_atomic(folder / FILE, json.dumps({"recipe_folder": str(base_dir.resolve())}, indent=1).encode())


def recipe_folder(folder: Path) -> Path | None:
    """Return the folder of the recipe of the run in `folder`; None for a run that did not write it down.

    Raises: RunError if the file was changed by hand, or the recipe's folder is not there any more.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        origin = Path(json.loads(path.read_text())["recipe_folder"])
    except (ValueError, LookupError, TypeError) as exc:
        raise RunError(f"{path} cannot be read ({exc}); give the folder of the recipe's files with --recipes") from exc
    if not origin.is_dir():
        raise RunError(
            f"the recipe of {folder} came from {origin}, which is not there any more; give the folder that has its "
            "files now with --recipes"
        )
    return origin
