"""Verify a stream: rows in, verdicts out, in the same order, each as soon as it is known."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from pipeline.commands.verifiers.labelled_rows import BadRow, Defaults, Row, read_rows
from pipeline.errors import ConfigError, DataError
from pipeline.types import Verdict


@dataclass(frozen=True, slots=True)
class Verified:
    """What a stream held: counts of rows, of lines that were none, of right answers, of failed graders."""

    rows: int
    bad_lines: int
    correct: int
    infrastructure: int


def verify(lines: Iterable[str], out: TextIO, *, batch: int = 1, defaults: Defaults | None = None) -> Verified:
    """Write one line {"id", "status", "score", "reason"} per line of `lines` to `out`, in order; return the counts.

    Up to `batch` rows are graded together (faster: duplicates run once, the sandbox works in parallel), and each line
    is flushed as soon as its batch is done. A line that is no row gets status "verifier_error" and a reason that names
    line and field; the others go on.
    Raises: ConfigError if batch is below 1.
    """
    if batch < 1:
        raise ConfigError(f"batch must be >= 1, got {batch}")
    rows = bad = correct = infrastructure = 0
    for some in _batches(read_rows(lines, defaults), batch):
        for row, verdict in zip(some, verdicts_of(some), strict=True):
            rows += isinstance(row, Row)
            bad += isinstance(row, BadRow)
            correct += verdict.is_correct
            infrastructure += verdict.is_infrastructure and isinstance(row, Row)
            line = {"id": row.id, "status": verdict.status, "score": verdict.score, "reason": verdict.reason}
            out.write(json.dumps(line, ensure_ascii=False) + "\n")
            out.flush()
    return Verified(rows, bad, correct, infrastructure)


def verify_file(
    rows: Path, out: Path, verifier: str | None = None, batch: int = 1, most: int = 100
) -> tuple[Verified, list[dict[str, Any]]]:
    """`verify` from one file into another; the counts, and the first `most` lines that were written.

    What `out` held before is replaced when all is graded, and stays where that fails.
    Raises: DataError for a file that cannot be read or written; ConfigError if batch is below 1.
    """
    begun = out.with_name(f"{out.name}.begun")
    try:
        if out.exists() and out.samefile(rows):
            raise DataError(f"verdicts would replace the rows in {rows}; save them to another file")
        with rows.open(encoding="utf-8", errors="replace") as lines:
            with begun.open("w", encoding="utf-8", errors="backslashreplace") as file:
                counts = verify(lines, file, batch=batch, defaults=Defaults(verifier=verifier) if verifier else None)
        begun.replace(out)
        with out.open(encoding="utf-8") as written:
            return counts, [json.loads(line) for line in islice(written, most)]
    except OSError as exc:
        raise DataError(
            f"{exc.filename}: {exc.strerror or exc}; give a file of JSON lines, and room beside it"
        ) from exc
    finally:
        begun.unlink(missing_ok=True)


def verdicts_of(rows: Iterable[Row | BadRow]) -> list[Verdict]:
    """One verdict per row, in order; rows of one verifier and parameters are graded together."""
    given = list(rows)
    found: dict[int, Verdict] = {}
    by_key: dict[str, list[int]] = {}
    for i, row in enumerate(given):
        if isinstance(row, BadRow):
            found[i] = Verdict("verifier_error", reason=row.problem)
        elif row.response is None:
            found[i] = Verdict("verifier_error", reason=f"line {row.line}: field 'response': missing")
        else:
            by_key.setdefault(row.key, []).append(i)
    for places in by_key.values():
        some = [row for i in places if isinstance(row := given[i], Row)]
        found.update(zip(places, some[0].verifier.score([r.attempt() for r in some]), strict=True))
    return [found[i] for i in range(len(given))]


def _batches(rows: Iterable[Row | BadRow], size: int) -> Iterator[list[Row | BadRow]]:
    some: list[Row | BadRow] = []
    for row in rows:
        some.append(row)
        if len(some) == size:
            yield some
            some = []
    if some:
        yield some
