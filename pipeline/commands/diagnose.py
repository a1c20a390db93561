"""`verizero diagnose`: why a run does not learn, from the files that it has written, or will not, from its recipe."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verizero.pipeline.checks.finding import Finding
from verizero.pipeline.commands.arguments import add_overrides
from verizero.pipeline.config.recipes import recipe_and_folder
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.shown import in_json, one_line, show

if TYPE_CHECKING:
    from verizero.pipeline.checks.diagnosis import Diagnosis

FOUND = 3
"""Exit status where a problem was found, for scripts that watch runs."""
WIDTH = 110


def add(commands: Any) -> None:
    command = commands.add_parser("diagnose", help="why a run does not learn, or a recipe will not, with what shows it")
    command.add_argument(
        "paths",
        nargs="*",
        type=Path,
        metavar="PATH",
        help="the folder of a run, also one that is under way; or logs of another trainer, its script among them",
    )
    command.add_argument("--from", dest="tool", metavar="TRAINER", help="who wrote the logs: trl or verl")
    command.add_argument(
        "--before", metavar="RECIPE", help="check a recipe before any training; a YAML file, or a name in configs/"
    )
    add_overrides(command)
    command.add_argument("--json", action="store_true", help="findings as one JSON array")
    command.add_argument("--html", type=Path, metavar="FILE", help="write one page that can be sent to a colleague")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print what was found, the most likely cause first. Return 3 if there is a problem, else 0."""
    if (arguments.before is None) == (not arguments.paths):
        raise ConfigError("give the PATH of a run, or --before RECIPE")
    if arguments.before is not None:
        return run_before(*recipe_and_folder(arguments.before, arguments.set), arguments.json)
    if arguments.set:
        raise ConfigError("--set changes a recipe, and a run has its own; give it with --before RECIPE")
    from verizero.pipeline.checks.diagnosis import diagnosed

    diagnosis = diagnosed(arguments.paths, arguments.tool)
    if arguments.html is not None:
        from verizero.pipeline.checks.page import write_page

        write_page(diagnosis, arguments.html)
    show(as_json(diagnosis.findings) if arguments.json else as_text(diagnosis))
    return status_of(diagnosis.findings)


def run_before(config: RunConfig, base: Path, is_json: bool = False) -> int:
    """Check a recipe, and print what was found and each check, tried or not. In JSON the checks go to stderr."""
    from verizero.pipeline.checks.before.checks import check
    from verizero.pipeline.commands.rate import look

    checks, findings = check(config, base, look)
    num_tried = sum(c.tried for c in checks)
    looked = "\n".join([f"{num_tried} of {len(checks)} checks were tried, without training:", *map(str, checks)])
    if is_json:
        show(as_json(findings))
        show(looked, is_error=True)
    else:
        nothing = "Nothing was found." if num_tried else "Nothing could be tried."
        show("\n\n".join([*map(_paragraph, findings), looked] if findings else [nothing, looked]))
    return status_of(findings)


def status_of(findings: Sequence[Finding]) -> int:
    """Return the exit status of the command."""
    return FOUND if any(f.level == "problem" for f in findings) else 0


def as_json(findings: Sequence[Finding]) -> str:
    """Return the findings as one JSON array."""
    return in_json([asdict(f) | {"explains": sorted(f.explains)} for f in findings], indent=1)


def as_text(diagnosis: Diagnosis) -> str:
    """Return the findings as paragraphs, or a line that says what was looked for."""
    findings = "\n\n".join(map(_paragraph, diagnosis.findings)) or diagnosis.facts.without_cause
    looked = "\n".join([f"{diagnosis.looked}.", *diagnosis.notes])
    return "\n\n".join(filter(None, (diagnosis.ended, findings, looked)))


def _paragraph(finding: Finding) -> str:
    head = f"{finding.level.upper()}  {finding.cause}  (confidence {finding.confidence:.2f})"
    lines = [head, *textwrap.wrap(finding.sentence, WIDTH, initial_indent="  ", subsequent_indent="  ")]
    lines += [f"    {one_line(str(evidence))}" for evidence in finding.evidence]
    lines += textwrap.wrap(f"do: {finding.remedy}", WIDTH, initial_indent="  ", subsequent_indent="      ")
    return "\n".join(lines)
