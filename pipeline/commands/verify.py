"""`verizero verify`: grade rows, or prove a verifier on labelled rows."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from verizero.pipeline.commands.arguments import object_of
from verizero.pipeline.commands.verifiers.labelled_rows import BadRow, Defaults, Row, choice_of, read_rows, score_all
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.shown import in_json, show
from verizero.pipeline.types import Verdict


def add(commands: Any) -> None:
    command = commands.add_parser("verify", help="grade JSONL rows {id, verifier, reference, response}")
    command.add_argument("rows", nargs="?", type=Path, help="a file; default: standard input")
    command.add_argument("--batch", type=int, default=1, help="rows graded together before lines are written")
    command.add_argument("--verifier", help="for rows that name none; a name or file.py:function")
    command.add_argument("--check", metavar="VERIFIER", help="prove a verifier on the rows instead (name or file.py:f)")
    command.add_argument("--params", default="{}", metavar="JSON", help="parameters of that verifier, an object")
    command.set_defaults(run=run, after_stop="Rows without a line of output were not graded.")


def run(arguments: argparse.Namespace) -> int:
    """Write a verdict a line, or with --check the report; return 1 for bad rows, no graded row, or a failed check."""
    from verizero.pipeline.commands.verifiers.proof import check
    from verizero.pipeline.report.progress import Lines

    if isinstance(sys.stdin, io.TextIOWrapper):  # rows come from models, which write bytes that are no UTF-8
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    params = object_of(arguments.params, "--params", '{"abs_tol": 0.1}')
    if params and not (arguments.check or arguments.verifier):
        raise ConfigError("--params are those of --check or --verifier; name one of them, or drop --params")
    if arguments.check:
        if arguments.rows is None:
            show("verizero: --check needs a file of rows", is_error=True)
            return 2
        report = check(arguments.check, arguments.rows, params=params, progress=Lines())
        show(report)
        return 0 if report.passed else 1
    defaults = Defaults(verifier=choice_of(arguments.verifier, params)) if arguments.verifier else None
    if arguments.rows is None:
        counts = verify(sys.stdin, sys.stdout, batch=arguments.batch, defaults=defaults)
    else:
        try:
            lines = arguments.rows.open(encoding="utf-8", errors="replace")
        except OSError as exc:
            raise DataError(f"{arguments.rows}: {exc.strerror or exc}; give a file of JSON lines") from exc
        with lines:
            counts = verify(lines, sys.stdout, batch=arguments.batch, defaults=defaults)
    is_useless = counts.rows > 0 and counts.infrastructure == counts.rows
    return 1 if counts.bad_lines or is_useless else 0


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


def _verdicts(rows: Sequence[Row | BadRow]) -> list[Verdict]:
    problems = {
        i: row.problem if isinstance(row, BadRow) else f"line {row.line}: field 'response': missing"
        for i, row in enumerate(rows)
        if isinstance(row, BadRow) or row.response is None
    }
    good = [row for i, row in enumerate(rows) if i not in problems and isinstance(row, Row)]
    graded = iter(score_all([row.key for row in good], [row.attempt() for row in good]))
    return [Verdict("verifier_error", reason=problems[i]) if i in problems else next(graded) for i in range(len(rows))]
