"""Critics, adapters and shared sequences that two ranks of DeepSpeed train end as those that torch trains alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.train.rank_group import installed, run

RANK = "tests.train.zero_parts"


@installed
@pytest.mark.integration
@pytest.mark.slow
class TestTwoRanks:
    def test_train_a_critic_as_torch_does(self, tmp_path: Path) -> None:
        for rank in run(RANK, 2, str(tmp_path), "critics"):
            for how, seen in rank.items():
                assert max(seen["weights"], seen["critic"], seen["metrics"]) < 1e-5, (how, seen)
                assert seen["resumed"] == seen["critic resumed"] == 0.0, (how, seen)
                assert seen["moved"] > 1e-3, (how, seen)
                assert seen["refused"] == 1.0, (how, seen)

    def test_train_with_logits_in_chunks_as_with_all(self, tmp_path: Path) -> None:
        for rank in run(RANK, 2, str(tmp_path), "chunks"):
            for how, seen in rank.items():
                assert max(seen["weights"], seen["metrics"]) < 1e-5, (how, seen)

    def test_train_adapters_as_torch_does(self, tmp_path: Path) -> None:
        for rank in run(RANK, 2, str(tmp_path), "adapters"):
            for how, seen in rank.items():
                assert max(seen["weights"], seen["metrics"]) < 1e-5, (how, seen)
                assert seen["resumed"] == seen["saved"] == 0.0, (how, seen)
                assert seen["base"] == 1.0, (how, seen)
                assert seen["moved"] > 1e-3, (how, seen)

    def test_hold_each_sequence_together(self, tmp_path: Path) -> None:
        for rank in run(RANK, 2, str(tmp_path), "sequences"):
            for how, seen in rank.items():
                assert max(seen["weights"], seen["metrics"]) < 1e-5, (how, seen)
                assert seen["said"] == 0.0, (how, seen)


def test_the_reference_waits_on_the_cpu_where_that_is_asked_for() -> None:
    """Between its own log-probs and the policy's; on this machine both are the CPU, so the moves are counted."""
    import torch

    from pipeline.config.sections import TrainConfig
    from pipeline.train.deepspeed_backend import DeepSpeedBackend
    from tests.train.batches import policy

    class Travelling(torch.nn.Module):
        """A reference that says it is on another device than the one asked for."""

        def __init__(self) -> None:
            super().__init__()
            self.device = torch.device("meta")
            self.seats: list[str] = []

        def to(self, *args: Any, **_: Any) -> Any:
            self.device = args[0]
            self.seats.append(str(args[0]))
            return self

    for offload, wanted in (("all", ["cpu"]), ("none", [])):
        config = TrainConfig(backend="deepspeed", zero=3, offload=offload)  # type: ignore[arg-type]
        backend = DeepSpeedBackend(policy(dtype=torch.float32), config)
        backend.reference = Travelling()
        backend._place_reference("policy")
        backend._place_reference("policy")
        assert backend.reference.seats == wanted
