"""A cell or a script that is interrupted, and run again in the same process."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

import verizero as vz
from tests.library.tiny import ROWS, SMALL, weights

EVERY: dict[str, Any] = {**SMALL, "checkpoint.every_steps": 1}


def train(name: str, *callbacks: Any) -> vz.TrainedRun:
    return vz.train("tiny", ROWS, reward=length, name=name, steps=4, quiet=True, callbacks=callbacks, **EVERY)


def length(completion: str) -> float:
    return float(len(completion) % 3)


@pytest.mark.integration
def test_an_interrupted_call_goes_on_when_it_is_made_again(folder: Path) -> None:
    whole = train("whole")

    def interrupt(event: vz.Event) -> None:
        if event.kind == "step" and event.step == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train("parts", interrupt)
    assert json.loads(Path("runs/parts/run.json").read_text())["ended"]["reason"] == "interrupted"
    steps: list[int] = []
    again = train("parts", lambda event: steps.append(event.step) if event.kind == "step" else None)
    assert steps == [3, 4], "the step that was interrupted is done again"
    assert weights(again) == weights(whole)
    with vz.open("tiny", ROWS, reward=length, name="parts", steps=4, quiet=True, **EVERY) as s:
        assert s.done, "nothing holds the folder"
