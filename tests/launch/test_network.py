"""Two hosts whose network is cut in any phase: both stop by the deadline, and continue once it is back."""

import os
import re
import subprocess
import sys
from functools import partial

import pytest

from tests.launch.host import overrides
from tests.launch.hosts import HOSTS, enter, ip, two_hosts
from tests.launch.runs import ROOT, assert_same_bytes, by_ranks, wait_for_end
from tests.warm import warm

LIMIT_S = 10
PATIENT = "launch.phase_timeout_s=20"
"""Of runs that come to their end: rank 0 draws the page in the last phase, which takes seconds of a core."""
SHORT = (
    "stages=[sft, rl]", "sft.steps=3", "rl.steps_per_round=2", "rl.prompts_per_step=4", "rl.group_size=4",
    "rl.select.keep=all", f"launch.phase_timeout_s={LIMIT_S}",
)  # fmt: skip
CUTS = [
    (1, "start", "start"),
    (0, "evaluate after sft: evaluate/generate", "evaluate after sft: evaluate/verify"),
    (1, "round 1 step 1: generate", "round 1 step 1: generate"),
    (0, "round 1 step 1: verify", "round 1 step 1: verify"),
    (0, "round 1 step 1: publish", "round 1 step 1: checkpoint"),
]
"""Whose cable is pulled as which phase begins, and the phase that waits for an answer: the same or the next to talk.

In the order of the run: each start continues behind the last one. FSDP's run is cut in `update` and `checkpoint`.
"""
KILLED_IN = "round 1 step 1: update"
OUTAGES = [
    *(f"1|round 1 step 2: {phase}" for phase in ("generate", "verify", "update", "publish", "checkpoint")),
    "0|round 1 step 2: checkpoint, unnamed",
    "1|evaluate after round 1: evaluate/generate",
]


@pytest.fixture(scope="module")
def hosts():
    with two_hosts() as names:
        yield names


def by_hosts(hosts, recipe, name, fuse, *more):
    """What each host says at the end of its rank; "" where that ended well. `more` changes of the recipe."""
    changes = overrides(
        recipe, name, *SHORT, "launch.kind=torchrun", "launch.nodes=2", "launch.gpus_per_node=1",
        f"launch.address={HOSTS[0]}", *more,
    )  # fmt: skip
    for space, cable in hosts:
        ip("-n", space, "link", "set", cable, "up")
    said = warm().call(ends_of, hosts, [str(recipe), *changes], fuse)
    return said


def ends_of(hosts, words, fuse):
    """Start `tests.launch.host` on both hosts, and return what they print."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.launch.host", *words],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "NODE_RANK": str(i), "GLOO_SOCKET_IFNAME": cable, "CABLE": cable, "FUSE": fuse},
            preexec_fn=partial(enter, space),
        )
        for i, (space, cable) in enumerate(hosts)
    ]
    try:
        said = [host.communicate(timeout=300)[0] for host in started]
        assert [bool(text) for text in said] == [host.returncode != 0 for host in started]
        return said
    finally:
        for host in started:
            host.kill()
            host.wait()


@pytest.mark.run
@pytest.mark.nightly
def test_cut_in_any_phase_both_hosts_end_by_the_deadline_and_continue_to_the_same_bytes(hosts, recipe, owner):
    """Then a rank is killed; the last start survives outages shorter than the limit, and a cut when it is done."""
    for rank, phase, waits in CUTS:
        said = by_hosts(hosts, recipe, "cut", f"{rank}|{phase}|1|cut")
        wait_for_end(owner)
        for number, text in enumerate(said):
            assert f"ended: rank {number} (process " in text
            assert f"rank {1 - number} was in '{waits}': " in text
            why = rf"rank {number} .*'{waits}' within {LIMIT_S} s \(launch\.phase_timeout_s={LIMIT_S}\)"
            if phase == "start":
                why = rf"rank {number} of 2 .*{HOSTS[0]}:29500 \("
            assert re.search(why, text)
    first, second = by_hosts(hosts, recipe, "cut", f"1|{KILLED_IN}|1|kill")
    wait_for_end(owner)
    assert re.match(rf"ended: rank 1 \(process \d+\) was ended by SIGKILL in '{KILLED_IN}'", second)
    assert re.match(rf"ended: rank 0 \(process \d+\) ended with status \d+ in '{KILLED_IN}'", first), "at once"
    fuses = [*(f"{place}|1|outage" for place in OUTAGES), "0|end|1|cut"]
    assert by_hosts(hosts, recipe, "cut", ";".join(fuses), PATIENT) == ["", ""]
    folder = recipe.parent / "runs" / "cut"
    assert "from checkpoint" in (folder / "logs" / "rank0.log").read_text()
    assert_same_bytes(folder, by_ranks(recipe, "uncut", *SHORT, PATIENT))


@pytest.mark.run
@pytest.mark.nightly
def test_with_fsdp_a_cut_ends_both_hosts_and_they_continue_to_the_same_bytes(hosts, recipe, owner):
    """Its collectives are amid the forward and backward of an update, and in a checkpoint."""
    fsdp = "train.backend=fsdp"
    for rank, phase in ((1, "round 1 step 1: update"), (0, "round 1 step 2: checkpoint")):
        said = by_hosts(hosts, recipe, "cut_fsdp", f"{rank}|{phase}|1|cut", fsdp)
        wait_for_end(owner)
        for number, text in enumerate(said):
            assert re.search(rf"rank {number} .*'{phase}' within {LIMIT_S} s", text), text
    assert by_hosts(hosts, recipe, "cut_fsdp", "0|end|1|cut", fsdp, PATIENT) == ["", ""]
    folder = recipe.parent / "runs" / "cut_fsdp"
    assert_same_bytes(folder, by_ranks(recipe, "uncut_fsdp", *SHORT, fsdp, PATIENT))
