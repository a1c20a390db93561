"""`verizero check`: doctor, explain, diagnose --before and plan of a recipe, in one short page."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from verizero.pipeline.commands import diagnose
from verizero.pipeline.commands.arguments import add_recipe
from verizero.pipeline.commands.doctor import examine
from verizero.pipeline.commands.explain import explain_recipe
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.recipes import find_recipe
from verizero.pipeline.errors import VerizeroError
from verizero.pipeline.shown import show


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "check", help="before a run: its objective, its data and graders, this machine, memory and time"
    )
    add_recipe(command)
    command.add_argument("--gpus", type=int, help="plan memory and time for so many GPUs; default: no plan")
    command.add_argument("--gpu", default="h100", help="the GPU of the plan; default: h100")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print all parts. Return 3 for a problem of the recipe, else 1 if it cannot run as it is, else 0."""
    path = find_recipe(arguments.recipe)
    config, base = load_recipe(path, arguments.set), path.resolve().parent

    def objective() -> int:
        show(explain_recipe(config))
        return 0

    def data_and_graders() -> int:
        return diagnose.run_before(config, base)

    def machine() -> int:
        diagnosis = examine(config, base)
        show("\n".join(str(f) for f in diagnosis.findings if f.required or f.state == "broken"))
        return 0 if diagnosis.is_usable else 1

    def memory_and_time() -> int:
        from verizero.pipeline.commands.plan.estimate import plan_lines, plans

        by_stage = plans(config, arguments.gpus, arguments.gpu)
        for name, plan in by_stage.items():
            show("\n".join([f"stage {name}", *plan_lines(plan, None)]))
        return 0 if all(plan.fits for plan in by_stage.values()) else 1

    parts = {
        "The objective (verizero explain)": objective,
        "Data and graders (verizero diagnose --before)": data_and_graders,
        "This machine (verizero doctor)": machine,
    }
    if arguments.gpus is not None:
        parts["Memory and time (verizero plan)"] = memory_and_time
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
