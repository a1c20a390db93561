"""Two hosts whose network is cut in the middle of a step: both ends stop by the deadline, and go on once it is back.

The hosts are network namespaces of this machine, joined by one cable; they share its files.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.runs import ROOT, assert_same_bytes, by_ranks, overrides, processes_of, wait_for

SHORT = ("rl.steps_per_round=2", "rl.prompts_per_step=4", "rl.group_size=4", "rl.select.keep=all")
HOSTS = ("10.77.61.1", "10.77.61.2")


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stderr)


def refused() -> str | None:
    """Why there can be no hosts here."""
    if shutil.which("ip") is None:
        return "no `ip` here: install the package iproute2"
    name = f"vz{os.getpid()}t"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode == 0:
        ip("netns", "del", name)
        return None
    return f"no network namespaces here: {tried.stderr.strip()}"


@pytest.fixture
def hosts() -> Iterator[list[tuple[str, str]]]:
    """Namespace and cable of each of two."""
    if (why := refused()) is not None:
        pytest.skip(why)
    names = [(f"vz{os.getpid()}h{i}", f"vz{os.getpid()}c{i}") for i in (0, 1)]
    made: list[str] = []
    try:
        for space, _ in names:
            ip("netns", "add", space)
            made.append(space)
        (one, left), (other, right) = names
        ip("link", "add", left, "netns", one, "type", "veth", "peer", "name", right, "netns", other)
        for (space, cable), address in zip(names, HOSTS, strict=True):
            ip("-n", space, "addr", "add", f"{address}/24", "dev", cable)
            for device in (cable, "lo"):
                ip("-n", space, "link", "set", device, "up")
        yield names
    finally:
        for space in made:
            ip("netns", "del", space)


def by_hosts(hosts: list[tuple[str, str]], recipe: Path, name: str, fuse: str | None, *more: str) -> list[str]:
    """What each host says at the end of its rank; "" where that ended well."""
    changes = overrides(
        recipe, name, *SHORT, "launch.kind=torchrun", "launch.nodes=2", "launch.gpus_per_node=1",
        f"launch.address={HOSTS[0]}", *more,
    )  # fmt: skip
    started = [
        subprocess.Popen(
            ["ip", "netns", "exec", space, sys.executable, "-m", "tests.launch.host", str(recipe), *changes],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "NODE_RANK": str(i), "GLOO_SOCKET_IFNAME": cable, "CABLE": cable}
            | ({"FUSE": fuse} if fuse else {}),
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


@pytest.mark.integration
@pytest.mark.slow
def test_a_network_cut_within_an_update_ends_both_hosts_by_the_deadline(
    hosts: list[tuple[str, str]], recipe: Path, owner: str
) -> None:
    phase = "round 1 step 2: update"
    said = by_hosts(hosts, recipe, "cut", f"1|{phase}|1|cut", "launch.phase_timeout_s=30")
    for text in said:
        assert "ended: launcher (process " in text
    for rank, text in enumerate(said):
        assert f"rank {rank} was in '{phase}'" in text
        assert f"rank {rank} was not done with '{phase}' within 30 s (launch.phase_timeout_s=30): " in text
        assert "mend the network, or raise launch.phase_timeout_s; the same command goes on" in text
    assert wait_for(lambda: processes_of(owner) == {})
    ip("-n", hosts[1][0], "link", "set", hosts[1][1], "up")
    assert by_hosts(hosts, recipe, "cut", None) == ["", ""]
    found = recipe.parent / "runs" / "cut"
    assert "going on from checkpoint" in (found / "logs" / "rank0.log").read_text()
    assert_same_bytes(found, by_ranks(recipe, "uncut", *SHORT))
