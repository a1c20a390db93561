"""`verizero diagnose`: why a run does not learn, from the files that it has written, or will not, from its recipe."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from verizero.pipeline.commands.arguments import add_overrides
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.recipes import find_recipe
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.diagnosis.ranking import causes, diagnose
from verizero.pipeline.diagnosis.run_facts import NUM_COMPARED, RunFacts, read
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.report.ended import end_of
from verizero.pipeline.shown import in_json, one_line, show

FOUND = 3
"""Exit status where a problem was found, for scripts that watch runs."""
WIDTH = 110


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("diagnose", help="why a run does not learn, or a recipe will not, with what shows it")
    what = command.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "run_folder", nargs="?", type=Path, metavar="RUN", help="the folder of a run, also one that is under way"
    )
    what.add_argument(
        "--before", metavar="RECIPE", help="check a recipe before any training: a YAML file, or a name in configs/"
    )
    add_overrides(command)
    command.add_argument("--json", action="store_true", help="findings as one JSON array")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print what was found, the most likely cause first. Return 3 if there is a problem, else 0."""
    if arguments.before is not None:
        path = find_recipe(arguments.before)
        return run_before(load_recipe(path, arguments.set), path.resolve().parent, arguments.json)
    if arguments.set:
        raise ConfigError("--set changes a recipe, and a run has its own; give it with --before RECIPE")
    reading = read(arguments.run_folder)
    findings = diagnose(reading)
    if arguments.json:
        show(as_json(findings))
    else:
        texts = (end_of(arguments.run_folder, reading.info), as_text(reading, findings))
        show("\n\n".join(filter(None, texts)))
    return status_of(findings)


def run_before(config: RunConfig, base: Path, is_json: bool = False) -> int:
    """Check a recipe, and print what was found and each check, tried or not. In JSON the checks go to stderr."""
    from verizero.pipeline.commands.preflight.checks import check

    checks, findings = check(config, base)
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


def as_text(reading: RunFacts, findings: Sequence[Finding]) -> str:
    """Return the findings as paragraphs, or a line that says what was looked for."""
    num_steps = len(reading.steps)
    looked = (
        f"{len(causes())} causes were looked for in {num_steps} RL steps and {len(reading.evaluations)} evaluations"
    )
    if num_steps < NUM_COMPARED:
        looked += f"; most of them need at least {NUM_COMPARED} steps"
    if not findings:
        return f"Nothing was found. {looked}."
    return "\n\n".join([*map(_paragraph, findings), f"{looked}."])


def _paragraph(finding: Finding) -> str:
    head = f"{finding.level.upper()}  {finding.cause}  (confidence {finding.confidence:.2f})"
    lines = [head, *textwrap.wrap(finding.sentence, WIDTH, initial_indent="  ", subsequent_indent="  ")]
    lines += [f"    {one_line(str(evidence))}" for evidence in finding.evidence]
    lines += textwrap.wrap(f"do: {finding.remedy}", WIDTH, initial_indent="  ", subsequent_indent="      ")
    return "\n".join(lines)
