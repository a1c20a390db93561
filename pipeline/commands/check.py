"""`verizero check`: the objective, doctor, diagnose --before and plan of a recipe, in one short page."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from verizero.pipeline.checks.machine import examine
from verizero.pipeline.commands.arguments import add_recipe
from verizero.pipeline.commands.diagnose import run_before
from verizero.pipeline.commands.doctor import line_of
from verizero.pipeline.commands.plan import GPU, GPUS, show_plans
from verizero.pipeline.config.recipes import recipe_and_folder
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import VerizeroError
from verizero.pipeline.shown import show


def add(commands: Any) -> None:
    command = commands.add_parser(
        "check", help="before a run: its objective, its data and graders, this machine, memory and time"
    )
    add_recipe(command)
    command.add_argument("--gpus", type=int, help="plan memory and time for so many GPUs; default: no plan")
    command.add_argument("--gpu", help="plan for such a GPU, as `verizero plan` knows them; default: h100")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print all parts. Return 3 for a problem of the recipe, else 1 if it cannot run as it is, else 0."""
    config, base = recipe_and_folder(arguments.recipe, arguments.set)

    def objective() -> int:
        show(objectives(config))
        return 0

    def machine() -> int:
        here = examine(config, base)
        show("\n".join(line_of(c) for c in here.checks if c.name in here.required or c.findings))
        return 0 if here.is_usable else 1

    parts: dict[str, Callable[[], int]] = {
        "The objective": objective,
        "Data and graders (verizero diagnose --before)": partial(run_before, config, base),
        "This machine (verizero doctor)": machine,
    }
    if arguments.gpus is not None or arguments.gpu is not None:
        gpus, gpu = GPUS if arguments.gpus is None else arguments.gpus, arguments.gpu or GPU
        parts["Memory and time (verizero plan)"] = partial(show_plans, config, gpus, gpu)
    return max(_shown(title, part) for title, part in parts.items())


def _shown(title: str, part: Callable[[], int]) -> int:
    """Print a part under its title, and return its status. One that fails does not hide the others."""
    show(f"== {title}")
    try:
        status = part()
    except VerizeroError as exc:
        show(f"{exc}")
        status = 1
    show("")
    return status


def objectives(config: RunConfig) -> str:
    """Return the objective of each stage that has one as a formula with its numbers, or a line that there is none."""
    pages = {s.name: page for s in config.stages if (page := config.section_of(s).explain(config))}
    if not pages:
        return "this recipe has no stage of RL, preferences, reward models or distillation"
    if len(pages) == 1:
        return next(iter(pages.values()))
    return "\n\n".join(f"stage {name}\n{page}" for name, page in pages.items())
