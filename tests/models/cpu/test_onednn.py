"""Linear layers through oneDNN: the same numbers, gradients and files as torch's own."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from verizero.pipeline.models.cpu import onednn
from verizero.pipeline.models.cpu.onednn import FastLinear, linear, packed, product, use_onednn


@pytest.fixture(params=[0, onednn.COPIED_FROM], autouse=True)
def copied_from(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test twice: with transposed weights that are copied, and with small ones that are not."""
    monkeypatch.setattr(onednn, "COPIED_FROM", request.param)


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
def test_value_and_gradients_are_those_of_float64(lead: tuple[int, ...], with_bias: bool, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    x, weight, up = draws(*lead, 24), draws(40, 24), draws(*lead, 40)
    bias = draws(40) if with_bias else None
    leaves = [t.clone().requires_grad_() for t in (x, weight, *([bias] if bias is not None else []))]
    exact = [t.double().requires_grad_() for t in (x, weight, *([bias] if bias is not None else []))]
    got = linear(*leaves)
    got.backward(up)
    wanted = F.linear(*exact)
    wanted.backward(up.double())
    torch.set_num_threads(before)
    assert_near(got, wanted)
    torch.testing.assert_close(product(x, weight, bias), got.detach(), rtol=0, atol=0)
    for ours, theirs in zip(leaves, exact, strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert_near(ours.grad, theirs.grad)


def test_only_what_needs_a_gradient_gets_one() -> None:
    x, weight = draws(5, 8), draws(3, 8).requires_grad_()
    linear(x, weight).sum().backward()
    assert x.grad is None
    torch.testing.assert_close(weight.grad, x.sum(0).expand(3, 8))


def test_a_view_as_input_and_a_strided_gradient() -> None:
    x = draws(6, 5, 16)[:, :-1].requires_grad_()
    weight = draws(8, 16).requires_grad_()
    (linear(x, weight).transpose(0, 1) * draws(4, 6, 8)).sum().backward()
    a, b = x.detach().clone().requires_grad_(), weight.detach().clone().requires_grad_()
    (F.linear(a, b).transpose(0, 1) * draws(4, 6, 8)).sum().backward()
    torch.testing.assert_close(weight.grad, b.grad)


def test_other_types_go_to_torch() -> None:
    x, weight = draws(3, 4).bfloat16(), draws(2, 4).bfloat16()
    assert torch.equal(linear(x, weight), F.linear(x, weight))
    assert linear(x.double(), weight.double()).dtype == torch.float64


def test_a_model_keeps_names_weights_and_copies() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2, bias=False))
    before, x = {k: v.clone() for k, v in model.state_dict().items()}, draws(3, 4)
    wanted = model(x)
    use_onednn(model)
    assert [type(m) for m in model] == [FastLinear, nn.Tanh, FastLinear]
    torch.testing.assert_close(model(x), wanted)
    twin = copy.deepcopy(model)
    assert twin.state_dict().keys() == before.keys()
    assert all(torch.equal(twin.state_dict()[k], v) for k, v in before.items())
    assert twin[0].weight is not model[0].weight


def test_models_made_and_loaded_here_use_it(tmp_path: Path) -> None:
    from verizero.pipeline.data.tokenizer import character_tokenizer
    from verizero.pipeline.models.load import create_model, load_model, save_folder

    tokenizer = character_tokenizer("0123456789+=")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    made = create_model("qwen2", {**sizes, "num_key_value_heads": 1}, tokenizer, 0)
    save_folder(made, tokenizer, tmp_path)
    for model in (made, load_model(str(tmp_path))):
        kinds = {type(m) for m in model.modules() if isinstance(m, nn.Linear)}
        assert kinds == {FastLinear}


def test_no_rows_make_the_same_node_of_the_graph_as_rows_do() -> None:
    """Ranks add up gradients in the order in which backward makes them, and one rank may have no rows."""
    weight = draws(40, 24).requires_grad_()
    nodes = [linear(draws(n, 24), weight).grad_fn for n in (0, 3)]
    assert nodes[0] is not None
    assert type(nodes[0]) is type(nodes[1])


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
