"""Stages that begin with the policy of an earlier stage, or of the base: as if those between had never been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.stages.broken import Broken, goes_on_as_if_never_broken, run
from tests.stages.tiny import tiny
from verizero.pipeline.config.load import load_recipe, only_stages
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import CheckpointError, ConfigError

BETWEEN = {"name": "between", "kind": "sft", "with": {"steps": 3}}
RL = {"rounds": 1, "steps_per_round": 2, "select": {"keep": "all"}}


def recipe(*stages: Any, **changes: Any) -> RunConfig:
    given = {
        "stages": list(stages),
        "sft": {"steps": 20},
        "rl": RL,
        "data": {"evaluation": []},
        "rollout": {"max_response_tokens": 10},
    }
    return tiny({**given, **changes})


def last(start: str | None, kind: str = "sft") -> dict[str, Any]:
    own: dict[str, Any] = {"steps": 4} if kind == "sft" else {"steps_per_round": 3}
    return {"name": "last", "kind": kind, "with": own, **({} if start is None else {"from": start})}


def weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


@pytest.mark.run
@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_stages_between_leave_no_trace_in_the_policy(tmp_path: Path, kind: str) -> None:
    run(recipe("sft", last(None, kind)), tmp_path / "plain")
    config = recipe("sft", BETWEEN, last("sft", kind))
    if kind == "sft":  # broken between the stages, it has weights of `between`
        goes_on_as_if_never_broken(config, tmp_path / "from", [("train", 2)])
    else:
        run(config, tmp_path / "from" / "whole")
    assert weights(tmp_path / "from" / "whole") == weights(tmp_path / "plain")


@pytest.mark.run
def test_base_is_the_model_that_the_first_stage_starts_from(tmp_path: Path) -> None:
    run(recipe("sft", last("base")), tmp_path / "from")
    run(recipe(last(None)), tmp_path / "plain")
    assert weights(tmp_path / "from") == weights(tmp_path / "plain")
    run(recipe("sft", last(None)), tmp_path / "other")
    assert weights(tmp_path / "other") != weights(tmp_path / "plain")


@pytest.mark.run
def test_an_end_that_cannot_be_trusted_is_refused(tmp_path: Path) -> None:
    config = recipe("sft", BETWEEN, last("sft"))
    with pytest.raises(Broken):
        run(config, tmp_path / "run", ("train", 3))
    (tmp_path / "run" / "checkpoints" / "00000000" / "trainer.pt").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match=r"checkpoint .*00000000: trainer.pt has 4 bytes"):
        run(config, tmp_path / "run")


def test_a_stage_left_out_is_not_begun_with() -> None:
    path = Path(__file__).parents[2] / "configs" / "stages" / "star.yaml"
    config = load_recipe(path)
    assert [s.start for s in config.stages if s.kind == "sft"] == [None, "sft", "sft"]
    with pytest.raises(ConfigError, match="from: sft is no stage before it"):
        only_stages(config, ["reason_2", "imitate_2"], path.parent)
