"""The command line `verizero`: train, evaluate and check models with rewards that can be verified."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from verizero.pipeline.commands import (
    audit,
    campaign,
    chat,
    compare,
    deploy,
    diagnose,
    doctor,
    endpoint,
    environment,
    evaluate,
    explain,
    new,
    plan,
    promote,
    rate,
    replay,
    report,
    sandbox,
    serve,
    train,
    try_out,
    verify,
)
from verizero.pipeline.errors import VerizeroError, fault_now, machine_fault
from verizero.pipeline.shown import show, show_exceptions

COMMANDS = [train, try_out, evaluate, rate, verify, audit, environment, explain, plan, compare, report, diagnose]
COMMANDS += [doctor, sandbox, serve, deploy, campaign, promote, chat, endpoint, replay, new]
"""In the order of the help. Each module has `add(commands)`, which names its `run(arguments)`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0 done, 1 an explained error, 2 a wrong command line, 130 Ctrl-C."""
    show_exceptions()
    arguments = parser().parse_args(argv)
    try:
        return int(arguments.run(arguments) or 0)
    except VerizeroError as exc:
        show(f"verizero: {exc}", is_error=True)
        return 1
    except KeyboardInterrupt:
        show("\nverizero: stopped. The same command continues from the last checkpoint.", is_error=True)
        return 130
    except BrokenPipeError:  # the reader of our output has ended
        # Python flushes at exit and would complain about the pipe: give it another place to flush to
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as exc:
        fault, words = machine_fault(exc), ""
        if not fault:
            fault, words = fault_now(), f" ({type(exc).__name__}: {exc})"
        if not fault:
            raise
        show(f"verizero: {fault}{words}", is_error=True)
        return 1


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands. Loads no torch, so that a wrong command line is answered at once."""
    top = argparse.ArgumentParser(prog="verizero", description=__doc__, allow_abbrev=False)
    commands = top.add_subparsers(required=True, metavar="command")
    for command in COMMANDS:
        command.add(commands)
    for choice in commands.choices.values():
        choice.allow_abbrev = False  # a typing error such as `--no-pre` must not choose --no-prefect
    return top


if __name__ == "__main__":
    sys.exit(main())
