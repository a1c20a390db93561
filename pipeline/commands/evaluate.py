"""`verizero evaluate`: measure a model on a recipe's held-out prompts."""

from __future__ import annotations

import argparse
from typing import Any

from verizero.pipeline.commands.arguments import add_model, add_recipe, recipe_with_model
from verizero.pipeline.shown import in_json, show


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("evaluate", help="measure a model on a recipe's held-out prompts")
    add_recipe(command)
    add_model(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Print the measures of each domain as JSON."""
    from verizero.pipeline.models.load import quiet
    from verizero.pipeline.report.progress import Lines
    from verizero.pipeline.whole_run import evaluate_model

    quiet()
    show(in_json(evaluate_model(*recipe_with_model(arguments), Lines()), indent=1))
