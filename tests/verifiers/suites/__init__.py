"""Programs with tests, in text files: `=== name`, the program, `--- tests`, and what the reason holds if it fails."""

from pathlib import Path
from typing import Any, NamedTuple


class Row(NamedTuple):
    """A program, its reference, and a part of the reason that its verdict must give."""

    program: str
    reference: Any
    reason: str = ""


def rows_of(name: str) -> dict[str, Row]:
    """Return the rows of one file by name."""
    rows = {}
    for part in _text(name).split("=== ")[1:]:
        title, _, rest = part.partition("\n")
        program, _, rest = rest.partition("\n--- tests\n")
        tests, _, reason = rest.partition("\n--- reason\n")
        fn = tests.partition("\n")[0].partition("# fn: ")[2]
        reference = {"tests": tests.strip("\n")} | ({"fn": fn} if fn else {})
        rows[title] = Row(program, reference, reason.strip())
    return rows


def lines_of(name: str) -> list[str]:
    """Return the lines of one file."""
    return _text(name).splitlines()


def _text(name: str) -> str:
    return (Path(__file__).parent / f"{name}.txt").read_text()
