"""The attention kernel of a decode step, interpreted on the CPU: a double in float64, its twin and the model."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from tests.models.cpu.test_decoder import PROMPTS, REPEAT, expect, start
from tests.models.families import VOCAB, tiny
from tests.models.kernels.interpreted import interpreted, without_kernels
from tests.oracles.kernels import attention

pytestmark = pytest.mark.integration
ALLOWED = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""Share of the greatest result. In 16 bits the result is rounded to half of its last digit: 8 and 11 digits; the
interpreter computes in float32. On a GPU the weights are rounded too, to the type of the values."""
CASES: dict[str, tuple[tuple[int, int, int], list[int], list[int], int]] = {
    "one span": ((6, 2, 64), [0, 3, 5], [9, 10, 6], 64),
    "several spans": ((6, 2, 64), [0, 0, 39, 7, 100], [150, 1, 40, 39, 117], 32),
    "spans end where rows do": ((2, 1, 16), [0, 10, 18], [32, 42, 50], 16),
    "a head each": ((3, 3, 16), [1, 2], [60, 50], 32),
    "more queries than a tile": ((40, 2, 8), [0, 1], [30, 20], 16),
    "an odd head": ((4, 2, 12), [0, 4], [20, 40], 32),
    "rows without a column": ((2, 2, 8), [5, 0, 40], [5, 40, 30], 16),
    "one row": ((2, 1, 8), [2], [3], 16),
}
"""(heads, key heads, head's size), first columns, columns after the last, span."""


def drawn(shape: tuple[int, int, int], rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    heads, kv, d = shape
    generator = torch.Generator().manual_seed(rows)
    shapes = ((rows, heads, d), (rows, kv, 150, d), (rows, kv, 150, d))
    return tuple(torch.randn(*s, generator=generator).to(dtype) for s in shapes)


def attended(case: str, dtype: torch.dtype, in_rows: bool) -> tuple[torch.dtype, list[Any]]:
    from pipeline.models.kernels.attention import attend

    shape, starts, stops, span = CASES[case]
    q, keys, values = drawn(shape, len(starts), dtype)
    longest = max(b - a for a, b in zip(starts, stops, strict=True))
    transposed = keys.mT if in_rows else keys.mT.contiguous()
    wide = torch.cat([q, q], 1)[:, : shape[0]]  # as the decoder gives it: a part of a larger tensor
    out = attend(wide, transposed, values, torch.tensor(starts), torch.tensor(stops), longest, span=span)
    return out.dtype, out.float().tolist()


def attended_in_all() -> dict[tuple[str, torch.dtype], list[Any]]:
    """Return all cases' results, in both orders of memory: the first kernel of a process takes longer than the rest."""
    torch.set_num_threads(1)
    return {(case, dtype): [attended(case, dtype, way) for way in (True, False)] for case in CASES for dtype in ALLOWED}


@functools.cache
def all_found() -> dict[tuple[str, torch.dtype], list[Any]]:
    made: dict[tuple[str, torch.dtype], list[Any]] = interpreted(attended_in_all)
    return made


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ALLOWED)
def test_attention_is_that_of_the_double(case: str, dtype: torch.dtype) -> None:
    shape, starts, stops, _ = CASES[case]
    (made, found), other = all_found()[case, dtype]
    wanted = attention(*drawn(shape, len(starts), dtype), starts, stops)
    assert made == dtype
    assert float((torch.tensor(found).double() - wanted).abs().max()) <= ALLOWED[dtype] * float(wanted.abs().max())
    assert other == (made, found), "the order of memory changes numbers"


def placed(others: int, pad: int) -> Any:
    """Return the first row's result, with other rows after it and columns before it."""
    from pipeline.models.kernels.attention import attend

    q, keys, values = drawn((4, 2, 16), 3, torch.bfloat16)
    moved = [torch.nn.functional.pad(x, (0, 0, pad, 0), value=7.0).mT.contiguous().mT for x in (keys, values)]
    starts, stops = torch.tensor([pad, 0, 3]), torch.tensor([pad + 70, 150, 60])
    rows = slice(1 + others)
    out = attend(q[rows], moved[0].mT[rows], moved[1][rows], starts[rows], stops[rows], 150, span=32)
    return out[0].float().tolist()


def all_placed() -> list[Any]:
    return [placed(others, pad) for others, pad in ((0, 0), (2, 0), (0, 5), (1, 37))]


def test_a_row_has_the_same_bytes_whatever_its_company_and_padding() -> None:
    alone, *others = interpreted(all_placed)
    assert all(other == alone for other in others)


@torch.inference_mode()
def steps_are_the_models(name: str) -> bool:
    from pipeline.models.cpu.decoder import ON_CPU, ON_GPU, Decoder

    torch.set_num_threads(1)
    model = tiny(name)
    for habits in (ON_CPU, ON_GPU):
        decoder = Decoder(model, habits)
        with without_kernels():
            twin = Decoder(model, habits)
        assert decoder.by_kernel
        assert not twin.by_kernel
        rows = [list(p) for p, n in zip(PROMPTS, REPEAT, strict=True) for _ in range(n)]
        _, cache = start(decoder, PROMPTS, REPEAT, 4)
        _, other = start(twin, PROMPTS, REPEAT, 4)
        assert cache.bias is None
        for t in range(3):
            if t == 1:
                keep = torch.tensor([2, 3, 6])
                cache.keep(keep)
                other.keep(keep)
                rows = [rows[i] for i in keep.tolist()]
            tokens = torch.arange(len(rows)) * 5 % VOCAB
            for row, token in zip(rows, tokens.tolist(), strict=True):
                row.append(token)
            logits = decoder.step(tokens, cache)
            expect(model, rows, logits)
            gap = float((logits - twin.step(tokens, other)).abs().max())
            assert gap < 2e-5, gap
    return True


@pytest.mark.parametrize("name", ["qwen2 one key head", "qwen3 wide heads", "mistral wide heads"])
def test_steps_with_the_kernel_are_the_models_for_padded_rows_and_drops(name: str) -> None:
    assert interpreted(steps_are_the_models, name)


def generated(dtype: torch.dtype) -> tuple[list[Any], list[Any]]:
    """Responses of the embedded engine with the kernel and with the twin."""
    from pipeline.rollout.engine import Request, Sampling
    from pipeline.rollout.torch_engine import TorchEngine

    torch.set_num_threads(1)
    model = tiny("qwen2 tied", dtype=dtype)
    requests = [Request(tuple(p), (10 * i, 10 * i + 1)) for i, p in enumerate(PROMPTS[:2])]
    engine = TorchEngine(model, [1], 0)
    assert engine._decoder.by_kernel  # type: ignore[union-attr]
    with without_kernels():
        twin = TorchEngine(model, [1], 0)
    answers: tuple[list[Any], list[Any]] = ([], [])
    for made, of in zip(answers, (engine, twin), strict=True):
        of.publish(0)
        made.extend(c for some in of.generate(requests, Sampling(6, 1.0)) for c in some)
    return answers


def test_the_engine_draws_the_same_tokens_with_the_kernel() -> None:
    ours, theirs = interpreted(generated, torch.float32)
    for one, other in zip(ours, theirs, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=2e-5)
    ours, theirs = interpreted(generated, torch.bfloat16)  # one draw that rounding decides changes all after it
    firsts = [(one.logprobs[0], other.logprobs[0]) for one, other in zip(ours, theirs, strict=True)]
    assert all(abs(a - b) < 0.15 for a, b in firsts)
