"""Go through the rows of a source, and count those that are loaded and skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from verizero.pipeline.data.demonstrated_episodes import as_value
from verizero.pipeline.data.files import PlacedRow
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Prompt

T = TypeVar("T")


def row_of(prompt: Prompt) -> dict[str, Any]:
    """Return the prompt as a row, as in a user's file."""
    row = {
        "id": prompt.id,
        "question": prompt.question,
        "answer": prompt.reference,
        "domain": prompt.domain,
        "verifier": prompt.verifier,
    }
    extra = {
        "demonstration": as_value(prompt.demonstration),
        "system": prompt.system,
        "environment": prompt.environment,
        "asked": prompt.message,
    }
    return row | {k: v for k, v in extra.items() if v is not None}


@dataclass(slots=True)
class SourceCounts:
    """Counts of one source's rows. `skipped` counts by reason; `examples` has the first row of each reason."""

    label: str
    num_read: int = 0
    num_loaded: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    what: str = "prompts"
    left_out: list[tuple[Any, str]] = field(default_factory=list)
    """(row, reason) of rows that are written to a file for people."""

    def skip(self, reason: str, example: str) -> None:
        """Count a skipped row."""
        self.skipped[reason] = self.skipped.get(reason, 0) + 1
        self.examples.setdefault(reason, example)

    def leave_out(self, reason: str, example: str, row: Any, why: str) -> None:
        """Count a skipped row, and keep it for people."""
        self.skip(reason, example)
        self.left_out.append((row, why))

    def __str__(self) -> str:
        skips = [f"{n} {reason} (first: {self.examples[reason]})" for reason, n in self.skipped.items()]
        text = f"{self.label}: {self.num_loaded} {self.what} of {self.num_read} rows read"
        return text + (f"; skipped {', '.join(skips)}" if skips else "")


def good_rows(
    rows: Iterable[PlacedRow],
    counts: SourceCounts,
    on_bad_row: Literal["error", "skip"],
    make: Callable[[Mapping[str, Any], int], T],
) -> Iterator[tuple[str, Mapping[str, Any], T]]:
    """Yield (place, row, `make(row, number)`) for each good row.

    Raises: DataError naming place and remedy for the first that it could not, unless those are skipped.
    """
    for place, number, row in rows:
        counts.num_read += 1
        try:
            if isinstance(row, DataError):
                raise row
            made = make(row, number)
        except DataError as exc:
            # Errors of reading name the place already.
            problem = str(exc) if str(exc).startswith(place) else f"{place}: {exc}"
            if on_bad_row == "error":
                raise DataError(f"{problem}; correct the row or the mapping, or set on_bad_row: skip") from exc
            counts.leave_out("bad rows", problem, str(exc) if isinstance(row, DataError) else row, problem)
            continue
        yield place, row, made
