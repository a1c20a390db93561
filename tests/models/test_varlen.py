"""Attention of variable length: its layouts against slow doubles, and its call against the torch that is installed."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.oracles.varlen import take_the_place_of_the_kernel, varlen_attn
from verizero.pipeline.models import kernels, varlen
from verizero.pipeline.models.runs import Runs, attention, packed_width
from verizero.pipeline.models.varlen import Ends, Piece, kernel_for
from verizero.pipeline.types import Path, Run

PATHS: tuple[Path, ...] = (
    (Run(0, 5), Run(4, 9)),
    (Run(1, 3), Run(8, 7), Run(5, 12)),
    (Run(0, 5), Run(6, 6)),
    (Run(2, 11),),
    (Run(1, 3), Run(7, 4)),
    (Run(1, 3), Run(8, 7), Run(9, 9)),
    (Run(3, 1),),
)
WIDTH = 12


def wrong(*args: Any, **named: Any) -> Tensor:
    """A kernel that lets the first query of a piece see the first key alone, whatever is before it."""
    query, key, value, cu_q, _, max_q, _ = args
    return varlen_attn(query, key[: len(query)], value[: len(query)], cu_q, cu_q, max_q, max_q, **named)


def test_no_kernel_is_tried_where_none_runs():
    assert kernel_for(torch.device("cpu"), torch.bfloat16, 64) is None
    assert kernel_for(torch.device("cuda"), torch.float32, 64) is None


def test_torchs_is_taken_where_it_is_right(monkeypatch):
    """What is tried on a GPU in half precision is tried here in float32, with doubles."""
    real, cuda = varlen.gap, torch.device("cuda")
    monkeypatch.delenv(kernels.VARIABLE, raising=False)
    monkeypatch.setattr(
        varlen, "gap", lambda _, __, size, kernel: real(torch.device("cpu"), torch.float32, size, kernel)
    )
    try:
        for kernel in (varlen_attn, wrong):
            varlen._kernel_for.cache_clear()
            monkeypatch.setattr(varlen, "of_torch", lambda kernel=kernel: kernel)
            if kernel is varlen_attn:
                assert kernel_for(cuda, torch.bfloat16, 64) is varlen_attn
            else:
                with pytest.warns(UserWarning, match="attention of different lengths .* it differs from torch by"):
                    assert kernel_for(cuda, torch.bfloat16, 64) is None
    finally:
        varlen._kernel_for.cache_clear()


def test_torch_takes_the_call():
    """Without a GPU: shapes and arguments of forward and backward are checked by torch's own rules for them."""
    pieces = [Piece(0, 4, 0, 0), Piece(4, 3, 4, 4)]
    table, keys = torch.tensor(pieces), torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6])
    with FakeTensorMode() as mode:
        ends = Ends.of(pieces, mode.from_tensor(table), mode.from_tensor(keys))
        query, key, value = (torch.empty(7, heads, 16, dtype=torch.bfloat16, requires_grad=True) for heads in (4, 2, 2))
        out = varlen.attend(query, key, value, ends, 0.1, 3, varlen.of_torch())
        assert out.shape == query.shape
        out.sum().backward()
        assert key.grad.shape == key.shape
        out, sums = varlen.attend_with_sums(query, key, value, ends, 0.1, 3)
        assert sums.shape == (4, 7)
        found = varlen.gradients(out, query, key, value, out, sums, ends, 0.1, 3)
        assert [x.shape for x in found] == [x.shape for x in (query, key, value)]


def test_compiled_code_has_one_graph_for_all_layouts_and_the_same_numbers(monkeypatch):
    take_the_place_of_the_kernel(monkeypatch)
    graphs = list[Any]()

    def counted(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    def around(query: Tensor, key: Tensor, value: Tensor, runs: Runs, layout: Tensor) -> Tensor:
        out, _ = attention(None, 2 * query, key, value, None, runs=runs, layout=layout, scaling=0.3, sliding_window=6)
        return out.sin()

    one = torch.compile(around, fullgraph=True, dynamic=False, backend=counted)
    for paths in (PATHS, PATHS[:3], PATHS[3:4]):
        runs, draw = Runs.of(paths, WIDTH, most=64), torch.Generator().manual_seed(1)
        numbers = [torch.randn(1, heads, 64, 8, dtype=torch.float64, generator=draw) for heads in (4, 2, 2)]
        ends = []
        for forward in (one, around):
            query, key, value = (x.clone().requires_grad_() for x in numbers)
            out = forward(query, key, value, runs, runs.key)
            ends.append((out.detach(), *torch.autograd.grad(out.cos().sum(), (query, key, value))))
        for ours, plain in zip(*ends, strict=True):
            torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-12)
    assert len(graphs) == 1


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("tokens", [None, 8, 64])
def test_the_kernel_attends_as_calls_do(window, tokens, monkeypatch):
    """With padding to the widths of a GPU, for micro-batches of so many tokens, and without."""
    results = []
    for most, by_kernel in ((None, False), (tokens, False), (tokens, True)):
        monkeypatch.setattr(varlen, "kernel_for", lambda *_, on=by_kernel: varlen_attn if on else None)
        layout = Runs.of(PATHS, WIDTH) if most is None else Runs.of(PATHS, WIDTH, most=most, device="cuda")
        assert most is None or len(layout.source) == 64
        layout = layout.with_tensors(iter(layout.tensors()))
        draw = torch.Generator().manual_seed(1)
        # One draw for each place of the rows, so that equal tokens of all layouts have equal numbers.
        whole = [torch.randn(len(PATHS) * WIDTH, heads, 8, dtype=torch.float64, generator=draw) for heads in (4, 2, 2)]
        query, key, value = ((x[layout.source]).requires_grad_() for x in whole)
        out = layout.attend(query, key, value, None, window)
        assert len(out) == len(layout.source)
        seen = [layout.place[i, t] for i, row in enumerate(PATHS) for t in range(row[-1].end - 1)]
        picked = out[torch.stack(seen)]
        (picked * torch.sin(torch.arange(picked.numel())).view_as(picked)).sum().backward()
        real = int(max(seen)) + 1
        gradients = [x.grad[:real] for x in (query, key, value) if x.grad is not None]
        assert all(float(x.grad[real:].abs().sum()) == 0 for x in (query, key, value) if x.grad is not None)
        results.append((picked.detach(), *gradients))
    for other in results[1:]:
        for ours, plain in zip(other, results[0], strict=True):
            torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-12)


def test_the_last_tokens_are_computed_where_they_are_asked_for():
    layout = Runs.of(PATHS, WIDTH, ends=True, most=64, device="cuda")
    ids = torch.arange(len(PATHS) * WIDTH).view(len(PATHS), WIDTH)
    for i, row in enumerate(PATHS):
        for t in range(row[-1].end):
            token = ids.flatten()[layout.source[layout.place[i, t]]]
            shared = [k for k, other in enumerate(PATHS) if any(t < run.end and run in other for run in row)]
            assert int(token) in {int(ids[k, t]) for k in [i, *shared]}
            assert int(layout.positions[layout.place[i, t]]) == t


def test_a_micro_batch_has_few_widths():
    assert {packed_width(n, 4096, "cuda") for n in range(1, 4097)} == {1024, 2048, 4096}
    assert packed_width(9000, 4096, "cuda") == 12288, "a row that is longer than a full micro-batch"
    assert {packed_width(n, 100, "cuda") % 64 for n in range(1, 200)} == {0}
    assert packed_width(10, 4096, "cpu") == 10
