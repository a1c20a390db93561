"""`verizero plan`: memory and time of a recipe on some GPUs, before it runs there."""

from __future__ import annotations

import argparse
from typing import Any

from verizero.pipeline.commands.arguments import add_recipe
from verizero.pipeline.config.recipes import recipe_and_folder
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.shown import show

GPUS, GPU = 8, "h100"


def add(commands: Any) -> None:
    command = commands.add_parser("plan", help="memory and time of a recipe on some GPUs, before it runs there")
    add_recipe(command)
    command.add_argument("--gpus", type=int, default=GPUS, help=f"default: {GPUS}")
    command.add_argument(
        "--gpu", default=GPU, help="l4, rtx4090, l40s, a100, h100, h200 or b200; cpu: the memory alone"
    )
    command.add_argument(
        "--mean-share", type=float, default=0.5, help="mean length of a response over the longest; default: 0.5"
    )
    command.add_argument(
        "--mean-prompt", type=float, help="mean tokens of a prompt; default: every prompt is the longest"
    )
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print a plan for each RL stage; return 1 where one does not fit, which for a CPU is not known."""
    config, _ = recipe_and_folder(arguments.recipe, arguments.set)
    return show_plans(config, arguments.gpus, arguments.gpu, arguments.mean_share, arguments.mean_prompt)


def show_plans(
    config: RunConfig, gpus: int, gpu: str, mean_share: float = 0.5, mean_prompt: float | None = None
) -> int:
    """Print the plans, and return the status of the command; the rest is as in `plans`. Raises: ConfigError."""
    from verizero.pipeline.plan.devices import CPU
    from verizero.pipeline.plan.estimate import lines_on_cpu, plan_lines, plans

    if gpu == CPU.name:
        show("\n".join(lines_on_cpu(config)))
        return 0
    by_stage = plans(config, gpus, gpu, mean_share, mean_prompt)
    for name, plan in by_stage.items():
        heading = [f"stage {name}"] if len(by_stage) > 1 else []
        show("\n".join([*heading, *plan_lines(plan)]))
    return 0 if all(plan.fits for plan in by_stage.values()) else 1
