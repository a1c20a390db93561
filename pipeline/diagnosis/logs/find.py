"""Find out what kind of logs are at a path, and read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from verizero.pipeline.diagnosis.logs import (
    console,
    mlflow_store,
    openrlhf,
    prime_rl,
    tensorboard_events,
    trl,
    verl,
    wandb_files,
)
from verizero.pipeline.diagnosis.logs.facts import Reading, reading_of
from verizero.pipeline.diagnosis.logs.logged import Logged
from verizero.pipeline.diagnosis.logs.script import settings_of_file
from verizero.pipeline.diagnosis.logs.tool import Tool
from verizero.pipeline.errors import RunError
from verizero.pipeline.near import did_you_mean, near_path

TOOLS = {tool.name: tool for tool in (trl.TOOL, verl.TOOL, openrlhf.TOOL, prime_rl.TOOL)}


class Kind(NamedTuple):
    """A kind of logs: whether it is at a path, and its reader."""

    is_here: Callable[[Path], bool]
    read: Callable[[Path], Logged]


KINDS = tuple(
    Kind(module.is_here, module.read)
    for module in (trl, verl, prime_rl, wandb_files, mlflow_store, tensorboard_events, console)
)
"""In this order: what a trainer writes by itself is more than what it sends to a tracker."""
SETTINGS = (".py", ".yaml", ".yml", ".sh", ".toml")


def read(paths: Sequence[Path], name: str | None = None) -> Reading:
    """Return the facts of the logs at all paths together, a trainer's script or configuration among them.

    `name`: of the trainer; None: the numbers' names tell.
    Raises: RunError if nothing is logged, or the trainer is not known.
    """
    logged = Logged()
    for path in paths:
        logged.add(_at(path))
    if not logged.rows and not logged.responses:
        raise RunError(
            f"no logs were found at {', '.join(map(str, paths))}; looked for trainer_state.json and completions of "
            "TRL, JSONL and dumps of verl, metrics.jsonl of prime-rl, runs and exports of W&B, stores of MLflow, event "
            "files of TensorBoard, and text of a console"
        )
    return reading(logged, name)


def reading(logged: Logged, name: str | None = None) -> Reading:
    """Return the facts of what was logged. Raises: RunError if the trainer is not known."""
    return reading_of(logged, _tool(name, logged))


def _at(path: Path) -> Logged:
    """Return what one path has."""
    if not path.exists():
        raise RunError(f"{path} does not exist{near_path(path)}")
    if path.suffix in SETTINGS:
        return Logged(files=[str(path)], settings=settings_of_file(path))
    logged = next((kind.read(path) for kind in KINDS if kind.is_here(path)), Logged())
    if path.is_dir() and logged.rows and not logged.settings and tensorboard_events.is_here(path):
        # transformers writes all arguments into the first event file, whatever else a run has.
        logged.settings = tensorboard_events.read(path).settings
    return logged


def _tool(name: str | None, logged: Logged) -> Tool:
    """Return the trainer of that name, or the one whose names are among those of the numbers."""
    if name is not None:
        if name not in TOOLS:
            known = f"known: {', '.join(TOOLS)}"
            raise RunError(f"--from {name}: {did_you_mean(name, TOOLS, known)}")
        return TOOLS[name]
    counts = {tool.name: len({tool.plain(n) for n in logged.names} & set(tool.signs)) for tool in TOOLS.values()}
    best = max(counts, key=lambda own: counts[own])
    if not counts[best]:
        shown = ", ".join(sorted(logged.names)[:8])
        raise RunError(f"no trainer is known that writes these numbers: {shown}; name one: --from {' or '.join(TOOLS)}")
    return TOOLS[best]
