"""`verizero new`: copy the example of a verifier or an environment, with its tests and a recipe, under a new name."""

from __future__ import annotations

import argparse
import keyword
from pathlib import Path
from typing import Any, Literal

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.shown import show

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = {"verifier": "sorted_letters", "environment": "letter_game"}
"""The name of each example, which its files have, and their names."""


def add(commands: Any) -> None:
    command = commands.add_parser("new", help="write a new verifier or environment with its tests and a recipe")
    command.add_argument("kind", choices=tuple(NAMES))
    command.add_argument("name", help="its name, e.g. my_domain")
    command.add_argument("--folder", type=Path, default=Path(), help="default: the working folder")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Write the files and print their paths."""
    for path in new_part(arguments.kind, arguments.name, arguments.folder):
        show(f"wrote {path}")


def new_part(kind: Literal["verifier", "environment"], name: str, folder: Path) -> list[Path]:
    """Copy the example of that kind as `name`, which works and is meant to be replaced; return the files' paths.

    Raises: ConfigError if the name is not an identifier, is taken, or a file exists already.
    """
    from verizero.pipeline.registry import names

    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise ConfigError(f"{kind} name must be a Python identifier such as my_domain, got {name!r}")
    if name in names("verifiers" if kind == "verifier" else "environments"):
        raise ConfigError(f"{kind} {name!r} is already installed; choose another name")
    examples = sorted(p for p in (EXAMPLES / kind).iterdir() if p.is_file())
    written = {folder / p.name.replace(NAMES[kind], name): p for p in examples}
    folder.mkdir(parents=True, exist_ok=True)
    if there := [path for path in written if path.exists()]:
        raise ConfigError(f"{there[0]} is already there; choose another name or folder")
    for path, example in written.items():
        path.write_text(example.read_text(encoding="utf-8").replace(NAMES[kind], name), encoding="utf-8")
    return list(written)
