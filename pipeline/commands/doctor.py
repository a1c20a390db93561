"""`verizero doctor`: what is installed, what works on this machine, and what to install."""

from __future__ import annotations

import argparse
from typing import Any

from verizero.pipeline.checks.finding import Checked
from verizero.pipeline.checks.machine import Machine, examine
from verizero.pipeline.commands.arguments import add_overrides
from verizero.pipeline.config.recipes import recipe_and_folder
from verizero.pipeline.shown import show


def add(commands: Any) -> None:
    command = commands.add_parser("doctor", help="what is installed, what works here, and what to install")
    command.add_argument(
        "recipe", nargs="?", help="require also what this recipe needs; a YAML file, or a name in configs/"
    )
    add_overrides(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the checks; return 1 if this machine cannot train (the recipe, where one is named)."""
    machine = examine(*recipe_and_folder(arguments.recipe, arguments.set)) if arguments.recipe else examine()
    show("\n".join([*map(line_of, machine.checks), verdict_of(machine)]))
    return 0 if machine.is_usable else 1


def line_of(check: Checked) -> str:
    """Return a check of a machine in one line."""
    mark = "BROKEN " if check.findings else "ok     " if check.tried else "missing"
    return f"{mark}  {check.name:<22} {check.result}"


def verdict_of(machine: Machine) -> str:
    """Return a line that says whether the machine can train."""
    if not machine.is_usable:
        return "this machine cannot train yet: see above"
    is_weak = any(c.name == "sandbox" and c.findings for c in machine.checks)
    return "this machine can train" + (", but no recipe whose responses are programs" if is_weak else "")
