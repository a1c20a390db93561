"""`verizero report`: rebuild a run's page and summary from its files."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verizero.pipeline.shown import show


def add(commands: Any) -> None:
    command = commands.add_parser("report", help="rebuild report.html and summary.json from a run's files")
    command.add_argument("folder", type=Path, help="e.g. runs/demo")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Rebuild both files and print the result."""
    from verizero.pipeline.checks.page import cards_of
    from verizero.pipeline.report.page import build_page
    from verizero.pipeline.report.summary import build_summary

    summary = build_summary(arguments.folder)
    build_page(arguments.folder, *cards_of(arguments.folder, show))
    print_result(arguments.folder, summary)


def print_result(folder: Path, summary: Mapping[str, Any]) -> None:
    """Print what a run reached, and where its report and model are."""
    from verizero.pipeline.report.result import result_lines

    for line in result_lines(summary):
        show(line)
    show(f"report: {folder / 'report.html'}")
    show(f"model:  {folder / 'model'}")
