"""The commands around runs: verizero serve, deploy, campaign, promote."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError


def add_commands(commands: Any) -> None:
    """Add them to the subparsers of the command line."""
    serve = commands.add_parser("serve", help="Prefect's server and UI, the deployments and a runner, on this machine")
    serve.add_argument("--port", type=int, default=4200, help="of the UI and the API on loopback; default: 4200")
    _recipes(serve)
    serve.add_argument("--home", type=Path, default=Path("runs/.serve"), help="database and logs; default: runs/.serve")
    serve.add_argument("--start-timeout-s", type=float, default=300.0, help="default: 300")
    serve.set_defaults(run=_serve)

    deploy = commands.add_parser("deploy", help="register the deployments for a work pool of a server that runs")
    deploy.add_argument("--pool", required=True, help="a work pool of type process or kubernetes")
    _recipes(deploy)
    deploy.add_argument("--image", help="kubernetes: one in which this project is installed")
    deploy.add_argument(
        "--srun", metavar="OPTIONS", help="Slurm, a process pool on the login node: each flow is started by srun "
        'with these, e.g. --srun="--gpus=8 --time=8:00:00"',
    )  # fmt: skip
    deploy.set_defaults(run=_deploy)
    _campaign_commands(commands)


def _campaign_commands(commands: Any) -> None:
    campaign = commands.add_parser("campaign", help="the next rounds of a campaign, from its newest model")
    campaign.add_argument("name", help="its folder under campaigns/")
    campaign.add_argument("recipe", help="a YAML file, or the name of one in configs/")
    campaign.add_argument("--set", action="append", default=[], metavar="a.b=c", help="override a field; repeatable")
    campaign.add_argument("--rounds", type=int, help="RL rounds of this firing; default: 1")
    campaign.add_argument("--max-rounds", type=int, help="of all firings; then the campaign is over")
    campaign.add_argument("--max-tokens", type=int, help="generated in RL by all firings")
    campaign.add_argument("--max-hours", type=float, help="of training in all, looked at between firings")
    campaign.add_argument("--target", type=float, help="held-out pass@1 (mean of domains) that is enough")
    campaign.add_argument("--patience", type=int, help="firings without a better pass@1 that end it")
    campaign.set_defaults(run=_campaign)

    promote = commands.add_parser("promote", help="a finished run against the champion of a registry")
    promote.add_argument("run_folder", type=Path, metavar="run", help="e.g. runs/demo")
    promote.add_argument("--registry", type=Path, default=Path("registry"), help="default: registry")
    answer = promote.add_mutually_exclusive_group()
    answer.add_argument("--yes", action="store_true", help="promote it where the comparison leaves it open")
    answer.add_argument("--no", action="store_true", help="keep it back where the comparison leaves it open")
    promote.set_defaults(run=_promote)


def _recipes(command: argparse.ArgumentParser) -> None:
    command.add_argument("--recipes", type=Path, default=Path(), help="your own recipes; default: the working folder")


def _serve(arguments: argparse.Namespace) -> int:
    from flows.serve import serve_here

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    serve_here(arguments.home, arguments.port, arguments.recipes, arguments.start_timeout_s, say)
    return 0


def _deploy(arguments: argparse.Namespace) -> int:
    if not os.environ.get("PREFECT_API_URL"):
        raise ConfigError("PREFECT_API_URL is not set; set it to the server's address, e.g. http://127.0.0.1:4200/api")
    os.environ["VERIZERO_RECIPES"] = str(arguments.recipes.resolve())
    from flows.deployments import deploy

    for name in deploy(arguments.pool, arguments.recipes, arguments.image, arguments.srun):
        print(f"deployed {name}")
    return 0


def _campaign(arguments: argparse.Namespace) -> int:
    from pipeline.config.campaign import campaign_config
    from pipeline.config.recipes import Request, find_recipe, read_request
    from pipeline.launch import launch
    from pipeline.models.load import quiet
    from pipeline.commands.campaign import fire
    from pipeline.stages.progress import for_terminal
    from pipeline.stages.train import run_folder, train

    quiet()
    progress = for_terminal()

    def run(request: Request) -> None:
        config, folder = request.config, run_folder(request.config)
        if config.launch.kind == "none":
            train(config, request.base_dir, folder, "auto", progress)
        else:
            launch(config.launch, request.words("auto"), folder)

    limits = {n: getattr(arguments, n) for n in ("max_rounds", "max_tokens", "max_hours", "target", "patience")}
    config = campaign_config(name=arguments.name, rounds=arguments.rounds, **limits)
    try:
        outcome = fire(config, read_request(find_recipe(arguments.recipe), arguments.set), run, say=progress.say)
    finally:
        progress.close()
    print(outcome.said)
    return 0


def _promote(arguments: argparse.Namespace) -> int:
    from pipeline.models.load import quiet
    from pipeline.commands.promote import compare_with_champion, keep_back, promote

    quiet()
    found = compare_with_champion(arguments.run_folder, arguments.registry)
    print(found.in_words)
    decided_by = "first" if found.verdict == "first" else "interval"
    if found.verdict == "between":
        if not (arguments.yes or arguments.no):
            print("this does not decide: look at both reports, then say --yes or --no", file=sys.stderr)
            return 1
        decided_by = "a person"
    if found.verdict in ("first", "better") or (found.verdict == "between" and arguments.yes):
        print(f"promoted as {promote(found, arguments.registry, decided_by)}")
    else:
        keep_back(found, arguments.registry, decided_by)
        print("kept back")
    return 0
