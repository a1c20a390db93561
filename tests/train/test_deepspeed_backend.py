"""DeepSpeed on two ranks is torch on one, at every ZeRO stage; it resumes bit for bit, and on one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.config.load import parse
from pipeline.config.sections import TrainConfig
from pipeline.errors import ConfigError
from tests.stages.tiny import TREE
from tests.train.rank_group import installed, run

RANK = "tests.train.zero_rank"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("zero")


@pytest.fixture(scope="module")
def ends(folder: Path) -> list[dict[str, Any]]:
    return run(RANK, 2, str(folder))


@installed
@pytest.mark.integration
@pytest.mark.slow
class TestTwoRanks:
    @pytest.mark.parametrize("how", ["torch", "zero0", "zero1", "zero2", "zero3", "offload", "checkpointing"])
    def test_end_where_torch_alone_does(self, ends: list[dict[str, Any]], how: str) -> None:
        for rank in ends:
            assert rank[how]["weights"] < 1e-5
            assert rank[how].get("metrics", 0.0) < 1e-5

    @pytest.mark.parametrize("how", ["zero0", "zero1", "zero2", "zero3", "offload"])
    def test_resume_bit_for_bit(self, ends: list[dict[str, Any]], how: str) -> None:
        assert [rank[how]["resumed"] for rank in ends] == [0.0, 0.0]
        assert [rank[how]["saved"] for rank in ends] == [0.0, 0.0]

    @pytest.mark.parametrize("how", ["zero0", "zero1", "zero2", "zero3", "offload"])
    def test_refuse_a_gradient_that_is_not_finite(self, ends: list[dict[str, Any]], how: str) -> None:
        assert [rank[how]["refused"] for rank in ends] == [0.0, 0.0]

    def test_train_bfloat16_with_float32_masters(self, ends: list[dict[str, Any]]) -> None:
        for rank in ends:
            assert 0 < rank["bfloat16"]["weights"] < 0.02

    def test_are_followed_by_one(self, ends: list[dict[str, Any]], folder: Path) -> None:
        (found,) = run(RANK, 1, str(folder), "alone")
        assert max(found.values()) < 1e-5


class TestRecipes:
    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"zero": 2}, "train.zero=2 with train.backend=torch"),
            ({"offload": "optimizer"}, "train.offload=optimizer with train.backend=torch"),
            ({"backend": "deepspeed", "zero": 2, "offload": "all"}, "set train.zero: 3"),
            ({"backend": "deepspeed", "offload": "optimizer"}, "with train.zero=0"),
        ],
    )
    def test_what_does_not_go_together_is_refused_while_loading(self, given: dict[str, Any], said: str) -> None:
        with pytest.raises(ValueError, match=said):
            TrainConfig.model_validate(given)

    def test_bfloat16_needs_a_stage_with_master_weights(self) -> None:
        tree = {**TREE, "train": {"backend": "deepspeed"}, "model": {"path": "x", "dtype": "bfloat16"}}
        with pytest.raises(ConfigError, match=r"train\.zero=0 .* bfloat16 .*set train\.zero: 1"):
            parse(tree)
