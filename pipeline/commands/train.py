"""`verizero train`: run a recipe, in this process or as a group of ranks, shown by Prefect or without it."""

from __future__ import annotations

import argparse
import json
import os
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, get_args

from verizero.pipeline.commands.arguments import CONTINUES, add_overrides
from verizero.pipeline.commands.report import print_result
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.recipes import Resume, find_recipe, run_folder
from verizero.pipeline.errors import ConfigError, require_training
from verizero.pipeline.models.gguf_file import check_model_is_there
from verizero.pipeline.report.progress import for_terminal
from verizero.pipeline.shown import show


def add(commands: Any) -> None:
    command = commands.add_parser("train", help="run a recipe: data, SFT, RL rounds, evaluation, report")
    command.add_argument(
        "recipe", help="a YAML file, or the name of a recipe in configs/; or a model, if DATA is given"
    )
    command.add_argument(
        "data", nargs="?", help="a file or a hub id, on which the model is trained: no recipe is needed"
    )
    add_overrides(command)
    command.add_argument(
        "--reward", action="append", help="with DATA: file.py:function, or the name of a verifier; repeatable"
    )
    command.add_argument("--success", type=float, help="with DATA: the reward from which on a response counts as right")
    command.add_argument("--evaluation", help="with DATA: held-out data; default: a tenth of the questions")
    command.add_argument("--steps", type=int, help="with DATA: optimiser steps")
    command.add_argument("--name", help="with DATA: the run's name, default: of model and data")
    command.add_argument("--stages", help="only these stages of the recipe, e.g. sft,rl")
    command.add_argument(
        "--resume",
        choices=get_args(Resume),
        default="auto",
        help="auto (default): begin a run, or continue the one of this name; never: refuse if there is one; must: "
        "refuse if there is none; changed: continue, also with a reward function that changed",
    )
    command.add_argument("--no-prefect", action="store_true", help="run in this process, without an orchestrator")
    command.set_defaults(run=run, after_stop=CONTINUES)


def run(arguments: argparse.Namespace) -> None:
    """Train, then print the result. In a group of ranks the process that started the group prints it."""
    require_training()
    path = recipe_for(arguments)
    stages = [name.strip() for name in (arguments.stages or "").split(",") if name]
    config = load_recipe(path, arguments.set, stages)
    if config.model.path is not None:
        # Check the model now, before ranks or a server start, which takes long.
        check_model_is_there(config.model.path, config.model.revision)
    folder, is_first_rank = run_folder(config), True
    if config.launch.kind != "none" or "RANK" in os.environ:
        from verizero.pipeline.launch import is_rank, join_as_rank, launch, served_here

        # This process only launches: each rank runs this command again.
        if not is_rank():
            argv = ["train", arguments.recipe, "--resume", arguments.resume]
            argv += [word for change in arguments.set for word in ("--set", change)]
            argv += ["--stages", arguments.stages] if arguments.stages else []
            launch(config.launch, [*argv, *(["--no-prefect"] if arguments.no_prefect else [])], folder)
            print_result(folder, json.loads((folder / "summary.json").read_text()))
            return
        if served_here(config.launch, folder):
            return
        is_first_rank = join_as_rank(config.launch, folder) == 0
    with ExitStack() as stack:
        progress = stack.enter_context(closing(for_terminal(beats=is_first_rank)))
        progress.say(f"{config.name}: starts")
        progress.under_way("loads its libraries")
        orchestrator = None
        # Only rank 0 runs under Prefect, so that a run appears once in its UI.
        if is_first_rank and not arguments.no_prefect:
            from verizero.flows.local import prefect_server

            orchestrator = stack.enter_context(prefect_server(config, progress))
        from verizero.pipeline.whole_run import train

        # The same function with Prefect and without: an orchestrator calls its parts as flows and tasks.
        summary = train(config, path.resolve().parent, folder, arguments.resume, progress, orchestrator)
    if config.launch.kind == "none" and is_first_rank:
        print_result(folder, summary)


def recipe_for(arguments: argparse.Namespace) -> Path:
    """Return the recipe that is named. For a model and data write one, say what was guessed, and name it."""
    if arguments.data is None:
        alone = [n for n in ("reward", "success", "evaluation", "steps", "name") if getattr(arguments, n) is not None]
        if alone:
            raise ConfigError(f"--{alone[0]} goes with a model and data; a recipe has its own: use --set")
        return find_recipe(arguments.recipe)
    from verizero.pipeline.api.recipe import STEPS, Wish, write_recipe

    rewards = arguments.reward or []
    path, lines = write_recipe(
        Wish(
            model=arguments.recipe,
            data=arguments.data,
            reward=rewards[0] if len(rewards) == 1 else rewards or None,
            evaluation=arguments.evaluation,
            name=arguments.name,
            steps=STEPS if arguments.steps is None else arguments.steps,
            success=arguments.success,
        )
    )
    show("\n".join(lines))
    arguments.recipe, arguments.data = str(path), None  # the ranks of a group are started with the recipe
    return path
