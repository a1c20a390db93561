"""A recipe as a list of stages: names, kinds, what differs in one, and what is refused while loading."""

import pytest
import yaml

from tests.stages.tiny import TREE, tiny
from verizero.pipeline.config.load import load_recipe, only_stages
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import ConfigError

AGAIN = [
    "rl",
    "sft",
    {"name": "sft_again", "kind": "sft", "with": {"steps": 7, "optimizer": {"warmup_steps": 0}}},
    {"name": "rl_again", "kind": "rl", "with": {"rounds": 5, "algorithm": {"name": "rloo"}}},
]


def test_a_stage_sees_the_recipe_with_its_own_section():
    config = tiny({"stages": AGAIN})
    assert config.of_stage("sft") == config.model_copy(update={"stages": (config.stages[1],)})
    seen = config.of_stage("sft_again").sft
    assert (seen.steps, seen.batch_size) == (7, config.sft.batch_size)
    assert seen.optimizer == config.sft.optimizer.model_copy(update={"warmup_steps": 0})
    rl = config.of_stage("rl_again").rl
    assert (rl.rounds, rl.group_size, rl.algorithm) == (5, 6, {"name": "rloo"})  # none of grpo's parameters


def test_a_section_may_be_given_by_a_stage_alone():
    config = tiny({"stages": [{"name": "cold", "kind": "sft", "with": {"steps": 3}}], "sft": None})
    assert config.sft is None
    seen = config.of_stage("cold").sft
    assert seen.steps == 3


def test_every_kind_is_a_section_and_a_module():
    from verizero.pipeline.registry import find, names

    kinds = RunConfig.kinds()
    assert {kind: find("stages", kind).KIND.section for kind in kinds} == kinds
    assert set(names("stages")) == {*kinds, "evaluate"}


def test_chosen_stages_come_as_they_are_named():
    config = tiny({"stages": AGAIN})
    chosen = only_stages(config, ["sft", "rl_again"])
    assert chosen.stage_names == ("sft", "rl_again")
    assert chosen.of_stage("rl_again").rl == config.of_stage("rl_again").rl
    assert only_stages(tiny({"stages": ["rl"]}), ["sft", "rl"]).stage_names == ("sft", "rl")
    with pytest.raises(ConfigError, match=r"stages.*: sft, sft"):
        only_stages(config, ["sft", "sft"])
    with pytest.raises(ConfigError, match=r"'ppo'.* rl, sft, sft_again, rl_again"):
        only_stages(config, ["ppo"])


def test_stages_are_chosen_while_loading(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump({**TREE, "stages": AGAIN}))
    assert load_recipe(path, stages=["sft_again"]).stage_names == ("sft_again",)
    assert load_recipe(path).stage_names == ("rl", "sft", "sft_again", "rl_again")
