"""The policy's weights for an engine: of torch's backend, and streamed where DeepSpeed divides them."""

from __future__ import annotations

import pytest
import torch

from tests.train.batches import two_layers
from tests.train.rank_group import installed, run
from verizero.pipeline.rollout.weights import weights_of
from verizero.pipeline.train.torch_backend import TorchBackend


def test_torch_has_them_whole() -> None:
    backend = TorchBackend(two_layers(dtype=torch.float64))
    backend.shard()
    ours, wanted = dict(backend.named_weights()), dict(weights_of(backend.model)())
    assert ours.keys() == wanted.keys()
    assert all(torch.equal(ours[name], wanted[name]) for name in wanted)


@installed
@pytest.mark.integration
def test_divided_weights_are_gathered_layer_by_layer_and_no_whole_copy_is_kept() -> None:
    for rank, seen in enumerate(run("tests.train.streamed_rank", 2)):
        assert seen["trained alike"] == seen["streamed"] == seen["reference"] == seen["saved"] == 0.0, seen
        assert seen["most at once"] < 0.6 * seen["all"], seen
        assert seen["kept"] < seen["most at once"], seen
        assert seen["saves"] is (rank == 0)
