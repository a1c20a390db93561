"""Fingerprints: the fields that decide a stage, changes between two of them, and the record of started stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.load import dump, parse
from pipeline.config.run import RunConfig
from pipeline.errors import RunError
from pipeline.run.fingerprints import RECORD, differences, read_record, recipe_fields
from tests.stages.tiny import tiny

SHORT: dict[str, Any] = {
    "stages": ["sft", "rl", {"name": "sft_again", "kind": "sft", "with": {"steps": 3}}],
    "sft": {"steps": 20},
    "rl": {"rounds": 1, "steps_per_round": 2, "select": {"keep": "all"}},
    "data": {"train": [{"file": "rows.jsonl", "verifier": "math"}], "evaluation": []},
}


def short(*overrides: str) -> RunConfig:
    return tiny(SHORT, overrides)


def test_fields_are_those_that_decide_the_stage() -> None:
    base = {s: recipe_fields(short().of_stage(s)) for s in ("sft", "rl")}
    for override, of_sft, of_rl in (
        ("sft.steps=21", True, False),
        ("rl.group_size=4", False, True),
        ("rollout.temperature=0.5", False, True),
        ("scoring.no_answer=-1", False, True),
        ("guard.action=stop", False, True),
        ("data.sampling.order=sequential", False, True),
        ("data.template={name: r1_zero}", True, True),
        ("seed=9", True, True),
        ("train.micro_batch_tokens=64", True, True),
        ("evaluation.every_rounds=3", False, False),
        ("sft.evaluate_every=5", False, False),
        ("output=elsewhere", False, False),
        ("sandbox.workers=9", False, False),
    ):
        config = short(override)
        found = [bool(differences(base[s], recipe_fields(config.of_stage(s)))) for s in ("sft", "rl")]
        assert found == [of_sft, of_rl], override


def test_evaluations_decide_where_the_engine_takes_weights_at_them() -> None:
    lagging = {**SHORT, "rollout": {"publish_every": 2}}
    before, now = (tiny(lagging, o).of_stage("rl") for o in ([], ["evaluation.every_rounds=3"]))
    assert differences(recipe_fields(before), recipe_fields(now)) == ["evaluation.every_rounds was 1, is 3"]


def test_an_endpoint_may_move_and_its_model_may_not_change() -> None:
    def fields(**endpoint: Any) -> dict[str, Any]:
        asked = {"url": "http://a/v1", "model": "teacher", **endpoint}
        return recipe_fields(tiny({"stages": ["sample"], "sample": {"endpoint": asked}}).of_stage("sample"))

    assert differences(fields(), fields(url="https://b/v1", parallel=3, timeout_s=9)) == []
    assert differences(fields(), fields(model="other")) == ["sample.endpoint.model was 'teacher', is 'other'"]


def test_a_record_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert read_record(tmp_path) == []
    (tmp_path / RECORD).write_text('{"stages": [{"name": 3}]}')
    with pytest.raises(RunError, match=r"stages\.json cannot be read"):
        read_record(tmp_path)


def test_a_run_may_resume_elsewhere_but_not_with_other_limits() -> None:
    moved = {"min_level": 1, "workers": 3, "url": "http://a", "token_env": "T"}
    base, elsewhere, other = (recipe_fields(tiny({"sandbox": s}).of_stage("rl")) for s in ({}, moved, {"cpu_s": 1}))
    assert differences(base, elsewhere) == []
    assert differences(base, other) == ["sandbox.cpu_s was None, is 1.0"]


def test_a_run_may_go_on_with_other_servers_but_not_with_another_engine() -> None:
    def asking(**rollout: Any) -> Any:
        return tiny({"rollout": rollout})

    begun = asking(engine="vllm_server", vllm={"urls": ["http://a:1"]})

    def changed(**rollout: Any) -> list[str]:
        before, now = (recipe_fields(c.of_stage("rl")) for c in (begun, asking(**rollout)))
        return differences(before, now)

    assert changed(engine="vllm_server", vllm={"servers": 3, "health_timeout_s": 9, "sleep": False}) == []
    assert changed(engine="vllm") == ["rollout.engine was 'vllm_server', is 'vllm'"]
    found = changed(engine="vllm_server", vllm={"max_model_tokens": 48})
    assert found == ["rollout.vllm.max_model_tokens was None, is 48"]


BETWEEN = {"name": "between", "kind": "sft", "with": {"steps": 3}}


RL = {"rounds": 1, "steps_per_round": 2, "select": {"keep": "all"}}


def recipe(*stages: Any, **changes: Any) -> RunConfig:
    given = {"stages": list(stages), "sft": {"steps": 20}, "rl": RL, "data": {"evaluation": []}}
    return tiny({**given, **changes})


def last(start: str | None, kind: str = "sft") -> dict[str, Any]:
    own: dict[str, Any] = {"steps": 4} if kind == "sft" else {"steps_per_round": 3}
    return {"name": "last", "kind": kind, "with": own, **({} if start is None else {"from": start})}


def test_it_decides_the_stage_and_is_written_down() -> None:
    config, other = recipe("sft", BETWEEN, last("sft")), recipe("sft", BETWEEN, last("base"))
    fields = [recipe_fields(c.of_stage("last")) for c in (config, other, recipe("sft", BETWEEN, last(None)))]
    assert differences(fields[0], fields[1]) == ["from was 'sft', is 'base'"]
    assert differences(fields[2], fields[0]) == ["from was None, is 'sft'"]
    assert parse(yaml.safe_load(dump(config))) == config
