"""Arguments that several commands share."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from verizero.pipeline.config.recipes import recipe_and_folder, with_model
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import ConfigError

CONTINUES = "The same command continues from the last checkpoint, if there is one."
"""A line after Ctrl-C, of commands whose runs have checkpoints."""


def add_recipe(command: argparse.ArgumentParser) -> None:
    """Add the recipe and --set."""
    command.add_argument("recipe", help="a YAML file, or the name of a recipe in configs/")
    add_overrides(command)


def add_overrides(command: argparse.ArgumentParser) -> None:
    """Add --set."""
    command.add_argument(
        "--set", action="append", default=[], metavar="a.b=c", help="override a field of the recipe; repeatable"
    )


def add_model(command: argparse.ArgumentParser) -> None:
    """Add --model, for `recipe_with_model`."""
    command.add_argument("--model", help="a Hugging Face folder; default: the recipe's own model")


def add_recipes_folder(command: argparse.ArgumentParser) -> None:
    """Add --recipes, the folder whose recipes the forms offer besides those of configs/."""
    command.add_argument(
        "--recipes", type=Path, default=Path(), help="folder of your own recipes; default: the working folder"
    )


def recipe_with_model(arguments: argparse.Namespace) -> tuple[RunConfig, Path]:
    """Return the recipe, with the model of --model in place of its own, and the recipe's folder."""
    model = with_model(arguments.model) if arguments.model else []
    return recipe_and_folder(arguments.recipe, [*arguments.set, *model])


def object_of(text: str, flag: str, example: str) -> dict[str, Any]:
    """Return the JSON object that a flag holds. Raises: ConfigError, which shows `example`."""
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise ConfigError(f"{flag}: {exc}; give an object such as '{example}'") from exc
    if not isinstance(value, dict):
        raise ConfigError(f"{flag}: expected an object such as '{example}', got {text}")
    return value
