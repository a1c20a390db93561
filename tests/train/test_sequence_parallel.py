"""Two ranks that hold each sequence together are one rank: log-probs, gradients, some steps of GRPO and PPO."""

from __future__ import annotations

import dataclasses

import pytest

from tests.stages.tiny import TREE
from tests.train.rank_group import run
from verizero.pipeline.config.load import parse
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.train.ranks import Ranks, sharing_sequences


@pytest.mark.integration
@pytest.mark.slow
def test_two_ranks_are_one() -> None:
    for rank in run("tests.train.sequence_rank", 2):
        for how, gap in rank["apart"].items():
            assert gap < 1e-5, (how, gap)
        assert "train.sequence_parallel=2: the attention has a sliding window" in rank["window"]
        assert "train.sequence_parallel=2 does not divide the policy's 3 attention heads" in rank["heads"]


def test_ranks_that_cannot_be_grouped_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"sequence_parallel=2 does not divide the 3 ranks"):
        sharing_sequences(Ranks(0, 3), 2)
    assert sharing_sequences(Ranks(1, 3), 1) == Ranks(1, 3)


def test_a_recipe_whose_ranks_cannot_be_grouped_is_refused_while_loading() -> None:
    tree = {**TREE, "train": {"sequence_parallel": 2}, "launch": {"kind": "local", "gpus_per_node": 3}}
    with pytest.raises(ConfigError, match=r"train\.sequence_parallel=2 does not divide the 3 ranks"):
        parse(tree)


def test_rows_are_dealt_to_those_that_hold_sequences() -> None:
    assert Ranks(2, 4).row_ranks == Ranks(2, 4)
    assert dataclasses.replace(Ranks(2, 4), columns=Ranks(1, 2)).row_ranks == Ranks(1, 2)
