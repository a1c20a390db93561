"""`verizero environment`: check an environment before a policy plays it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from verizero.pipeline.commands.arguments import object_of
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.shown import show


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("environment", help="check that an environment may be played by a policy")
    command.add_argument("rows", nargs="?", type=Path, help="rows {question, answer} to play; default: its EXAMPLE")
    command.add_argument("--check", metavar="NAME", required=True, help="a name, or file.py:function")
    command.add_argument("--params", default="{}", metavar="JSON", help="the environment's parameters, an object")
    command.add_argument("--episodes", type=int, default=100, help="episodes of each check")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the report; return 1 if a check failed."""
    from verizero.pipeline.commands.environments.check import check

    params = object_of(arguments.params, "--params", '{"tries": 5}')
    if arguments.episodes < 1:
        raise ConfigError(f"--episodes must be >= 1, got {arguments.episodes}")
    report = check(arguments.check, params, arguments.rows, episodes=arguments.episodes)
    show(report)
    return 0 if report.passed else 1
