"""The walls that hold on this machine, proved by trying to break them, and the isolation level they give."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from verizero.sandbox.process import Worker, WorkerDied
from verizero.sandbox.worker import frames
from verizero.sandbox.worker.frames import CGROUP, LANDLOCK, NAMESPACES, SECCOMP, UID

WALLS = (NAMESPACES, LANDLOCK, SECCOMP, UID, CGROUP)
_REMEDY = {
    NAMESPACES: "allow unprivileged user namespaces (sysctl user.max_user_namespaces; a container's seccomp profile), "
    "or accept level 2",
    LANDLOCK: "use a kernel of 5.13 or newer with landlock among its LSMs, and a container runtime that lets it pass",
    SECCOMP: "use an x86_64 or aarch64 kernel with CONFIG_SECCOMP_FILTER",
    "rlimits": "let the process lower its own resource limits",
}


@dataclass(frozen=True, slots=True)
class Isolation:
    """The isolation level and, for every wall, True if it holds, with a note.

    3: namespaces, Landlock, seccomp, limits. 2: seccomp, limits, and Landlock (or namespaces where the kernel has no
    Landlock) around the file system. 1: a process of its own with limits. 0: not even that. A control group, which
    bounds the processes of a run together, changes no level.
    """

    level: int
    stands: Mapping[str, bool]
    notes: Mapping[str, str]


def examine(worker: Worker, refused: Mapping[str, str]) -> Isolation:
    """Return the walls that hold: each forbidden act is tried without and with its wall. Raises: WorkerDied."""
    order = frames.Order(frames.SELF_TEST, 20.0, 10.0, 64, 64, 4, 16, 1)
    try:
        result = worker.execute(order, frames.pack_payload(b"", []))
        if not result.records:
            raise WorkerDied(f"self-test ended with {result.exit.status}: {result.err.decode(errors='replace')}")
    except WorkerDied:
        worker.close()
        raise
    tried: dict[str, bool] = json.loads(result.records[0].value)
    stands = {wall: tried.get(wall, False) for wall in (NAMESPACES, LANDLOCK, SECCOMP, "rlimits", CGROUP)}
    notes = dict(refused) | worker.notes
    worker.level = level_of(stands)
    return Isolation(worker.level, stands, notes)


def level_of(stands: Mapping[str, bool]) -> int:
    """Return the isolation level that these walls give."""
    if not stands["rlimits"]:
        return 0
    if not stands[SECCOMP] or not (stands[LANDLOCK] or stands[NAMESPACES]):
        return 1
    return 3 if stands[LANDLOCK] and stands[NAMESPACES] else 2


def explain(isolation: Isolation, min_level: int) -> str:
    """Return an error message: why the sandbox does not start, and what to do."""
    needed = (NAMESPACES, LANDLOCK, SECCOMP, "rlimits") if min_level == 3 else (LANDLOCK, SECCOMP, "rlimits")
    missing = [w for w in needed if not isolation.stands[w]]
    why = "; ".join(f"{w} ({isolation.notes.get(w, 'the forbidden act succeeded')}): {_REMEDY[w]}" for w in missing)
    return (
        f"the sandbox reaches isolation level {isolation.level}, and sandbox.min_level is {min_level}. Missing: {why}. "
        f"To run nevertheless, set sandbox.min_level to {isolation.level}"
    )
