"""FSDP on one, two and four ranks is torch on one; it resumes bit for bit, and on another number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.batches import two_layers
from tests.train.rank_group import run
from tests.train.zero_rank import IN_BFLOAT16, OF_SIZE, begun, steps
from verizero.pipeline.config.sections import TrainConfig
from verizero.pipeline.errors import RunError
from verizero.pipeline.train.fsdp_backend import FsdpBackend
from verizero.pipeline.train.fsdp_offload import OffloadedShards
from verizero.pipeline.train.fsdp_shards import _collective_errors_amid, own_group, read_tensors, write_tensors

RANK = "tests.train.zero_rank"
PARTS = ("critics", "adapters", "sequences", "episodes", "experts", "adapters_of_experts", "pairs")
CLOSE = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fsdp")


@pytest.fixture(scope="module")
def ends(folder: Path) -> dict[int, list[dict[str, Any]]]:
    return {size: run(RANK, size, str(folder / str(size)), "fsdp") for size in OF_SIZE}


@pytest.mark.integration
@pytest.mark.slow
class TestRanks:
    @pytest.mark.parametrize(("size", "how"), [(size, how) for size, ways in OF_SIZE.items() for how in ways])
    def test_end_where_torch_alone_does_and_resume_bit_for_bit(
        self, ends: dict[int, list[dict[str, Any]]], size: int, how: str
    ) -> None:
        assert len(ends[size]) == size
        for rank in ends[size]:
            seen = rank[how]
            assert seen["weights"] < CLOSE
            assert seen["metrics"] < CLOSE
            assert seen["resumed"] == seen["saved"] == seen["refused"] == 0.0

    @pytest.mark.parametrize("size", IN_BFLOAT16)
    def test_train_bfloat16_with_float32_masters_and_sums(
        self, ends: dict[int, list[dict[str, Any]]], size: int
    ) -> None:
        for rank in ends[size]:
            seen = rank["bfloat16"]["half fsdp"]
            assert 0 < seen["weights"] < 7e-3
            assert seen["resumed"] == 0
            assert seen["sum"] == pytest.approx(1 + 32 / 512, abs=1e-6)

    @pytest.mark.parametrize("size", IN_BFLOAT16)
    def test_pack_and_compile_in_the_type_of_the_forward(
        self, ends: dict[int, list[dict[str, Any]]], size: int
    ) -> None:
        """The weights are float32, and the forward is not: proofs must allow its rounding."""
        for rank in ends[size]:
            seen = rank["on a GPU"]
            assert seen["packed"]
            assert seen["compiled"] > 0
            assert seen["engine"] == "torch.bfloat16"
            assert 0 < seen["weights"] < 7e-3

    def test_are_followed_by_one(self, ends: dict[int, list[dict[str, Any]]], folder: Path) -> None:
        (found,) = run(RANK, 1, str(folder / "4"), "alone", "fsdp")
        assert found["plain"] < CLOSE


@pytest.fixture(scope="module")
def of_parts(folder: Path) -> list[dict[str, Any]]:
    return run("tests.train.zero_parts", 2, str(folder / "parts"), ",".join(PARTS), "fsdp")


@pytest.mark.integration
@pytest.mark.slow
class TestParts:
    @pytest.mark.parametrize("part", PARTS)
    def test_are_those_of_torch_alone(self, part: str, of_parts: list[dict[str, Any]]) -> None:
        for rank in of_parts:
            assert rank[part]
            for name, seen in rank[part].items():
                assert seen["weights"] < CLOSE, name
                assert seen["metrics"] < CLOSE, name
                assert seen.get("critic", 0.0) < CLOSE, name
                assert seen.get("resumed", 0.0) == seen.get("critic resumed", 0.0) == seen.get("saved", 0.0) == 0.0
                assert seen.get("moved", 1.0) > 1e-3, name
                assert seen.get("base", 1.0) == seen.get("refused", 1.0) == 1.0, name
                assert seen.get("said", 0.0) == 0.0, name


def test_what_deepspeed_alone_can_do_is_refused() -> None:
    with pytest.raises(ValueError, match=r"train\.zero=3 with train\.backend=fsdp; set train\.backend: deepspeed"):
        TrainConfig(backend="fsdp", zero=3)


@pytest.mark.integration
def test_the_optimiser_and_a_reference_wait_in_the_memory_of_the_cpu() -> None:
    config = TrainConfig(backend="fsdp", device="cpu", offload="optimizer")
    backend = begun(FsdpBackend(two_layers(), config))
    shards, reference = backend.sharded, backend.reference
    assert isinstance(reference, OffloadedShards)
    steps(backend, 0, 1)
    for name, p in shards.model.named_parameters():
        row = shards._rows[name]
        assert torch.equal(row, p.to_local())
        assert row.data_ptr() != p.to_local().data_ptr()  # on a GPU it would be on another device
        assert "exp_avg" in shards._moments(name)
    resting = [p.to_local().untyped_storage().nbytes() for p in reference.model.parameters()]
    assert set(resting) == {0}
    with reference.on_device():
        assert all(p.to_local().untyped_storage().nbytes() > 0 for p in reference.model.parameters())


@pytest.mark.integration
def test_what_writes_shards_touches_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the thread that writes, the first GPU is the current one: its stream is another rank's."""
    backend = begun(FsdpBackend(two_layers(), TrainConfig(backend="fsdp", device="cpu")))
    steps(backend, 0, 1)
    shards = backend.sharded.tensors()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for group in (None, own_group()):
        finish = write_tensors(shards, tmp_path / str(group is None), group)
        if finish is not None:
            finish()
    monkeypatch.undo()
    wanted = {name: t.to_local().clone() for name, t in shards.items()}
    for folder in tmp_path.iterdir():
        for t in shards.values():
            t.to_local().zero_()
        read_tensors(shards, folder)
        assert all(torch.equal(shards[name].to_local(), rows) for name, rows in wanted.items())


def test_weights_are_not_offloaded() -> None:
    with pytest.raises(ValueError, match=r"train\.offload=all with train\.backend=fsdp.*: optimizer"):
        TrainConfig(backend="fsdp", offload="all")


def test_an_error_of_the_model_is_not_taken_for_one_of_the_network() -> None:
    with pytest.raises(RuntimeError, match=r"^out of memory$") as caught, _collective_errors_amid():
        raise RuntimeError("out of memory")
    assert not isinstance(caught.value, RunError)
    with pytest.raises(RunError, match="gets no answer from the others"), _collective_errors_amid():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:525] Connection closed by peer")
