"""The end of a run: reason, place and message, written to run.json and summary.json as `ended`.

`ended` is null while a run goes, and after a run was killed, which could write nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from verizero.pipeline.errors import (
    DISK_FULL,
    Collapsed,
    GradersFailed,
    Stopped,
    VerizeroError,
    chain_of,
    exception_text,
    machine_fault,
)
from verizero.pipeline.host.disk import is_locked
from verizero.pipeline.report.run_files import read_run
from verizero.pipeline.report.summary import build_summary

Reason = Literal[
    "done", "tokens_spent", "stopped", "stopped_by_guard", "graders_failed", "interrupted", "disk_full", "machine",
    "error",
]  # fmt: skip
REASONS: tuple[Reason, ...] = get_args(Reason)
INFO = "run.json"
CONTINUES = "the same command continues from the last checkpoint, if there is one"


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a run."""

    reason: Reason
    where: str
    message: str

    def __str__(self) -> str:
        """Return a sentence."""
        place = f" at {self.where}" if self.where and not self.message.startswith(self.where) else ""
        return f"{self.reason.replace('_', ' ')}{place}: {self.message}"


def ended_by(exc: BaseException, where: str, next_try: Callable[[], str] = lambda: CONTINUES) -> Ended:
    """Return the end of a run by an exception in the step `where`. next_try: says what the same command will do."""
    # Ctrl-C, or a signal or a cancelled flow that a library made an exception of; it may have led to another error.
    outside = next((link for link in chain_of(exc) if not isinstance(link, Exception)), None)
    if outside is not None:
        is_signal = isinstance(outside, KeyboardInterrupt)
        how = "Ctrl-C or a signal" if is_signal else f"ended from outside ({type(outside).__name__})"
        return Ended("interrupted", where, f"{how}; {next_try()}")
    fault = machine_fault(exc)
    message = str(exc) if isinstance(exc, VerizeroError) else fault or exception_text(exc)
    reason: Reason = "error"
    if isinstance(exc, Collapsed):
        reason = "stopped_by_guard"
    elif isinstance(exc, Stopped):
        reason = "stopped"
    elif isinstance(exc, GradersFailed):
        reason = "graders_failed"
    elif fault:
        reason = "disk_full" if fault.startswith(DISK_FULL) else "machine"
    return Ended(reason, where, message)


def ended_well(folder: Path, stages: Mapping[str, tuple[int, int]]) -> Ended:
    """Return the end of a run that has done all its stages.

    `stages`: name -> (steps, budget of tokens) of each stage that has a budget; a stage that made fewer steps has
    spent it.
    """
    made = [row.stage for row in read_run(folder).steps] if stages else []
    short = [
        f"{name} made {made.count(name)} of {steps} steps: its {tokens:,} tokens (max_tokens) are spent"
        for name, (steps, tokens) in stages.items()
        if made.count(name) < steps
    ]
    return Ended("tokens_spent", "", "; ".join(short)) if short else Ended("done", "", "every stage is complete")


def record_failure(folder: Path, ended: Ended) -> None:
    """Write how the run ended into its run.json and summary.json, as far as that is possible.

    What cannot be written is no error: the run ends for a reason that matters more.
    """
    with suppress(OSError, ValueError, VerizeroError):
        record_end(folder, ended)
        build_summary(folder)


def record_end(folder: Path, ended: Ended) -> None:
    """Write how the run ended into its run.json, which is made if it is missing. Raises: OSError, ValueError."""
    path = folder / INFO
    text = json.dumps(_info(path) | {"ended": asdict(ended)}, indent=1)
    # In place, by one call: a full disk takes no new file, but a few bytes more in a block that a file has.
    path.touch()
    with path.open("r+b", buffering=0) as file:
        file.write(text.encode())
        file.truncate()
        os.fsync(file.fileno())


def end_reason(folder: Path) -> str | None:
    """Return the reason for which the run in `folder` ended last; None while it goes, and if it was killed."""
    with suppress(OSError, ValueError):
        return (_info(folder / INFO).get("ended") or {}).get("reason")
    return None


def _info(path: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"name": path.parent.name}
    return read


def end_of(folder: Path, info: Mapping[str, Any]) -> str:
    """Return a line about the end of the run in `folder`. `info`: its run.json. Empty if an older version wrote it."""
    if "ended" not in info:
        return ""
    ended = info["ended"]
    if isinstance(ended, Mapping) and ended.get("reason") in REASONS:
        return f"The run ended: {Ended(ended['reason'], str(ended.get('where')), str(ended.get('message')))}"
    if is_locked(folder):
        return "The run is under way."
    return (
        "The run has not ended by itself: it was killed, or its machine stopped. The same command continues from the "
        "last checkpoint."
    )
