"""`verizero plan`: memory, time and cost of a recipe on some GPUs, before it runs there."""

from __future__ import annotations

import argparse
from typing import Any

from verizero.pipeline.commands.arguments import add_recipe, recipe_of
from verizero.pipeline.shown import show


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("plan", help="memory, time and cost of a recipe on some GPUs, before it runs there")
    add_recipe(command)
    command.add_argument("--gpus", type=int, default=8, help="default: 8")
    command.add_argument(
        "--gpu", default="h100", help="l4, rtx4090, l40s, a100, h100, h200 or b200; cpu: the memory alone"
    )
    command.add_argument("--price", type=float, help="of one GPU for one hour, for the cost of 1,000 steps")
    command.add_argument(
        "--mean-share", type=float, default=0.5, help="mean length of a response over the longest; default: 0.5"
    )
    command.add_argument(
        "--mean-prompt", type=float, help="mean tokens of a prompt; default: every prompt is the longest"
    )
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print a plan for each RL stage; return 1 where one does not fit, which for a CPU is not known."""
    from verizero.pipeline.commands.plan.devices import CPU
    from verizero.pipeline.commands.plan.estimate import plan_lines, plans
    from verizero.pipeline.commands.plan.on_cpu import lines_on_cpu

    if arguments.gpu == CPU.name:
        show("\n".join(lines_on_cpu(recipe_of(arguments))))
        return 0
    by_stage = plans(recipe_of(arguments), arguments.gpus, arguments.gpu, arguments.mean_share, arguments.mean_prompt)
    for name, plan in by_stage.items():
        heading = [f"stage {name}"] if len(by_stage) > 1 else []
        show("\n".join([*heading, *plan_lines(plan, arguments.price)]))
    return 0 if all(plan.fits for plan in by_stage.values()) else 1
