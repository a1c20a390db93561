"""The commands that go on by themselves: verizero serve, deploy."""

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
        'with these options, e.g. "--gpus=8 --time=8:00:00"',
    )  # fmt: skip
    deploy.set_defaults(run=_deploy)


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
