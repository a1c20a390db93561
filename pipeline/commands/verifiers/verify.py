"""Verify a stream: rows in, verdicts out, in the same order and without delay."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from verizero.pipeline.commands.verifiers.labelled_rows import BadRow, Defaults, Row, read_rows, score_all
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.shown import in_json
from verizero.pipeline.types import Verdict


@dataclass(frozen=True, slots=True)
class Verified:
    """Counts of a stream: rows, invalid lines, right answers, failed graders."""

    rows: int
    bad_lines: int
    correct: int
    infrastructure: int


def verify(lines: Iterable[str], out: TextIO, *, batch: int = 1, defaults: Defaults | None = None) -> Verified:
    """Write one line {"id", "status", "score", "reason"} per line of `lines` to `out`, in order; return the counts.

    Up to `batch` rows are graded together (faster: duplicates run once, the sandbox works in parallel), and each line
    is flushed as soon as its batch is done. An invalid line gets status "verifier_error" and a reason that names line
    and field.
    Raises: ConfigError if batch is below 1.
    """
    if batch < 1:
        raise ConfigError(f"batch must be >= 1, got {batch}")
    rows = bad = correct = infrastructure = 0
    stream = read_rows(lines, defaults)
    while some := list(islice(stream, batch)):
        for row, verdict in zip(some, _verdicts(some), strict=True):
            rows += isinstance(row, Row)
            bad += isinstance(row, BadRow)
            correct += verdict.is_correct
            infrastructure += verdict.is_infrastructure and isinstance(row, Row)
            line = {"id": row.id, "status": verdict.status, "score": verdict.score, "reason": verdict.reason}
            out.write(in_json(line) + "\n")
            out.flush()
    return Verified(rows, bad, correct, infrastructure)


def verify_file(
    rows: Path, out: Path, verifier: str | None = None, batch: int = 1, most: int = 100
) -> tuple[Verified, list[dict[str, Any]]]:
    """Verify one file into another; return the counts, and the first `most` lines that were written.

    An earlier file `out` is replaced when all rows are graded, and kept if that fails.
    Raises: DataError for a file that cannot be read or written; ConfigError if batch is below 1.
    """
    begun = out.with_name(f"{out.name}.begun")
    try:
        if out.exists() and out.samefile(rows):
            raise DataError(f"verdicts would replace the rows in {rows}; save them to another file")
        with rows.open(encoding="utf-8", errors="replace") as lines:
            with begun.open("w", encoding="utf-8", errors="backslashreplace") as file:
                counts = verify(lines, file, batch=batch, defaults=Defaults(verifier=verifier) if verifier else None)
        # Renamed only when complete: a failure leaves the earlier verdicts as they were.
        begun.replace(out)
        with out.open(encoding="utf-8") as written:
            return counts, [json.loads(line) for line in islice(written, most)]
    except OSError as exc:
        raise DataError(
            f"{exc.filename}: {exc.strerror or exc}; give a file of JSON lines, in a folder with room for another"
        ) from exc
    finally:
        begun.unlink(missing_ok=True)


def _verdicts(rows: Sequence[Row | BadRow]) -> list[Verdict]:
    problems = {
        i: row.problem if isinstance(row, BadRow) else f"line {row.line}: field 'response': missing"
        for i, row in enumerate(rows)
        if isinstance(row, BadRow) or row.response is None
    }
    good = [row for i, row in enumerate(rows) if i not in problems and isinstance(row, Row)]
    graded = iter(score_all([row.key for row in good], [row.attempt() for row in good]))
    return [Verdict("verifier_error", reason=problems[i]) if i in problems else next(graded) for i in range(len(rows))]
