"""Finds names that are similar to a wrong one, for messages: "did you mean"."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

LONGEST = 100
"""The most characters of a name that are compared: the time grows with their square."""
RUNS = Path("runs")
"""Folder of runs, if the recipe names no other."""


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "", most: int = 2) -> str:
    """Return "did you mean x or y?" with at most `most` of the known names; `otherwise` if none is similar."""
    return _question(difflib.get_close_matches(name[:LONGEST], list(known), n=most), otherwise)


def near_path(path: Path | str, otherwise: str = "", pattern: str = "*") -> str:
    """Return "did you mean x?" with files next to a missing path; `otherwise` if no name is similar.

    If its folder is missing too, the folder's name is compared. A name without a folder may also be one in RUNS.
    """
    path = Path(path)
    folder = path.parent
    if not folder.is_dir():
        return near_path(folder, otherwise) if folder.name else otherwise
    near = []
    for parent in [folder] if folder.name else [folder, RUNS]:
        names = {p.name: p for p in parent.glob(pattern) if not p.name.startswith(".")}
        near += [str(names[n]) for n in difflib.get_close_matches(path.name[:LONGEST], sorted(names), n=2)]
    return _question(near, otherwise)


def _question(near: list[str], otherwise: str) -> str:
    return f"did you mean {' or '.join(near)}?" if near else otherwise
