"""The command line `verizero`: train, evaluate and check models with rewards that can be verified."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from verizero.pipeline.commands import (
    audit,
    campaign,
    chat,
    check,
    compare,
    deploy,
    diagnose,
    doctor,
    environment,
    eval,
    new,
    plan,
    promote,
    rate,
    report,
    sandbox,
    serve,
    train,
    try_out,
    verify,
)
from verizero.pipeline.errors import VerizeroError, fault_now, machine_fault
from verizero.pipeline.shown import show, show_exceptions

GROUPS = {
    "train": (train, campaign, compare, promote, new),
    "check before a run": (check, try_out, plan, doctor, verify, audit, environment, rate),
    "inspect a run or a model": (diagnose, report, eval, chat),
    "serve": (serve, deploy, sandbox),
}
"""The commands in the order of the help. Each module has `add(commands)`, which names its `run(arguments)`."""
HELP_WIDTH = 100


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0 done, 1 an explained error, 2 a wrong command line, 130 stopped."""
    show_exceptions()
    arguments = parser().parse_args(argv)
    try:
        with stopped_by_signals():
            return int(arguments.run(arguments) or 0)
    except VerizeroError as exc:
        show(f"verizero: {exc}", is_error=True)
        return 1
    except KeyboardInterrupt as exc:
        notes = getattr(exc, "__notes__", [])
        after = f" by {notes[-1]}" if notes else f". {getattr(arguments, 'after_stop', '')}"
        show(f"\nverizero: stopped{after}".rstrip(), is_error=True)
        return 130
    except BrokenPipeError:  # the reader of our output has ended
        # Python flushes at exit and would complain about the pipe: give it another place to flush to
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as exc:
        fault, detail = machine_fault(exc), ""
        if not fault:
            fault, detail = fault_now(), f" ({type(exc).__name__}: {exc})"
        if not fault:
            raise
        show(f"verizero: {fault}{detail}", is_error=True)
        return 1


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGINT, which a shell lets jobs in the background ignore, and on SIGTERM."""
    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands. Loads no torch, so that a wrong command line is answered at once."""
    top = argparse.ArgumentParser(
        prog="verizero",
        usage="verizero command ...  (verizero command --help says more)",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(required=True, metavar="command", prog="verizero", help=argparse.SUPPRESS)
    lines = []
    for title, modules in GROUPS.items():
        group = Group(commands)
        for module in modules:
            module.add(group)
        lines += [f"{title}:", *group.lines, ""]
    top.epilog = "\n".join(lines)
    return top


class Group:
    """A group of commands in the help: it passes each command to argparse, and keeps its help lines."""

    def __init__(self, commands: Any) -> None:
        self.commands, self.lines = commands, list[str]()

    def add_parser(self, name: str, help: str) -> argparse.ArgumentParser:
        """Return the parser of a new command."""
        text = textwrap.wrap(help, HELP_WIDTH, initial_indent=f"  {name:<12}", subsequent_indent=14 * " ")
        self.lines += text
        # A typing error such as `--no-pre` must not choose --no-prefect.
        parser: argparse.ArgumentParser = self.commands.add_parser(name, description=help, allow_abbrev=False)
        return parser


if __name__ == "__main__":
    sys.exit(main())
