"""With DeepSpeed, killed in an update, half-way through a checkpoint, or stopped: the run ends with the same bytes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.launch.runs import assert_same_bytes, by_ranks, folders, processes_of
from tests.processes import until
from tests.train.rank_group import installed
from verizero.pipeline.errors import RunError

ZERO = (
    "train.backend=deepspeed", "train.zero=3", "rl.steps_per_round=2", "rl.prompts_per_step=4", "rl.group_size=4",
    "rl.select.keep=all",
)  # fmt: skip
LIMIT = "launch.phase_timeout_s=12"
DEATHS = [
    ("1|round 1 step 2: update|1|kill", r"rank 1 \(process \d+\) was ended by SIGKILL in 'round 1 step 2: update'"),
    (
        "1|round 1 step 2: publish|1|stop",
        r"rank 0 \(process \d+\) ended with status 75 in 'round 1 step 2: checkpoint'[\s\S]*"
        r"\nrank 1 was in 'round 1 step 2: publish', stopped by a signal: ",
    ),
    (
        "0|round 1 step 2: checkpoint, half|1|kill",
        r"rank 0 \(process \d+\) was ended by SIGKILL in 'round 1 step 2: checkpoint'",
    ),
]


@installed
@pytest.mark.integration
@pytest.mark.slow
def test_killed_or_stopped_with_zero_3_it_ends_with_the_bytes_of_a_run_unhurt(
    recipe: Path, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = recipe.parent / "runs" / "hurt" / "checkpoints"
    for fuse, said in DEATHS:
        monkeypatch.setenv("FUSE", fuse)
        with pytest.raises(RunError) as caught:
            by_ranks(recipe, "hurt", *ZERO, LIMIT)
        assert re.match(said, str(caught.value))
        assert "is deprecated" not in str(caught.value)
        until(lambda: not processes_of(owner), "the end of all ranks")
        assert folders(checkpoints.parent / "logs") == ["rank1"]
    left = sorted(str(p.relative_to(checkpoints)) for p in checkpoints.glob(".partial-*/*"))
    assert left == [".partial-00000001/optimizer-00000.safetensors"]
    monkeypatch.delenv("FUSE")
    assert_same_bytes(by_ranks(recipe, "hurt", *ZERO), by_ranks(recipe, "unhurt", *ZERO))
    assert folders(checkpoints.parent / "logs") == []
    assert all(p.name.isdigit() for p in checkpoints.iterdir())
