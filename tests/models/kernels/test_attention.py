"""The attention kernel of a decode step, interpreted on the CPU: a double in float64, its twin and the model."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from tests.models.cpu.test_decoder import GROUPS, PROMPTS, REPEAT, expect, keep_rows, start
from tests.models.families import VOCAB, tiny
from tests.models.kernels.interpreted import interpreted, without_kernels
from tests.oracles.kernels import attention

pytestmark = pytest.mark.integration
ALLOWED = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""Share of the greatest result. In 16 bits the result is rounded to half of its last digit: 8 and 11 digits; the
interpreter computes in float32. On a GPU the weights are rounded too, to the type of the values."""
CASES: dict[str, tuple[tuple[int, int, int], list[int], list[int], list[int], int]] = {
    "one span": ((6, 2, 64), [9, 7, 1], [], [], 64),
    "several spans": ((6, 2, 64), [150, 1, 40, 39, 117], [], [], 32),
    "spans end where rows do": ((2, 1, 16), [32, 16, 48], [], [], 16),
    "a head each": ((3, 3, 16), [59, 48], [], [], 32),
    "more queries than a tile": ((40, 2, 8), [30, 19], [], [], 16),
    "an odd head": ((4, 2, 12), [20, 36], [], [], 32),
    "rows without a column": ((2, 2, 8), [0, 40, 0], [], [], 16),
    "one row": ((2, 1, 8), [1], [], [], 16),
    "prompts of several rows": ((6, 2, 64), [9, 1, 40, 3], [1, 0, 1, 1], [5, 70], 32),
    "a prompt's spans end where it does": ((2, 1, 16), [16, 5], [0, 1], [32, 16], 16),
    "a prompt that no row has": ((4, 2, 12), [3, 20], [2, 0], [7, 90, 33], 32),
    "no own column yet": ((2, 2, 8), [0, 4], [0, 0], [21], 16),
}
"""(heads, key heads, head's size), own columns of rows, prompt of each row, tokens of each prompt, span."""
IN_ROWS = ("one span", "an odd head", "a prompt's spans end where it does")
"""Cases tried in 16 bits too, and with the other order of memory, which must give the same bytes."""
RUNS = [(torch.float32, case) for case in CASES] + [
    (dtype, case) for dtype in (torch.bfloat16, torch.float16) for case in IN_ROWS
]


def drawn(shape: tuple[int, int, int], rows: int, dtype: torch.dtype, prompts: int = 0) -> tuple[torch.Tensor, ...]:
    """Return queries, keys, values, and keys and values of prompts."""
    heads, kv, d = shape
    generator = torch.Generator().manual_seed(rows)
    shapes = ((rows, heads, d), *((rows, kv, 150, d),) * 2, *((prompts, kv, 150, d),) * 2)
    return tuple(torch.randn(*s, generator=generator).to(dtype) for s in shapes)


def attended(case: str, dtype: torch.dtype, in_rows: bool) -> tuple[torch.dtype, list[Any]]:
    from verizero.pipeline.models.kernels.attention import attend

    shape, stops, of_row, lengths, span = CASES[case]
    q, keys, values, *theirs = drawn(shape, len(stops), dtype, len(lengths))
    keys, theirs[0] = (x.mT if in_rows else x.mT.contiguous() for x in (keys, theirs[0]))
    prompts = (*theirs, torch.tensor(of_row), torch.tensor(lengths)) if lengths else None
    wide = torch.cat([q, q], 1)[:, : shape[0]]  # as the decoder gives it: a part of a larger tensor
    out = attend(wide, keys, values, torch.tensor(stops), max(stops), prompts, span=span)
    return out.dtype, out.float().tolist()


def attended_in_all() -> dict[tuple[str, torch.dtype], list[Any]]:
    """Return the results of all RUNS: the first kernel of a process takes longer than the rest."""
    torch.set_num_threads(1)
    ways = {case: (False, True) if case in IN_ROWS else (False,) for case in CASES}
    return {(case, dtype): [attended(case, dtype, way) for way in ways[case]] for dtype, case in RUNS}


@functools.cache
def all_found() -> dict[tuple[str, torch.dtype], list[Any]]:
    made: dict[tuple[str, torch.dtype], list[Any]] = interpreted(attended_in_all)
    return made


@pytest.mark.parametrize(("dtype", "case"), RUNS)
def test_attention_is_that_of_the_double(case: str, dtype: torch.dtype) -> None:
    shape, stops, of_row, lengths, _ = CASES[case]
    (made, found), *others = all_found()[case, dtype]
    q, *own = drawn(shape, len(stops), dtype, len(lengths))
    if lengths:  # each row's prompt before its own columns
        prompts = [[x[g, :, : lengths[g]] for g in of_row] for x in own[2:]]
        rows = [[torch.cat([p, x], 1) for p, x in zip(*pair, strict=True)] for pair in zip(prompts, own, strict=False)]
        own = [torch.stack([torch.nn.functional.pad(x, (0, 0, 0, 250 - x.shape[1])) for x in some]) for some in rows]
        stops = [lengths[g] + stop for g, stop in zip(of_row, stops, strict=True)]
    wanted = attention(q, *own[:2], [0] * len(stops), stops)
    assert made == dtype
    assert float((torch.tensor(found).double() - wanted).abs().max()) <= ALLOWED[dtype] * float(wanted.abs().max())
    assert others == [(made, found)] * (case in IN_ROWS), "the order of memory changes numbers"


def placed(others: int, prompts: int) -> Any:
    """Return the first row's result, with other rows after it and prompts before its own."""
    from verizero.pipeline.models.kernels.attention import attend

    q, keys, values, *theirs = drawn((4, 2, 16), 3, torch.bfloat16, 1)
    held = [torch.cat([torch.full_like(x, 7.0)] * prompts + [x]) for x in theirs]
    lengths, of_row = torch.tensor([100] * prompts + [50]), torch.tensor([prompts, 0, 0])
    rows, stops = slice(1 + others), torch.tensor([70, 150, 57])
    shared = (held[0].mT, held[1], of_row[rows], lengths)
    return attend(q[rows], keys.mT[rows], values[rows], stops[rows], 150, shared, span=32)[0].float().tolist()


def all_placed() -> list[Any]:
    return [placed(others, prompts) for others, prompts in ((0, 0), (2, 0), (0, 1), (1, 3))]


def test_a_row_has_the_same_bytes_whatever_its_company() -> None:
    alone, *others = interpreted(all_placed)
    assert all(other == alone for other in others)


@torch.inference_mode()
def steps_are_the_models(name: str) -> bool:
    from verizero.pipeline.models.cpu.decoder import ON_CPU, ON_GPU, Decoder

    torch.set_num_threads(1)
    model = tiny(name)
    for habits in (ON_CPU, ON_GPU):
        decoder = Decoder(model, habits)
        with without_kernels():
            twin = Decoder(model, habits)
        assert decoder.by_kernel
        assert not twin.by_kernel
        repeat = GROUPS if habits is ON_GPU else REPEAT
        rows = [list(p) for p, n in zip(PROMPTS, repeat, strict=True) for _ in range(n)]
        _, cache = start(decoder, PROMPTS, repeat, 4)
        _, other = start(twin, PROMPTS, repeat, 4)
        assert (cache.shared is not None) == (habits is ON_GPU)
        for t in range(2):
            if t == 1:
                keep = [3, 6, 2]
                keep_rows(cache, keep)
                keep_rows(other, keep)
                rows = [rows[i] for i in keep]
            tokens = torch.arange(len(rows)) * 5 % VOCAB
            for row, token in zip(rows, tokens.tolist(), strict=True):
                row.append(token)
            logits = decoder.step(tokens, cache)
            expect(model, rows, logits)
            gap = float((logits - twin.step(tokens, other)).abs().max())
            assert gap < 2e-5, gap
    return True


@pytest.mark.parametrize("name", ["qwen2 one key head", "mistral wide heads"])
def test_steps_with_the_kernel_are_the_models_for_padded_rows_and_drops(name: str) -> None:
    assert interpreted(steps_are_the_models, name)


def generated(dtype: torch.dtype) -> tuple[list[Any], list[Any]]:
    """Responses of the embedded engine with the kernel and with the twin."""
    from verizero.pipeline.rollout.engine import Request, Sampling
    from verizero.pipeline.rollout.torch_engine import TorchEngine

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
