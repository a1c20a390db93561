"""`verizero train`: run a recipe, in this process, as a Prefect flow, or as a group of ranks."""

from __future__ import annotations

import argparse
import json
import os
from contextlib import closing
from typing import Any

from verizero.pipeline.commands.arguments import add_recipe
from verizero.pipeline.commands.report import print_result
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.recipes import find_recipe, run_folder
from verizero.pipeline.models.gguf_file import require_model
from verizero.pipeline.report.progress import for_terminal


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("train", help="run a recipe: data, SFT, RL rounds, evaluation, report")
    add_recipe(command)
    command.add_argument("--stages", help="only these stages of the recipe, e.g. sft,rl")
    command.add_argument(
        "--resume", choices=("auto", "never", "must"), default="auto", help="continue a run of this name; default: auto"
    )
    command.add_argument("--no-prefect", action="store_true", help="run in this process, without an orchestrator")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Train, then print the result. In a group of ranks the process that started the group prints it."""
    path = find_recipe(arguments.recipe)
    stages = [name.strip() for name in (arguments.stages or "").split(",") if name]
    config = load_recipe(path, arguments.set, stages)
    if config.model.path is not None:
        # Now: a group of ranks or a server would first take its time to start.
        require_model(config.model.path, config.model.revision)
    is_first = True
    if config.launch.kind != "none" or "RANK" in os.environ:
        from verizero.pipeline.launch import as_rank, is_rank, launch

        folder = run_folder(config)
        # This process only launches; the ranks run this command again, as ranks.
        if not is_rank():
            launch(config.launch, words_of(arguments), folder)
            print_result(folder, json.loads((folder / "summary.json").read_text()))
            return
        is_first = as_rank(config.launch, folder) == 0
    base_dir = path.resolve().parent
    # Only the first rank is a flow; one run must not appear once for each rank.
    with closing(for_terminal(beats=is_first)) as progress:
        progress.say(f"{config.name}: starts")
        progress.under_way("loads its libraries")
        if arguments.no_prefect or not is_first:
            from verizero.pipeline.models.load import quiet
            from verizero.pipeline.whole_run import train

            quiet()
            folder = run_folder(config)
            summary = train(config, base_dir, folder, arguments.resume, progress)
        else:
            from verizero.flows.local import run_here

            folder, summary = run_here(config, base_dir, arguments.resume, progress)
    if config.launch.kind == "none" and is_first:
        print_result(folder, summary)


def words_of(arguments: argparse.Namespace) -> list[str]:
    """Return the words of this command line, which each rank is started with."""
    words = ["train", arguments.recipe, "--resume", arguments.resume]
    words += [word for change in arguments.set for word in ("--set", change)]
    words += ["--stages", arguments.stages] if arguments.stages else []
    return [*words, *(["--no-prefect"] if arguments.no_prefect else [])]
