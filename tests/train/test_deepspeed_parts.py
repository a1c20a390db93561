"""Critics, episodes, adapters and shared sequences: two ranks of DeepSpeed end as torch alone does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.train.rank_group import installed, run
from tests.warm import warm

RANK = "tests.train.zero_parts"
PARTS = ("critics", "chunks", "episodes", "adapters", "adapters_of_experts", "sequences")
DIVIDED = [(1, "none"), (2, "none"), (3, "none"), (1, "optimizer"), (2, "optimizer"), (3, "all")]
"""Stages of ZeRO, each with what is offloaded."""


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run(RANK, 2, str(tmp_path_factory.mktemp("parts")), ",".join(PARTS))


@installed
@pytest.mark.integration
@pytest.mark.slow
class TestTwoRanks:
    def test_train_a_critic_as_torch_does(self, ends: list[dict[str, Any]]) -> None:
        for rank in (r["critics"] for r in ends):
            for how, seen in rank.items():
                assert max(seen["weights"], seen["critic"], seen["metrics"]) < 1e-5, (how, seen)
                assert seen["resumed"] == seen["critic resumed"] == 0.0, (how, seen)
                assert seen["moved"] > 1e-3, (how, seen)
                assert seen["refused"] == 1.0, (how, seen)

    def test_train_with_logits_in_chunks_as_with_all(self, ends: list[dict[str, Any]]) -> None:
        for rank in (r["chunks"] for r in ends):
            for how, seen in rank.items():
                assert max(seen["weights"], seen["metrics"]) < 1e-5, (how, seen)

    def test_train_on_episodes_as_torch_does(self, ends: list[dict[str, Any]]) -> None:
        for rank in (r["episodes"] for r in ends):
            assert rank.keys() == {"zero1", "zero3 together"}
            for how, seen in rank.items():
                assert max(seen["weights"], seen["metrics"]) < 1e-5, (how, seen)

    @pytest.mark.parametrize(("part", "stages"), [("adapters", {0, 1}), ("adapters_of_experts", {2, 3})])
    def test_train_adapters_as_torch_does(self, part: str, stages: set[int], ends: list[dict[str, Any]]) -> None:
        for rank in (r[part] for r in ends):
            assert rank.keys() == {f"zero{zero}" for zero in stages}
            for how, seen in rank.items():
                assert max(seen["weights"], seen["metrics"]) < 1e-5, (how, seen)
                assert seen["resumed"] == seen["saved"] == 0.0, (how, seen)
                assert seen["base"] == 1.0, (how, seen)
                assert seen["moved"] > 1e-3, (how, seen)

    def test_hold_each_sequence_together(self, ends: list[dict[str, Any]]) -> None:
        for rank in (r["sequences"] for r in ends):
            for how, seen in rank.items():
                assert max(seen["weights"], seen["metrics"]) < 1e-5, (how, seen)
                assert seen["said"] == 0.0, (how, seen)


def norms(zero: int, offload: str) -> list[float]:
    """The gradient's norm in updates whose micro-batches use the whole policy, or its embeddings alone."""
    import torch

    from tests.train.batches import two_layers
    from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
    from verizero.pipeline.train.deepspeed_backend import DeepSpeedBackend
    from verizero.pipeline.train.torch_backend import TorchBackend

    ids = torch.tensor([[3, 4, 5, 6]])

    def whole(model: Any) -> torch.Tensor:
        return model(input_ids=ids).logits.square().mean() * 100  # type: ignore[no-any-return]

    def embeddings(model: Any) -> torch.Tensor:
        return (model.model.embed_tokens(ids) ** 2).mean() / 1000  # type: ignore[no-any-return]

    model, config = two_layers(), OptimizerConfig(learning_rate=1e-3, max_grad_norm=None)
    backend: Any = TorchBackend(model)
    if zero:
        train = TrainConfig(backend="deepspeed", device="cpu", zero=zero, offload=offload)  # type: ignore[arg-type]
        backend = DeepSpeedBackend(model, train)
    backend.start(config, 5)
    seen = []
    for losses in ([whole], [embeddings], [embeddings, whole], [whole, embeddings], [embeddings]):
        for loss in losses:
            if zero:
                backend.sharded.engine.backward(backend.sharded.engine(loss))
            else:
                loss(model).backward()
        seen.append(backend.sharded.step(config, 1e-3, 0) if zero else plain_step(backend, config))
    return seen


def plain_step(backend: Any, config: Any) -> float:
    """An update of torch's backend, in which a parameter that nothing used has a gradient of zero as in DeepSpeed's."""
    from verizero.pipeline.train.optimizer import clipped_step, finite_norm

    parameters = [p for p in backend.model.parameters() if p.grad is not None]
    norm = finite_norm(parameters, "gradient norm", 0)
    clipped_step(backend.optimizer, config, parameters, norm, 1e-3)
    backend.optimizer.zero_grad(set_to_none=False)
    return float(norm)


def norms_of_each(settings: list[tuple[int, str]]) -> list[list[float]]:
    """`norms` of each, in one process."""
    return [norms(zero, offload) for zero, offload in settings]


@installed
@pytest.mark.integration
def test_a_parameter_that_an_update_does_not_use_keeps_no_gradient_of_an_earlier_one() -> None:
    plain, *divided = warm().call(norms_of_each, [(0, "none"), *DIVIDED])
    for how, seen in zip(DIVIDED, divided, strict=True):
        assert seen == pytest.approx(plain, rel=1e-5), how


def test_the_reference_waits_on_the_cpu_where_that_is_asked_for() -> None:
    """Between its own log-probs and the policy's; on this machine both are the CPU, so the moves are counted."""
    import torch

    from tests.train.batches import two_layers
    from verizero.pipeline.config.sections import TrainConfig
    from verizero.pipeline.train.deepspeed_backend import DeepSpeedBackend

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
        backend = DeepSpeedBackend(two_layers(), config)
        backend.reference = Travelling()
        backend._place_reference("policy")
        backend._place_reference("policy")
        assert backend.reference.seats == wanted
