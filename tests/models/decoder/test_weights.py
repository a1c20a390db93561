"""Products through oneDNN: the same numbers as torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from verizero.pipeline.models.decoder.weights import packed, product


def draws(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def assert_near(got: Tensor, wanted: Tensor) -> None:
    """Equal to float32's accuracy of a sum: relative to the greatest value."""
    assert got.shape == wanted.shape
    if got.numel():
        assert (
            float((got.detach().double() - wanted.detach()).abs().max())
            <= 2e-6 * float(wanted.detach().abs().max()) + 1e-6
        )


@pytest.mark.parametrize("lead", [(1,), (7,), (4, 9), (64, 70), (0,)])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_value_is_that_of_float64(lead: tuple[int, ...], with_bias: bool, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    x, weight, bias = draws(*lead, 24), draws(40, 24), draws(40) if with_bias else None
    got = product(x, weight, bias)
    torch.set_num_threads(before)
    assert_near(got, F.linear(x.double(), weight.double(), None if bias is None else bias.double()))


@pytest.mark.parametrize("threads", [1, 2])
def test_packed_weights_give_the_same_bytes_for_each_row_however_many_there_are(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    x, weight, bias = draws(70, 96), draws(50, 96), draws(50)
    own = packed(weight)
    wanted = product(x, own, bias)
    assert_near(wanted, F.linear(x.double(), weight.double(), bias.double()))
    for rows in (1, 2, 7, 16, 33, 70):
        torch.testing.assert_close(product(x[:rows], own, bias), wanted[:rows], rtol=0, atol=0)
        if rows > 1:
            torch.testing.assert_close(product(x[:rows], weight, bias), wanted[:rows], rtol=0, atol=0)
    torch.set_num_threads(before)


def test_packed_weights_are_copies_where_onednn_does_not_compute() -> None:
    weight = draws(5, 3).double()
    copied = packed(weight)
    torch.testing.assert_close(copied, weight, rtol=0, atol=0)
    weight.add_(1)
    assert not torch.equal(copied, weight)
