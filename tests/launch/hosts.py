"""Two hosts: network namespaces of this machine, joined by one cable; they share its files."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

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


@contextmanager
def two_hosts() -> Iterator[list[tuple[str, str]]]:
    """Namespace and cable of each of two."""
    if (why := refused()) is not None:
        pytest.skip(why)
    names = [(f"vz{os.getpid()}h{i}", f"vz{os.getpid()}c{i}") for i in (0, 1)]
    made = []
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


def enter(space: str) -> None:
    """Move this process into that network namespace."""
    with open(f"/run/netns/{space}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {space}")
