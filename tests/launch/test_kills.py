"""A rank killed in any phase ends its group, is named, and leaves nothing but what the next start continues from."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from pipeline.errors import RunError
from tests.launch.runs import assert_same_bytes, by_ranks, folders, lines_without_times, processes_of
from tests.processes import until

pytestmark = [pytest.mark.integration, pytest.mark.slow]
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

At the last kill the next checkpoint is complete but for its name.
"""


@pytest.fixture(scope="module")
def whole(recipe: Path) -> Path:
    """The folder of a run that nobody killed, with all its checkpoints."""
    return by_ranks(recipe, "whole", *SHORT)


def cut_back(whole: Path, name: str, count: int) -> Path:
    """A copy of the run's folder as it was when it had so many checkpoints; without any there is no folder."""
    folder = whole.with_name(name)
    if count:
        shutil.copytree(whole, folder)
        for checkpoint in (folder / "checkpoints").iterdir():
            if int(checkpoint.name) >= count:
                shutil.rmtree(checkpoint)
        shutil.rmtree(folder / "model")
        for file in ("summary.json", "report.html"):
            (folder / file).unlink()
    return folder


def killed(kill: tuple[int, str, int, int], whole: Path, recipe: Path, tmp_path: Path) -> Path:
    """The folder of a run that was killed so, after looking at all that the kill told and left."""
    rank, phase, number, count = kill
    folder = cut_back(whole, tmp_path.name, count)
    (tmp_path / "tmp").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path / "tmp"))
        patch.setenv("FUSE", f"{rank}|{phase}|{number}|kill")
        with pytest.raises(RunError) as caught:
            by_ranks(recipe, folder.name, *SHORT)
    told, place = str(caught.value), re.escape(phase.removesuffix(", unnamed"))
    assert re.match(rf"rank {rank} \(process \d+\) was ended by SIGKILL in '{place}'; ", told)
    assert f"logs/rank{rank}.log:\n  " in told, "the last lines of its log"
    assert re.search(rf"\nrank {1 - rank} was in '.+'", told)
    until(lambda: not processes_of(str(tmp_path)), "the end of all ranks")
    assert [p.name for p in (tmp_path / "tmp").iterdir()] == []
    assert_left(folder, whole, count)
    return folder


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


@pytest.mark.parametrize("kill", KILLS[:-1], ids=lambda kill: f"rank {kill[0]} in {kill[1]}")
def test_a_killed_rank_ends_the_group_and_is_named(
    kill: tuple[int, str, int, int], whole: Path, recipe: Path, tmp_path: Path
) -> None:
    killed(kill, whole, recipe, tmp_path)


def test_after_a_kill_at_the_naming_of_a_checkpoint_it_ends_with_the_bytes_of_a_whole_run(
    whole: Path, recipe: Path, tmp_path: Path
) -> None:
    """The folder has all that a kill can leave: an unnamed checkpoint, lines behind the last one, a rank's folder."""
    folder = killed(KILLS[-1], whole, recipe, tmp_path)
    assert list((folder / "checkpoints").glob(".partial-*"))
    assert folders(folder / "logs") == ["rank1"]
    assert_same_bytes(by_ranks(recipe, folder.name, *SHORT), whole)
    assert folders(folder / "logs") == []
    assert not list((folder / "checkpoints").glob(".partial-*"))
