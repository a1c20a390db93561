"""A rank killed in any phase ends its group, is named, and leaves nothing but what the next start continues from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.launch.runs import assert_same_bytes, by_ranks, folders, lines_without_times, processes_of
from tests.processes import until
from verizero.pipeline.errors import RunError

pytestmark = pytest.mark.run
SHORT = (
    "stages=[sft, rl]", "sft.steps=3", "rl.steps_per_round=2", "rl.prompts_per_step=4", "rl.group_size=4",
    "checkpoint.keep=100",
)  # fmt: skip
KILLS = [
    (1, "sft steps 1-3: update", 2, 0),
    (0, "evaluate after sft: evaluate/generate", 1, 1),
    (1, "evaluate after sft: evaluate/verify", 1, 1),
    (1, "round 1 step 1: generate", 2, 2),
    (0, "round 1 step 1: verify", 1, 2),
    (1, "round 1 step 1: update", 1, 2),
    (0, "round 1 step 1: publish", 1, 2),
    (1, "round 1 step 1: checkpoint", 1, 2),
    (0, "round 1 step 1: checkpoint, unnamed", 1, 2),
]
"""Rank, phase, at which of its beginnings, and how many checkpoints the run has then.

In the order of the run, because each start continues what the kill before it left. At the last kill the next checkpoint
is complete but for its name.
"""


def assert_told(message: str, rank: int, phase: str) -> None:
    """The message names the rank, the signal and the phase, quotes the log, and says where the other rank was."""
    assert re.match(rf"rank {rank} \(process \d+\) was ended by SIGKILL in '{re.escape(phase)}'; ", message)
    assert f"logs/rank{rank}.log:\n  " in message, "the last lines of its log"
    assert re.search(rf"\nrank {1 - rank} was in '.+'", message)


def assert_left(folder: Path, whole: Path, count: int) -> None:
    """The folder holds the beginning of the whole run, and besides what is known to be cleared at the next start."""
    names = {p.name for p in (folder / "checkpoints").glob("*")}
    assert {n for n in names if not n.startswith(".partial-")} == {f"{n:08d}" for n in range(count)}
    for name in (f"checkpoints/{n:08d}/model/model.safetensors" for n in range(count)):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()
    ours, theirs = (lines_without_times(f) for f in (folder, whole))
    assert ours == theirs[: len(ours)]
    rollouts = [(f / "rollouts.jsonl").read_bytes() for f in (folder, whole)]
    assert rollouts[1].startswith(rollouts[0])
    assert set(folders(folder / "logs")) <= {"rank1"}


def test_killed_in_every_phase_and_continued_it_ends_with_the_bytes_of_a_whole_run(
    recipe: Path, owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = by_ranks(recipe, "whole", *SHORT)
    folder = whole.with_name("killed")
    (temporary := tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    for rank, phase, number, count in KILLS:
        monkeypatch.setenv("FUSE", f"{rank}|{phase}|{number}|kill")
        with pytest.raises(RunError) as caught:
            by_ranks(recipe, folder.name, *SHORT)
        assert_told(str(caught.value), rank, phase.removesuffix(", unnamed"))
        until(lambda: not processes_of(owner), f"the end of all ranks after the kill in {phase}")
        assert list(temporary.iterdir()) == [], phase
        assert_left(folder, whole, count)
    # now the folder has all that a kill can leave: an unnamed checkpoint, lines behind the last one, a rank's folder
    assert list((folder / "checkpoints").glob(".partial-*"))
    assert folders(folder / "logs") == ["rank1"]
    monkeypatch.delenv("FUSE")
    assert_same_bytes(by_ranks(recipe, folder.name, *SHORT), whole)
    assert folders(folder / "logs") == []
    assert not list((folder / "checkpoints").glob(".partial-*"))
