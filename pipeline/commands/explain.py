"""`verizero explain`: the objective of a recipe as a formula with its numbers. Loads no tensors."""

from __future__ import annotations

import argparse
from typing import Any

from verizero.pipeline.commands.arguments import add_recipe, recipe_of
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.shown import show


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("explain", help="the objective of a recipe as a formula with its numbers")
    add_recipe(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Print the page."""
    show(explain_recipe(recipe_of(arguments)))


def explain_recipe(config: RunConfig) -> str:
    """Return a page for each stage that has an objective to explain, or a line that says that the recipe has none."""
    pages = {s.name: page for s in config.stages if (page := config.section_of(s).explain(config))}
    if not pages:
        return "this recipe has no stage of RL, preferences, reward models or distillation"
    if len(pages) == 1:
        return next(iter(pages.values()))
    return "\n\n".join(f"stage {name}\n{page}" for name, page in pages.items())
