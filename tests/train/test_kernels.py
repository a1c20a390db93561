"""With sharded weights too, the kernel of log-probs gets plain output embeddings, and trains as torch alone does."""

from __future__ import annotations

import pytest

from tests.train.rank_group import installed, run_interpreted


@installed
@pytest.mark.integration
@pytest.mark.slow
def test_sharded_backends_hand_the_kernel_plain_tensors_and_get_its_gradients() -> None:
    for rank in run_interpreted("tests.train.kernel_rank", 2):
        assert rank.keys() == {"fsdp", "zero3"}
        for name, seen in rank.items():
            assert seen["weights"] < 1e-5, name
            assert seen["metrics"] < 1e-5, name
            assert seen["calls"] == seen["plain"] > 0, name
