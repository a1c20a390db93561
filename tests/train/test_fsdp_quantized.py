"""FSDP divides a base in four bits, or in the blocks of a file, and trains the adapters that torch alone does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.train.rank_group import run


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nf4", "gguf"])
def test_two_ranks_hold_half_of_the_bits_each_and_train_what_one_does(kind: str, tmp_path: Path) -> None:
    pytest.importorskip({"nf4": "bitsandbytes", "gguf": "gguf"}[kind])
    ranks: list[dict[str, Any]] = run("tests.train.quantized_rank", 2, str(tmp_path), kind)
    assert len(ranks) == 2
    for rank in ranks:
        for name, seen in rank.items():
            assert seen["weights"] < 1e-5, name
            assert seen["base_numbers"] == 0.0, "bits that are read layer by layer are those of a whole base"
            assert seen["metrics"] < 1e-5, name
            assert seen["resumed"] == 0.0, name
            assert seen["base"] == pytest.approx(0.5, abs=0.01)
            assert seen["planned"] == pytest.approx(1, rel=0.1)
            assert seen["num_weights"] == 1.0, "the operations of an update are counted from them"
            assert seen["saved"] == ["adapter", "fsdp.json", "shards"]
            assert seen["is_base"], "the reference is the base and costs nothing"
