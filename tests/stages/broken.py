"""Runs that are interrupted at a chosen moment and resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.config.run import RunConfig
from pipeline.report.progress import Silent
from pipeline.run.opening import opened
from pipeline.whole_run import finish, remaining, run_items
from tests.stages.kill_driver import fingerprint


class Broken(BaseException):
    """Nothing in the run catches it, as nothing catches a kill."""


def run(config: RunConfig, folder: Path, breaks: tuple[str, int] | None = None) -> None:
    """The run from where it is, broken off after the n-th time of a phase where `breaks` says so."""
    left = 0 if breaks is None else breaks[1]

    def wrap(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal left
            result = function(*arguments)
            if breaks is not None and phase == breaks[0]:
                left -= 1
                if left == 0:
                    raise Broken
            return result

        return call

    with opened(config, folder.parent, folder, "auto", Silent()) as session:
        for _, items in remaining(session.run, session.state):
            run_items(session, items, wrap)
        finish(session)


def goes_on_as_if_never_broken(config: RunConfig, folder: Path, breaks: list[tuple[str, int]]) -> None:
    """Assert that the run, broken off at each of these moments, leaves the bytes of one that went through."""
    run(config, folder / "whole")
    for moment in breaks:
        own = folder / "-".join(map(str, moment))
        try:
            run(config, own, moment)
        except Broken:
            run(config, own)
        else:
            raise AssertionError(f"{moment} never came")
        assert fingerprint(own) == fingerprint(folder / "whole"), moment
