"""`verizero sandbox`: run programs for other machines, or try this machine's walls."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from typing import Any

from verizero.pipeline.errors import ConfigError, IsolationError
from verizero.pipeline.shown import show

LIMITS = {
    "wall_s": (float, "most seconds of a test that a request may ask for; here and below, more is refused"),
    "cpu_s": (float, "most CPU seconds of a test"),
    "memory_mib": (int, "most memory of a program"),
    "output_kib": (int, "most output of a test"),
    "disk_mib": (int, "most size of the files of a program"),
    "processes": (int, "most threads and processes of a program"),
    "max_tests": (int, "most tests of a program"),
}
"""Limit -> its type and help."""


def add(commands: Any) -> None:
    """Add the command and its two actions to the parser."""
    sandbox = commands.add_parser("sandbox", help="run programs for other machines, or try the walls of this one")
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
    service.add_argument("--max-queue", type=int, default=1024, help="programs waiting before the answer is 429")
    service.add_argument("--packages", default="", help="installed packages that programs may import: numpy,scipy")
    for name, (kind, text) in LIMITS.items():
        service.add_argument(f"--{name.replace('_', '-')}", type=kind, help=text)
    service.set_defaults(run=serve)
    trial = actions.add_parser("check", help="try what each wall forbids, and list the walls", allow_abbrev=False)
    trial.set_defaults(run=check)
    for action in (service, trial):
        action.add_argument("--min-level", type=int, default=2, choices=range(4), help="default: 2")


def serve(arguments: argparse.Namespace) -> None:
    """Run programs over HTTP until SIGINT or SIGTERM. Raises: ConfigError for a wrong limit, queue or port."""
    from verizero import sandbox
    from verizero.sandbox.serve import MOST, SandboxService

    limits = {name: value for name in LIMITS if (value := getattr(arguments, name)) is not None}
    host, port, token = arguments.host, arguments.port, os.environ.get(arguments.token_env)
    try:
        packages = [name for name in arguments.packages.split(",") if name]
        with sandbox.Pool(arguments.workers, arguments.min_level, packages=packages) as pool:
            service = SandboxService(pool, host, port, token, arguments.max_queue, replace(MOST, **limits))
            show(f"sandbox at level {pool.isolation.level} on {service.address}")
            if not token:
                show(f"token: {service.token} (a new one; {arguments.token_env} can hold your own)")
            service.run()
    except ValueError as exc:
        raise ConfigError(str(exc)) from exc
    except OSError as exc:
        raise ConfigError(f"cannot serve on {host}:{port}: {exc.strerror or exc}; choose another --port") from exc


def check(arguments: argparse.Namespace) -> int:
    """Print the walls and the level; return 1 where the level is below --min-level."""
    from verizero import sandbox
    from verizero.pipeline.checks.machine import sandbox_checks
    from verizero.pipeline.commands.doctor import line_of

    # The trial of the walls may succeed where starting workers fails, so both are done.
    show("\n".join(map(line_of, sandbox_checks())))
    try:
        with sandbox.Pool(workers=1, min_level=arguments.min_level) as pool:
            show(f"programs run here at level {pool.isolation.level}")
    except IsolationError as exc:
        show(exc)
        return 1
    return 0
