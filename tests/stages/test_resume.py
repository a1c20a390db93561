"""A run killed at any moment and started again ends with the bytes of a run never killed."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.stages.broken import killed
from tests.stages.kill_driver import SCENARIOS
from tests.stages.start import started


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return killed(tmp_path_factory.mktemp("killed"), *started())


@pytest.mark.integration
@pytest.mark.parametrize("kills", SCENARIOS, ids=repr)
def test_killed_and_resumed_equals_never_killed(ends: dict[str, Any], kills: list[tuple[str, int, str]]) -> None:
    scenario = ends["killed"][repr(kills)]
    assert scenario["deaths"] == [-signal.SIGKILL] * len(kills), "the kill did not happen where it was meant to"
    assert scenario["last"] == 0
    assert scenario["end"] == ends["whole"]
