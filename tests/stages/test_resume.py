"""A run killed at any moment and started again ends with the bytes of a run never killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.stages.kill_driver import SCENARIOS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("killed")
    done = subprocess.run(
        [sys.executable, "-m", "tests.stages.kill_driver", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["whole_status"] == 0
    return found


@pytest.mark.integration
@pytest.mark.parametrize("kills", SCENARIOS, ids=repr)
def test_killed_and_resumed_equals_never_killed(ends: dict[str, Any], kills: list[tuple[str, int, str]]) -> None:
    scenario = ends["killed"][repr(kills)]
    assert scenario["deaths"] == [-signal.SIGKILL] * len(kills), "the kill did not happen where it was meant to"
    assert scenario["last"] == 0
    assert scenario["end"] == ends["whole"]
