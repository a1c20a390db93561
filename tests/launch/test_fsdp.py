"""With FSDP and ZeRO 3, killed in an update, half-way through a checkpoint, or stopped: the run has the same bytes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.launch.runs import assert_same_bytes, assert_same_run, by_one, by_ranks, folders, processes_of
from tests.processes import until
from tests.train.rank_group import installed
from verizero.pipeline.errors import RunError

FSDP = ("train.backend=fsdp",)
LIMIT = "launch.phase_timeout_s=12"
LORA = "train.lora={rank: 4, alpha: 8}"
SHORT = ("rl.steps_per_round=2", "rl.prompts_per_step=4", "rl.group_size=4", "rl.select.keep=all")
DEATHS = [
    ("1|round 1 step 2: update|1|kill", r"rank 1 \(process \d+\) was ended by SIGKILL in 'round 1 step 2: update'"),
    (
        "1|round 1 step 2: publish|1|stop",
        r"rank 0 \(process \d+\) ended with status 75 in 'round 1 step 2: publish'[\s\S]*"
        r"\nrank 1 was in 'round 1 step 2: publish': ",
    ),
    (
        "0|round 1 step 2: checkpoint, half|1|kill",
        r"rank 0 \(process \d+\) was ended by SIGKILL in 'round 1 step 2: checkpoint'",
    ),
    (
        "0|round 1 step 2: checkpoint, unnamed|1|kill",
        r"rank 0 \(process \d+\) was ended by SIGKILL in 'round 1 step 2: checkpoint",
    ),
    ("0|background, unnamed|2|kill", r"rank 0 \(process \d+\) was ended by SIGKILL in '"),
]
BEFORE_PUBLISH = (
    "1|round 1 step 2: publish|1|kill",
    r"rank 1 \(process \d+\) was ended by SIGKILL in 'round 1 step 2: publish'",
)


@pytest.mark.run
def test_two_ranks_do_what_one_process_does(recipe: Path, alone: Path) -> None:
    assert_same_run(by_ranks(recipe, "divided", *FSDP), alone)


@pytest.mark.run
@pytest.mark.parametrize("quantize", [pytest.param("null", marks=pytest.mark.nightly), "nf4"])
def test_two_ranks_train_adapters_as_one_process_does(recipe: Path, quantize: str) -> None:
    lora = (LORA, f"model.quantize={quantize}")
    assert_same_run(
        by_ranks(recipe, f"divided_lora_{quantize}", *FSDP, *lora), by_one(recipe, f"lora_{quantize}", *lora)
    )


ZERO = ("train.backend=deepspeed", "train.zero=3")
ZERO_STOPPED = (
    "1|round 1 step 2: publish|1|stop",
    r"rank 0 \(process \d+\) ended with status 75 in 'round 1 step 2: checkpoint'[\s\S]*"
    r"\nrank 1 was in 'round 1 step 2: publish': ",
)


@pytest.mark.run
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("how", "deaths"),
    [
        (FSDP, DEATHS),
        ((*FSDP, LORA, "model.quantize=nf4"), [BEFORE_PUBLISH, DEATHS[2]]),
        pytest.param(ZERO, [DEATHS[0], ZERO_STOPPED, DEATHS[2]], marks=installed),
    ],
    ids=["all weights", "adapters on four bits", "ZeRO 3"],
)
def test_killed_or_stopped_it_ends_with_the_bytes_of_a_run_unhurt(
    recipe: Path, owner: str, monkeypatch: pytest.MonkeyPatch, how: tuple[str, ...], deaths: list[tuple[str, str]]
) -> None:
    hurt, unhurt = (f"{which}-{len(how)}-{len(deaths)}" for which in ("hurt", "unhurt"))
    checkpoints = recipe.parent / "runs" / hurt / "checkpoints"
    for fuse, said in deaths:
        monkeypatch.setenv("FUSE", fuse)
        with pytest.raises(RunError) as caught:
            by_ranks(recipe, hurt, *how, *SHORT, LIMIT)
        assert re.match(said, str(caught.value)), fuse
        until(lambda: not processes_of(owner), "the end of all ranks")
        assert folders(checkpoints.parent / "logs") == ["rank1"]
    if how == ZERO:
        assert [*checkpoints.glob(".partial-*/*")], "the last death came before the checkpoint had a file"
    monkeypatch.delenv("FUSE")
    assert_same_bytes(*(by_ranks(recipe, name, *how, *SHORT) for name in (hurt, unhurt)))
    assert folders(checkpoints.parent / "logs") == []
    assert all(p.name.isdigit() for p in checkpoints.iterdir())
