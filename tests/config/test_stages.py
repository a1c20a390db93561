"""A recipe as a list of stages: names, kinds, what differs in one, and what is refused while loading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.stages.tiny import TREE, tiny
from verizero.pipeline.config.load import dump, load_recipe, only_stages, parse
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import ConfigError

AGAIN: list[Any] = [
    "rl",
    "sft",
    {"name": "sft_again", "kind": "sft", "with": {"steps": 7, "optimizer": {"warmup_steps": 0}}},
    {"name": "rl_again", "kind": "rl", "with": {"rounds": 5, "algorithm": {"name": "rloo"}}},
]


def refusal(*stages: Any, **changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        tiny({"stages": list(stages), **changes})
    return str(caught.value)


def test_any_order_and_repeats_under_other_names() -> None:
    config = tiny({"stages": AGAIN})
    assert config.stage_names == ("rl", "sft", "sft_again", "rl_again")
    assert [s.kind for s in config.stages] == ["rl", "sft", "sft", "rl"]


def test_a_stage_sees_the_recipe_with_its_own_section() -> None:
    config = tiny({"stages": AGAIN})
    assert config.sft is not None
    assert config.of_stage("sft") == config.model_copy(update={"stages": (config.stages[1],)})
    seen = config.of_stage("sft_again").sft
    assert seen is not None
    assert (seen.steps, seen.batch_size) == (7, config.sft.batch_size)
    assert seen.optimizer == config.sft.optimizer.model_copy(update={"warmup_steps": 0})
    rl = config.of_stage("rl_again").rl
    assert rl is not None
    assert (rl.rounds, rl.group_size, rl.algorithm) == (5, 6, {"name": "rloo"})  # none of grpo's parameters


def test_a_section_may_be_given_by_a_stage_alone() -> None:
    config = tiny({"stages": [{"name": "cold", "kind": "sft", "with": {"steps": 3}}], "sft": None})
    assert config.sft is None
    seen = config.of_stage("cold").sft
    assert seen is not None
    assert seen.steps == 3


def test_the_written_recipe_reads_back_the_same() -> None:
    config = tiny({"stages": AGAIN})
    again = parse(yaml.safe_load(dump(config)))
    assert again == config
    assert dump(again) == dump(config)
    assert yaml.safe_load(dump(config))["stages"][:2] == ["rl", "sft"]


def test_every_kind_is_a_section_and_a_module() -> None:
    from verizero.pipeline.registry import find, names

    kinds = RunConfig.kinds()
    assert {kind: find("stages", kind).KIND.section for kind in kinds} == kinds
    assert set(names("stages")) == {*kinds, "evaluate"}


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([], "stages: a run has at least one, e.g. [sft, rl], got []"),
        (["sft", "sft"], "sft, sft"),
        (["sft", "dpi"], "stages.1: a stage's kind is one of pretrain, sft, rl"),
        ([{"name": "rl", "kind": "sft"}], "stages.0: 'rl' means a kind of its own"),
        ([{"name": "update", "kind": "sft"}], "stages.0: 'update' means something else in a run's files"),
        ([{"name": "a b", "kind": "sft"}], "stages.0.name"),
        ([{"name": "a", "kind": "sft", "wit": {}}], "unknown key 'stages.0.wit'; did you mean with?"),
        ([{"kind": "sft"}], "'stages.0.name' is missing"),
        ([{"name": "a", "kind": "sft", "with": {"stepz": 1}}], "unknown key 'stages.0.with.stepz'; did you mean steps"),
        ([{"name": "a", "kind": "sft", "with": {"steps": 0}}], "stages.0.with.steps: Input should be greater"),
        ([{"name": "a", "kind": "rl", "with": {"optimizer": {"eta": 1}}}], "unknown key 'stages.0.with.optimizer.eta'"),
        ([{"name": "a", "kind": "rl", "with": {"group_size": 1}}], "stage 'a': group_size must be >= 2"),
        (
            [{"name": "a", "kind": "sft", "with": {"demonstrations": "b"}}],
            "names 'b', which is no stage before it; put",
        ),
        (
            ["sft", {"name": "a", "kind": "sft", "with": {"demonstrations": "sft"}}],
            "stages.1 (a): sft.demonstrations names 'sft', which leaves no demonstrations.jsonl",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(stages: list[Any], said: str) -> None:
    assert said in refusal(*stages)


def test_a_kind_without_a_section_is_refused() -> None:
    assert "stages name 'pretrain' but the recipe has no such section" in refusal("pretrain", "sft")


def test_chosen_stages_come_as_they_are_named() -> None:
    config = tiny({"stages": AGAIN})
    chosen = only_stages(config, ["sft", "rl_again"])
    assert chosen.stage_names == ("sft", "rl_again")
    assert chosen.of_stage("rl_again").rl == config.of_stage("rl_again").rl
    assert only_stages(tiny({"stages": ["rl"]}), ["sft", "rl"]).stage_names == ("sft", "rl")
    with pytest.raises(ConfigError, match=r"stages.*: sft, sft"):
        only_stages(config, ["sft", "sft"])
    with pytest.raises(ConfigError, match=r"'ppo'.* rl, sft, sft_again, rl_again"):
        only_stages(config, ["ppo"])


def test_stages_are_chosen_while_loading(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump({**TREE, "stages": AGAIN}))
    assert load_recipe(path, stages=["sft_again"]).stage_names == ("sft_again",)
    assert load_recipe(path).stage_names == ("rl", "sft", "sft_again", "rl_again")
