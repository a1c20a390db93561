"""A whole run in bfloat16 with torch's backend: killed and resumed it is the run that was never killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.launch.runs import assert_same_bytes
from tests.stages.sessions import train_model
from tests.stages.tiny import TREE, tiny
from verizero.pipeline.loop import rounds


class Killed(BaseException):
    """The end of the process."""


@pytest.mark.integration
def test_a_break_in_rl_changes_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny(
        {
            "model": {**TREE["model"], "dtype": "bfloat16"},
            "sft": {"steps": 4},
            "rl": {"rounds": 1, "steps_per_round": 3},
            "checkpoint": {"every_steps": 1},
        }
    )
    folders = [tmp_path / name for name in ("straight", "broken")]
    train_model(config, tmp_path, folders[0])
    one_step, done = rounds.one_step, 0

    def killed_in_the_third(*given: Any) -> Any:
        nonlocal done
        done += 1
        if done == 3:
            raise Killed
        return one_step(*given)

    with monkeypatch.context() as patched:
        patched.setattr(rounds, "one_step", killed_in_the_third)
        with pytest.raises(Killed):
            train_model(config, tmp_path, folders[1])
    train_model(config, tmp_path, folders[1], "must")
    assert_same_bytes(folders[1], folders[0])
