"""`verizero new`: write a new verifier or environment with its tests and a recipe."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.shown import show


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("new", help="write a new verifier or environment with its tests and a recipe")
    command.add_argument("kind", choices=("verifier", "environment"))
    command.add_argument("name", help="its name, e.g. my_domain")
    command.add_argument("--folder", type=Path, default=Path(), help="default: the working folder")
    command.add_argument(
        "--model", help="verifier: the pretrained model that its recipe trains; default: a tiny new one"
    )
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Write the files and print their paths."""
    from verizero.pipeline.commands.environments.scaffold import new_environment
    from verizero.pipeline.commands.verifiers.scaffold import new_verifier

    if arguments.kind == "verifier":
        paths = new_verifier(arguments.name, arguments.folder, arguments.model)
    elif arguments.model is not None:
        raise ConfigError(f"--model={arguments.model} is for the recipe of a verifier; drop it")
    else:
        paths = new_environment(arguments.name, arguments.folder)
    for path in paths:
        show(f"wrote {path}")
