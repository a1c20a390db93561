"""`verizero verify`: grade rows, or prove a verifier on labelled rows."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path
from typing import Any

from verizero.pipeline.commands.arguments import object_of
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.shown import show


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("verify", help="grade JSONL rows {id, verifier, reference, response}")
    command.add_argument("rows", nargs="?", type=Path, help="a file; default: standard input")
    command.add_argument("--batch", type=int, default=1, help="rows graded together before lines are written")
    command.add_argument("--verifier", help="for rows that name none; a name or file.py:function")
    command.add_argument("--check", metavar="VERIFIER", help="prove a verifier on the rows instead (name or file.py:f)")
    command.add_argument("--params", default="{}", metavar="JSON", help="parameters of that verifier, an object")
    command.set_defaults(run=run, after_stop="Rows without a line of output were not graded.")


def run(arguments: argparse.Namespace) -> int:
    """Write a verdict a line, or with --check the report; return 1 for bad rows, no graded row, or a failed check."""
    from verizero.pipeline.commands.verifiers.check import check
    from verizero.pipeline.commands.verifiers.labelled_rows import Defaults, choice_of
    from verizero.pipeline.commands.verifiers.verify import verify
    from verizero.pipeline.report.progress import Lines

    _accept_any_text()
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


def _accept_any_text() -> None:
    """Let bytes that are no UTF-8 pass: rows come from models, which write them."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
