"""A rank killed in any phase ends its group by name and leaves no process; the run ends with the bytes of one whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import RunError
from tests.launch.runs import OWNER, assert_same_bytes, by_ranks, folders, processes_of, wait_for

Found = tuple[str, dict[int, str], list[str]]
SHORT = ("stages=[sft, rl]", "sft.steps=3", "rl.steps_per_round=2", "rl.prompts_per_step=4", "rl.group_size=4")
KILLS = [
    (1, "sft steps 1-3: update", 2),
    (0, "evaluate after sft: evaluate/generate", 1),
    (1, "evaluate after sft: evaluate/verify", 1),
    (1, "round 1 step 1: generate", 2),
    (0, "round 1 step 1: verify", 1),
    (1, "round 1 step 1: update", 1),
    (0, "round 1 step 1: publish", 1),
    (1, "round 1 step 1: checkpoint", 1),
    (0, "round 1 step 1: checkpoint, unnamed", 1),
]
"""Rank, phase, and at which of its beginnings; the last when the checkpoint is whole but for its name.

In the order of the run, so that each start goes on behind the last.
"""
DEATHS = [f"rank {rank} in {phase}" for rank, phase, _ in KILLS]


@pytest.fixture(scope="module")
def hurt(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Found], Path]]:
    """Of each kill what was said, processes and temporary files that were left; and the folder of the run after all."""
    found: dict[str, Found] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp := tmp_path_factory.mktemp("tmp")))
        for death, (rank, phase, number) in zip(DEATHS, KILLS, strict=True):
            patch.setenv(OWNER, owner := str(tmp_path_factory.mktemp("killed")))
            patch.setenv("FUSE", f"{rank}|{phase}|{number}|kill")
            with pytest.raises(RunError) as said:
                by_ranks(recipe, "hurt", *SHORT)
            wait_for(lambda mark=owner: not processes_of(mark))  # a helper that was just starting reads of it then
            found[death] = (str(said.value), processes_of(owner), [p.name for p in tmp.iterdir()])
        patch.delenv("FUSE")
        yield found, by_ranks(recipe, "hurt", *SHORT)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("death", DEATHS)
def test_a_killed_rank_ends_the_group_by_name(hurt: tuple[dict[str, Found], Path], death: str) -> None:
    said, *left = hurt[0][death]
    rank, _, phase = death.removeprefix("rank ").partition(" in ")
    phase = phase.removesuffix(", unnamed")
    assert re.match(rf"rank {rank} \(process \d+\) was ended by SIGKILL in '{phase}'; the others were ended\.", said)
    assert "The same command goes on from the last checkpoint. Last lines of " in said
    assert f"logs/rank{rank}.log:\n  " in said
    assert re.search(rf"\nrank {1 - int(rank)} was in '.+'", said)
    assert left == [{}, []]


@pytest.mark.integration
@pytest.mark.slow
def test_killed_in_every_phase_it_ends_with_the_bytes_of_a_run_unhurt(
    hurt: tuple[dict[str, Found], Path], recipe: Path
) -> None:
    assert_same_bytes(hurt[1], by_ranks(recipe, "unhurt", *SHORT))
    assert folders(hurt[1] / "logs") == []
