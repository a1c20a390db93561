"""One flood of processes at a time: without a namespace of its own a user's bound on processes is the machine's."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

FLOODS = ("test_languages", "test_suite", "test_groups", "test_callers")


@pytest.fixture(autouse=True, scope="module")
def alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Modules whose programs fork without end wait for each other, also where tests run in several processes."""
    if request.module.__name__.rpartition(".")[2] not in FLOODS:
        yield
        return
    with (Path(tempfile.gettempdir()) / f"verizero-floods-{os.getuid()}").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
