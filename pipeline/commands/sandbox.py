"""`verizero sandbox serve`: run programs for other machines."""

from __future__ import annotations

import argparse
import os
from typing import Any

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.shown import show


def add(commands: Any) -> None:
    """Add the command and its action to the parser."""
    sandbox = commands.add_parser("sandbox", help="run programs for other machines")
    actions = sandbox.add_subparsers(required=True, metavar="action")
    service = actions.add_parser(
        "serve", help="run programs over HTTP; a recipe names the service in sandbox.url", allow_abbrev=False
    )
    service.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1")
    service.add_argument("--port", type=int, default=8080, help="default: 8080; 0 takes any free port")
    service.add_argument(
        "--token-env", default="SANDBOX_TOKEN", help="variable with the token; default: a new one, which is printed"
    )
    service.add_argument("--workers", type=int, help="programs at one time; default: two per core")
    service.add_argument("--packages", default="", help="installed packages that programs may import: numpy,scipy")
    service.add_argument("--min-level", type=int, default=2, choices=range(4), help="default: 2")
    service.set_defaults(run=serve)


def serve(arguments: argparse.Namespace) -> None:
    """Run programs over HTTP until SIGINT or SIGTERM. Raises: ConfigError for a wrong setting or port."""
    from verizero import sandbox
    from verizero.sandbox.serve import SandboxService

    host, port, token = arguments.host, arguments.port, os.environ.get(arguments.token_env)
    try:
        packages = [name for name in arguments.packages.split(",") if name]
        with sandbox.Pool(arguments.workers, arguments.min_level, packages=packages) as pool:
            service = SandboxService(pool, host, port, token)
            show(f"sandbox at level {pool.isolation.level} on {service.address}")
            if not token:
                show(f"token: {service.token} (a new one; {arguments.token_env} can hold your own)")
            service.run()
    except ValueError as exc:
        raise ConfigError(str(exc)) from exc
    except OSError as exc:
        raise ConfigError(f"cannot serve on {host}:{port}: {exc.strerror or exc}; choose another --port") from exc
