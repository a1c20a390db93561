"""Pools that the tests of a file share, and tests at the highest level where a machine has it."""

import os
import shutil
import subprocess
from functools import cache

import pytest

from verizero import sandbox

LEVEL_2 = ("landlock", "seccomp", "uid")


@cache
def refused() -> str | None:
    """Why there are no user namespaces here, in the words of a program that is not ours; None where there are."""
    if shutil.which("unshare") is None:
        return None
    tried = subprocess.run(["unshare", "--user", "--net", "true"], capture_output=True, text=True, check=False)
    return tried.stderr.strip() if tried.returncode else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out what is to run at level 3, or with namespaces in place of another wall, where there are none."""
    wanted = getattr(item, "callspec", None)
    walls = [wanted.params.get(name, ()) for name in ("pool", "walls")] if wanted is not None else []
    if os.geteuid() != 0 and any("uid" in w and "seccomp" not in w for w in walls if not isinstance(w, str)):
        pytest.skip("an ordinary user has one uid, so programs would lack two walls: run the tests as root")
    if any(w == "level3" or "namespaces" in w for w in walls) and (why := refused()):
        pytest.skip(f"no user namespaces here ({why}): sysctl user.max_user_namespaces, or the container's profile")


@pytest.fixture(scope="module")
def pool():
    """One worker behind all walls that this machine has."""
    with sandbox.Pool(workers=1) as made:
        yield made


@pytest.fixture(scope="module", params=[sandbox.WALLS, LEVEL_2], ids=["level3", "level2"])
def walls(request):
    """The walls of each level."""
    return request.param


@pytest.fixture(scope="module")
def level(walls):
    """One worker at each level."""
    with sandbox.Pool(workers=1, walls=walls) as made:
        yield made


@pytest.fixture(scope="module")
def tools(walls):
    """One worker at each level with a shell, compilers and other interpreters."""
    with sandbox.Pool(workers=1, walls=walls, tools=sandbox.TOOLS) as made:
        yield made
