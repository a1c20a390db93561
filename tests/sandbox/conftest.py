"""One flood of processes at a time: without a namespace of its own a user's bound on processes is the machine's."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="module")
def alone() -> Iterator[None]:
    """Modules here wait for each other, also where tests run in several processes."""
    with (Path(tempfile.gettempdir()) / f"verizero-floods-{os.getuid()}").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
