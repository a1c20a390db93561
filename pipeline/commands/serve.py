"""`verizero serve`: Prefect's server, its UI, the deployments and a runner on this machine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from verizero.pipeline.commands.arguments import add_recipes_folder
from verizero.pipeline.shown import show


def add(commands: Any) -> None:
    command = commands.add_parser("serve", help="Prefect's server and UI, the deployments and a runner, here")
    command.add_argument("--port", type=int, default=4200, help="port of the UI and the API on loopback; default: 4200")
    add_recipes_folder(command)
    command.add_argument(
        "--home", type=Path, default=Path("runs/.serve"), help="folder of database and logs; default: runs/.serve"
    )
    command.add_argument(
        "--start-timeout-s", type=float, default=300.0, help="seconds that the start may take; default: 300"
    )
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Serve until SIGINT or SIGTERM."""
    from verizero.flows.serve import serve_here

    def say(line: str) -> None:
        show(line, is_error=True)

    serve_here(arguments.home, arguments.port, arguments.recipes, arguments.start_timeout_s, say)
