"""The parity check: a difference between engine and trainer is reported, corrected or ends the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.stages.recorded import CUT, EXPERTS, V32
from tests.stages.sessions import Heard, display, session_of
from tests.stages.tiny import tiny
from verizero.pipeline.errors import RunError
from verizero.pipeline.loop.parity import check_parity
from verizero.pipeline.report.progress import Silent
from verizero.pipeline.run.opening import open_run
from verizero.pipeline.run.sampling import sampling, temperature
from verizero.pipeline.run.session import Session


def parity_of(session: Session) -> Any:
    how = sampling(session.setup, temperature(session.setup, session.state))
    return check_parity(session.run, session.workers, session.setup.config.rollout, session.recorder, how)


class TestTheGate:
    """The scripted engine reports a log-prob of -0.5 for whatever it says, which no trainer agrees with."""

    def gap(self, folder: Path, action: str) -> tuple[Heard, Any]:
        with session_of(folder, rollout={"parity": {"action": action}}) as session:
            gap = parity_of(session)
            return display(session), gap

    def test_off_is_the_default_of_the_embedded_engine(self, tmp_path: Path) -> None:
        assert self.gap(tmp_path, "auto")[1] is None
        assert not (tmp_path / "run" / "parity.json").exists()

    def test_a_difference_is_said_and_written_down(self, tmp_path: Path) -> None:
        heard, gap = self.gap(tmp_path, "warn")
        assert gap.p50 <= gap.p99 <= gap.largest
        assert gap.mean > 1
        (said,) = [line for line in heard.lines if "differ" in line]
        assert "rollout.parity.action: correct" in said
        written = json.loads((tmp_path / "run" / "parity.json").read_text())
        assert written["differs"] is True
        assert written["mean"] == gap.mean

    def test_a_difference_ends_the_run_where_the_recipe_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match=r"differ in log-probs.*tolerance is 0\.001"):
            self.gap(tmp_path, "stop")

    def test_the_tolerance_is_the_types_unless_the_recipe_names_one(self) -> None:
        how = tiny().rollout
        assert (how.parity_tolerance("float32"), how.parity_tolerance("bfloat16")) == (1e-3, 5e-2)
        assert tiny(overrides=["rollout.parity.tolerance=0.2"]).rollout.parity_tolerance("bfloat16") == 0.2

    def test_the_embedded_engine_passes(self, tmp_path: Path) -> None:
        config = tiny({"stages": ["rl"], "sft": None, "rollout": {"parity": {"action": "stop"}}})
        with open_run(config, tmp_path, tmp_path / "run", "auto", Silent()) as session:
            gap = parity_of(session)
        assert gap is not None
        assert gap.mean < 1e-5


def test_the_parity_gate_compares_over_what_was_recorded(tmp_path: Path) -> None:
    config = tiny(overrides=[V32, *EXPERTS, *CUT, "rollout.parity.action=warn", "stages=[rl]"])
    with open_run(config, tmp_path, tmp_path, "auto", Silent()) as session:
        gap = check_parity(
            session.run, session.workers, session.setup.config.rollout, session.recorder, sampling(session.setup, 1.0)
        )
    assert gap is not None
    assert gap.num_tokens > 20
    assert gap.largest < 1e-5
