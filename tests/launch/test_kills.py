"""A rank that dies or stops in any phase ends its group, is named, and leaves what the next start continues to the same
bytes; ranks equal one process, in other numbers too.
"""

import json
import re

import pytest

from tests.launch.runs import (
    assert_same_bytes,
    assert_same_run,
    by_one,
    by_ranks,
    die,
    folders,
    lines_without_times,
    rows,
)
from tests.train.rank_group import installed

pytestmark = pytest.mark.run
SHORT = ("rl.steps_per_round=2", "rl.prompts_per_step=4", "rl.group_size=4", "checkpoint.keep=100")
WITH_SFT = (*SHORT, "stages=[sft, rl]", "sft.steps=3")
KILLS = [
    (1, "sft steps 1-3: update", 2, 1),
    (0, "evaluate after sft: evaluate/generate", 1, 2),
    (1, "evaluate after sft: evaluate/verify", 1, 2),
    (1, "round 1 step 1: generate", 2, 3),
    (0, "round 1 step 1: verify", 1, 3),
    (1, "round 1 step 1: update", 1, 3),
    (0, "round 1 step 1: publish", 1, 3),
    (1, "round 1 step 1: checkpoint", 1, 3),
    (0, "round 1 step 1: checkpoint, unnamed", 1, 3),
]
"""Rank, phase, at which of its beginnings, and how many checkpoints the run has then.

In the order of the run, because each start continues what the kill before it left. At the last kill the next checkpoint
is complete but for its name.
"""


def killed(rank, phase):
    """The report of a death by a signal; if a thread in the background burned the fuse, the main one has any phase."""
    main = "" if phase.startswith("background") else re.escape(phase.split(",")[0])
    return rf"rank {rank} \(process \d+\) was ended by SIGKILL in '{main}"


def out_of_time(rank, phase):
    return rf"rank {rank} \(process \d+\) ended with status 75 in '{phase}'"


def assert_left(folder, whole, count, in_background):
    """The folder holds the beginning of the whole run, and besides what is known to be cleared at the next start.

    A checkpoint that is written in the background may have no name yet.
    """
    names = {n for p in (folder / "checkpoints").glob("*") if not (n := p.name).startswith(".partial-")}
    expected = {f"{n:08d}" for n in range(count)}
    assert names <= expected if in_background else names == expected
    for name in (f"checkpoints/{name}/model/model.safetensors" for name in names):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()
    ours, theirs = (lines_without_times(f) for f in (folder, whole))
    assert ours == theirs[: len(ours)]
    rollouts = [(f / "rollouts.jsonl").read_bytes() for f in (folder, whole)]
    assert rollouts[1].startswith(rollouts[0])
    assert set(folders(folder / "logs")) <= {"rank1", "rank2", "rank3"}


REPLICAS = ("launch.gpus_per_node=4", "train.backend=fsdp", "train.replicas=2")
IN_BACKGROUND = [*KILLS[:-1], (0, "background, unnamed", 2, 3)]
"""FSDP gives names in the background: first to the model's file."""


@pytest.mark.parametrize(
    ("kills", "how"),
    [
        pytest.param(KILLS[::8], (), id="some"),
        pytest.param(KILLS, (), id="all", marks=pytest.mark.nightly),
        pytest.param(IN_BACKGROUND, REPLICAS, id="replicas", marks=pytest.mark.nightly),
    ],
)
def test_killed_in_every_phase_it_ends_with_the_bytes_of_a_whole_run(kills, how, recipe, owner, tmp_path, monkeypatch):
    name = f"killed_{len(kills)}_{len(how)}"
    how = (*WITH_SFT, *how)
    whole = by_ranks(recipe, f"{name}_never", *how)
    folder = whole.with_name(name)
    (temporary := tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    for rank, phase, number, count in kills:
        said = die(recipe, owner, name, f"{rank}|{phase}|{number}|kill", killed(rank, phase), *how)
        assert f"logs/rank{rank}.log:\n  " in said, "the last lines of its log"
        assert re.search(rf"\nrank {1 - rank} was in '.+'", said)
        assert list(temporary.iterdir()) == [], phase
        assert_left(folder, whole, count, in_background=how[-1] == REPLICAS[-1])
    # now the folder has all that a kill can leave: an unnamed checkpoint, lines behind the last one, a rank's folder
    assert list((folder / "checkpoints").glob(".partial-*"))
    assert "rank1" in folders(folder / "logs")
    assert_same_bytes(by_ranks(recipe, name, *how), whole)
    assert folders(folder / "logs") == []
    assert not list((folder / "checkpoints").glob(".partial-*"))


FSDP, ZERO = ("train.backend=fsdp",), ("train.backend=deepspeed", "train.zero=3")
STEP = "round 1 step 2: "
IN_UPDATE = (f"1|{STEP}update|1|kill", killed(1, f"{STEP}update"))
HALF_WRITTEN = (f"0|{STEP}checkpoint, half|1|kill", killed(0, f"{STEP}checkpoint"))
STOPPED = rf"[\s\S]*\nrank 1 was in '{STEP}publish': "
DEATHS = {
    "fsdp": (
        FSDP,
        [
            IN_UPDATE,
            (f"1|{STEP}publish|1|stop", out_of_time(0, f"{STEP}publish") + STOPPED),
            ("0|background, half|1|kill", killed(0, "background")),
            ("0|background, unnamed|1|kill", killed(0, "background")),  # the model's file
            ("0|background, unnamed|2|kill", killed(0, "background")),  # the checkpoint
        ],
    ),
    "adapters_on_bits": (
        (*FSDP, "train.lora={rank: 4, alpha: 8}", "model.quantize=nf4"),
        [(f"1|{STEP}publish|1|kill", killed(1, f"{STEP}publish")), HALF_WRITTEN],
    ),
    "zero": (
        ZERO,
        [IN_UPDATE, (f"1|{STEP}publish|1|stop", out_of_time(0, f"{STEP}checkpoint") + STOPPED), HALF_WRITTEN],
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", [pytest.param(n, marks=installed) if n == "zero" else n for n in DEATHS])
def test_divided_killed_or_stopped_it_ends_with_the_bytes_of_a_run_unhurt(recipe, owner, name):
    how, deaths = DEATHS[name]
    how = (*how, *SHORT, "rl.select.keep=all")
    checkpoints = recipe.parent / "runs" / name / "checkpoints"
    for fuse, said in deaths:
        die(recipe, owner, name, fuse, said, *how, "launch.phase_timeout_s=12")
        assert folders(checkpoints.parent / "logs") == ["rank1"]
    if name == "zero":
        assert [*checkpoints.glob(".partial-*/*")], "the last death came before the checkpoint had a file"
    assert_same_bytes(by_ranks(recipe, name, *how), by_ranks(recipe, f"{name}_unhurt", *how))
    assert folders(checkpoints.parent / "logs") == []
    assert all(p.name.isdigit() for p in checkpoints.iterdir())


@pytest.mark.nightly
def test_a_run_whose_ranks_hang_die_or_stop_is_continued_by_other_numbers_of_ranks(recipe, alone, owner):
    """Two ranks train until one hangs, then one until it is killed, then two until one is stopped, then one to the end.

    Where rank 1 hangs or was stopped, rank 0 waits for it: for a sum of its update, or the responses of a step. Where
    one hangs, either may be the first to end.
    """
    folder, limit = recipe.parent / "runs" / "changing", 12
    ends = [
        (2, "hang", "round 1 step 2: update", "in all_reduce"),
        (1, "kill", "round 1 step 3: update", "from checkpoint"),
        (2, "stop", "round 1 step 4: generate", "in all_gather_object"),
    ]
    for num_ranks, act, phase, logged in ends:
        begin = log.stat().st_size if (log := folder / "logs" / "rank0.log").exists() else 0
        how = (f"launch.gpus_per_node={num_ranks}", f"launch.phase_timeout_s={limit}")
        first = {"kill": killed(0, phase), "stop": out_of_time(0, phase), "hang": out_of_time("[01]", phase)}[act]
        said = die(recipe, owner, "changing", f"{num_ranks - 1}|{phase}|1|{act}", first, *how)
        if act != "kill":
            assert f"'{phase}' within {limit} s (launch.phase_timeout_s={limit})" in said
            assert re.findall(rf"\nrank (\d) was in '{phase}': ", said) == [str(1 - int(said[len("rank ")]))]
        assert logged in log.read_bytes()[begin:].decode()
        assert json.loads((folder / "run.json").read_text())["num_ranks"] == num_ranks
    assert_same_run(by_one(recipe, "changing"), alone)
    assert json.loads((folder / "run.json").read_text())["num_ranks"] == 1


WITH_RECORDS = (
    "rollout.max_staleness=1", "rollout.top_p=0.9",
    "rl.algorithm={name: grpo, num_minibatches: 2, keep_sampling: true}",
    "rl.prompts_per_step=4", "rl.group_size=3", "report.samples_per_step=1000",
)  # fmt: skip


def test_ranks_that_have_some_of_the_records_do_what_one_does_also_after_a_kill(recipe, owner):
    """Records stay with the rank that sampled them; groups are carried, and batches are in flight."""
    one = by_one(recipe, "one", *WITH_RECORDS)
    metrics = [row["metrics"] for row in rows(one) if row["kind"] == "step"]
    # Which step leaves groups over depends on the samples, hence on how a processor rounds.
    holding = [i for i, m in enumerate(metrics[:-1], start=1) if m["groups/carried_out"] > 0]
    assert holding, "the checkpoint that the killed run continues from must hold groups"
    for name in ("groups/in_flight", "sampling/kept_mean"):
        assert sum(m[name] for m in metrics) > 0, name
    phase = f"round 1 step {holding[-1] + 1}: update"
    die(recipe, owner, "two", f"1|{phase}|1|kill", killed(1, phase), *WITH_RECORDS)
    assert_same_run(by_ranks(recipe, "two", *WITH_RECORDS), one)
