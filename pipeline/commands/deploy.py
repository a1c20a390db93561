"""`verizero deploy`: register the deployments for a work pool of a Prefect server elsewhere."""

from __future__ import annotations

import argparse
import os
from typing import Any

from verizero.pipeline.commands.arguments import add_recipes_folder
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.shown import show


def add(commands: Any) -> None:
    command = commands.add_parser("deploy", help="register the deployments for a work pool of a running server")
    command.add_argument("--pool", required=True, help="a work pool of type process or kubernetes")
    add_recipes_folder(command)
    command.add_argument("--image", help="kubernetes: an image in which this project is installed")
    command.add_argument(
        "--srun", metavar="OPTIONS", help="Slurm, for a process pool on the login node: start each flow by srun with "
        'these options, e.g. --srun="--gpus=8 --time=8:00:00"',
    )  # fmt: skip
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Register the deployments and print their names. Raises: ConfigError without a server's address."""
    if not os.environ.get("PREFECT_API_URL"):
        raise ConfigError("PREFECT_API_URL is not set; set it to the server's address, e.g. http://127.0.0.1:4200/api")
    # read by verizero.flows.forms, whose list of recipes is made when it is imported
    os.environ["VERIZERO_RECIPES"] = str(arguments.recipes.resolve())
    from verizero.flows.deployments import deploy

    for name in deploy(arguments.pool, arguments.recipes, arguments.image, arguments.srun):
        show(f"deployed {name}")
