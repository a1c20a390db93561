"""DeepSpeed on two ranks is torch on one, at every ZeRO stage; it resumes bit for bit, and on one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.stages.tiny import TREE
from tests.train.batches import two_layers
from tests.train.rank_group import installed, run
from tests.train.zero_rank import HALVES
from verizero.pipeline.config.load import parse
from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.errors import ConfigError, RunError
from verizero.pipeline.train.deepspeed_backend import DeepSpeedBackend

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

    @pytest.mark.parametrize("how", list(HALVES))
    def test_train_bfloat16_with_float32_masters_and_sums(self, ends: list[dict[str, Any]], how: str) -> None:
        for rank in ends:
            assert 0 < rank["bfloat16"][how]["weights"] < 0.02
            assert rank["bfloat16"][how]["resumed"] == 0
            assert rank["bfloat16"][how]["sum"] == pytest.approx(1 + 32 / 512, abs=1e-6)

    def test_are_followed_by_one(self, ends: list[dict[str, Any]], folder: Path) -> None:
        (found,) = run(RANK, 1, str(folder), "alone")
        assert max(found.values()) < 1e-5


class Undivided:
    """An engine that leaves the policy as it is."""

    def __init__(self, *_: Any) -> None:
        pass

    def restart(self, optimizer: OptimizerConfig) -> None:
        pass


def settings() -> TrainConfig:
    return TrainConfig(backend="deepspeed", device="cpu", zero=2)


@pytest.mark.parametrize("with_reference", [True, False])
def test_the_first_policy_is_copied_where_a_reference_may_be_asked_for(
    with_reference: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verizero.pipeline.train.deepspeed_backend.Sharded", Undivided)
    backend = DeepSpeedBackend(two_layers(dtype=torch.float64), settings(), with_reference=with_reference)
    backend.start(OptimizerConfig(learning_rate=1e-3), 1)
    assert (backend._spare is not None) is with_reference
    if with_reference:
        backend.refresh_reference()
        assert all(map(torch.equal, backend.reference.parameters(), backend.model.parameters()))
    else:
        with pytest.raises(RunError, match="made for stages without a reference"):
            backend.refresh_reference()


def test_a_reference_that_was_saved_on_another_gpu_is_read_onto_its_own_device(tmp_path: Path) -> None:
    """The file says "cuda:0", as rank 0 writes it: without `map_location` it cannot be read where there is no GPU."""
    backend = DeepSpeedBackend(two_layers(dtype=torch.float64), settings())
    backend.refresh_reference()
    from_gpu = (0, lambda storage: "cuda:0", lambda storage, place: None)
    torch.serialization.register_package(*from_gpu)
    try:
        backend.save(tmp_path, lambda model, folder: model.save_pretrained(folder))
    finally:
        registered = torch.serialization._package_registry
        registered[:] = [entry for entry in registered if entry[1] is not from_gpu[1]]
    with pytest.raises(RuntimeError, match="on a CUDA device"):
        torch.load(tmp_path / "reference.pt", weights_only=True)
    again = DeepSpeedBackend(two_layers(1, torch.float64), settings())
    again.load(tmp_path)
    assert again.reference.device == again.model.device
    assert all(map(torch.equal, again.reference.parameters(), backend.reference.parameters()))


class TestRecipes:
    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"zero": 2}, "train.zero=2 with train.backend=auto"),
            ({"offload": "optimizer"}, "train.offload=optimizer with train.backend=auto"),
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
