"""The kernel of log-probs and entropies, interpreted on the CPU: a double in float64, its twin, and no logits."""

import functools
from typing import Any

import pytest
import torch

from tests.models.families import VOCAB, build, tiny
from tests.models.kernels.interpreted import interpreted, without_kernels
from tests.models.test_forward import Largest, batch
from tests.oracles.kernels import log_probs_and_entropies

pytestmark = pytest.mark.run
TILES = (16, 32, 16, 64)
"""Rows, columns, hidden numbers and the span of a program: small, so that few numbers fill several."""
SIZES = {
    "several spans": (21, 150, 40),
    "one row": (1, 150, 40),
    "tiles that fit": (16, 64, 32),
    "fewer columns than a tile": (5, 9, 20),
    "a column more than a span": (5, 65, 20),
}
"""Rows, vocabulary, hidden numbers."""
PULLS = ("log-probs", "entropies", "both")
FORWARD = 4e-6
"""Nats, where logits reach 10: sums are in float32, of inputs that are exact in all three types."""
BACKWARD = {torch.float32: 4e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}
"""Share of the greatest gradient. In 16 bits the gradient to the logits is rounded before it is multiplied, and the
result once more: half of the last of 8 or 11 digits each time."""
TYPED = [(size, dtype) for size in SIZES for dtype in BACKWARD if size == "several spans" or dtype == torch.float32]
"""What is cut off at edges does not depend on the type."""


def drawn(size: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, output embeddings, targets with the first and the last token, and a pull on each row."""
    num, vocab, width = SIZES[size]
    generator = torch.Generator().manual_seed(num)
    hidden = (2 * torch.randn(num, width, generator=generator)).to(dtype)
    weight = (0.3 * torch.randn(vocab, width, generator=generator)).to(dtype)
    targets = torch.randint(vocab, (num,), generator=generator)
    targets[0], targets[-1] = vocab - 1, 0
    pull = torch.randn(num, generator=generator)
    pull[num // 2 + 1 :: 3] = 0  # tokens that the loss leaves out
    return hidden, weight, targets, pull


def of_kernel(size: str, dtype: torch.dtype, pulls: str, scratch: int) -> list[Any]:
    """Log-probs, entropies and the gradients to hidden states and output embeddings; with the gradients' types."""
    from verizero.pipeline.models.kernels.log_probs import Tiles, log_probs

    torch.set_num_threads(1)
    hidden, weight, targets, pull = drawn(size, dtype)
    hidden.requires_grad_()
    weight.requires_grad_()
    tiles = Tiles(*TILES)
    values, entropies = log_probs(hidden, weight, targets, 0.7, pulls != "log-probs", scratch=scratch, tiles=tiles)
    assert (entropies is None) == (pulls == "log-probs")
    loss = 0 * values.sum() if pulls == "both" else torch.zeros(())
    if pulls != "entropies":
        loss = loss + (values * pull).sum()
    if entropies is not None:
        loss = loss - 0.3 * (entropies * pull.flip(0)).sum()
    loss.backward()
    assert hidden.grad.dtype == weight.grad.dtype == dtype
    assert values.dtype == torch.float32
    return [None if t is None else t.detach().float().tolist() for t in (values, entropies, hidden.grad, weight.grad)]


def of_kernels() -> dict[tuple[str, torch.dtype, str], list[Any]]:
    """Return all cases' numbers: the first kernel of a process takes longer than all others."""
    # Room for a tile of columns, for two, and for all: the gradient to the logits is made in as many pieces.
    room = {"log-probs": 1, "entropies": 64, "both": 1 << 20}
    return {
        (size, dtype, pulls): of_kernel(size, dtype, pulls, room[pulls] * SIZES[size][0])
        for size, dtype in TYPED
        for pulls in PULLS
    }


@functools.cache
def all_found() -> dict[tuple[str, torch.dtype, str], list[Any]]:
    made: dict[tuple[str, torch.dtype, str], list[Any]] = interpreted(of_kernels)
    return made


@pytest.mark.parametrize(("size", "dtype"), TYPED)
@pytest.mark.parametrize("pulls", PULLS)
def test_numbers_and_gradients_are_those_of_the_double(size, dtype, pulls):
    hidden, weight, targets, pull = drawn(size, dtype)
    hidden, weight = hidden.double().requires_grad_(), weight.double().requires_grad_()
    values, entropies = log_probs_and_entropies(hidden, weight, targets, 0.7)
    pull, other = pull * (pulls != "entropies"), -0.3 * pull.flip(0) * (pulls != "log-probs")
    ((values * pull).sum() + (entropies * other).sum()).backward()
    found = all_found()[size, dtype, pulls]
    for made, wanted in zip(found[:2], (values, entropies), strict=True):
        if made is not None:
            assert float((torch.tensor(made).double() - wanted.detach()).abs().max()) <= FORWARD
    for made, wanted in zip(found[2:], (hidden.grad, weight.grad), strict=True):
        gap = float((torch.tensor(made).double() - wanted).abs().max())
        assert gap <= BACKWARD[dtype] * float(wanted.abs().max()), gap / float(wanted.abs().max())
    untouched = ((pull == 0) & (other == 0)).tolist()
    assert all(not any(row) for row, is_out in zip(found[2], untouched, strict=True) if is_out)


def alone_and_among() -> bool:
    from verizero.pipeline.models.kernels.log_probs import Tiles, log_probs

    hidden, weight, targets, _ = drawn("several spans", torch.bfloat16)
    among = log_probs(hidden, weight, targets, 1.3, tiles=Tiles(*TILES))
    for row in (0, 17, 20):
        alone = log_probs(hidden[row, None], weight, targets[row, None], 1.3, tiles=Tiles(*TILES))
        for one, other in zip(alone, among, strict=True):
            assert torch.equal(one[0], other[row])
    values, entropies = log_probs(hidden[:0].requires_grad_(), weight.requires_grad_(), targets[:0], 1.0)
    (values.sum() + entropies.sum()).backward()  # a rank may have no token
    assert not weight.grad.any()
    return True


def test_a_row_has_the_same_bytes_whatever_its_company_and_no_row_is_allowed():
    assert interpreted(alone_and_among)


def scored(model: Any, chunk_tokens: int, kept: torch.Tensor | None = None) -> tuple[list[torch.Tensor], int]:
    """Log-probs, entropies and all gradients as the update asks for them, and the columns of the widest tensor."""
    from verizero.pipeline.models.forward import Layout, Replay, logprobs_at

    ids, where, _ = batch()
    ids = ids % model.config.vocab_size
    model.zero_grad()
    with Largest(int(where.sum()), axis=0) as widest:
        values, entropies = logprobs_at(
            model, ids, where, 0.7, True, replay=Replay(kept), layout=Layout(chunk_tokens=chunk_tokens)
        )
        pull = torch.arange(1.0, 1.0 + ids.numel()).view(ids.shape) / ids.numel()
        torch.autograd.backward((values * pull - 0.3 * pull.flip(0) * entropies).sum())
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return [values.detach(), entropies.detach(), *gradients], widest.most


def update_is_the_twins(name: str, dtype: torch.dtype) -> bool:
    """The model's own gradients, with tied embeddings among them, and with an output layer that does not train."""
    torch.set_num_threads(1)
    model = tiny(name, dtype=dtype)
    allowed = 1e-5 if dtype == torch.float32 else 3e-2
    for frozen in (False, True):
        model.get_output_embeddings().weight.requires_grad_(not frozen)
        ours, _ = scored(model, 4)
        with without_kernels():
            theirs, _ = scored(model, 4)
        assert len(ours) == len(theirs) > 10
        for one, other in zip(ours, theirs, strict=True):
            gap = float((one - other).abs().max() / other.abs().max())
            assert gap <= allowed, gap
        assert any(not torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)), (
            "the twin was compared with itself"
        )
    return True


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["qwen2 tied", "llama"])
def test_an_update_with_the_kernel_is_one_with_chunks(name, dtype):
    assert interpreted(update_is_the_twins, name, dtype)


def what_the_kernel_does_not_compute() -> bool:
    ids, where, _ = batch()
    targets = ids[where]
    kept = torch.stack([targets, (targets + 1) % VOCAB, torch.full_like(targets, -1)], 1)
    cases = ((tiny("llama"), kept), (tiny("llama", dtype=torch.float64), None), (build("phi", {}), None))
    for model, sets in cases:
        ours, _ = scored(model, 4, sets)
        with without_kernels():
            theirs, _ = scored(model, 4, sets)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    return True


def test_kept_sets_float64_and_a_bias_are_left_to_the_twin():
    assert interpreted(what_the_kernel_does_not_compute)


def columns_at_once() -> tuple[int, int]:
    model = build("llama", {"vocab_size": 1009, "tie_word_embeddings": False}, dtype=torch.bfloat16)
    scored(model, 4)  # the proofs of its output layer and of the kernel have logits of their own
    _, columns = scored(model, 4)
    with without_kernels():
        return columns, scored(model, 1 << 20)[1]


def test_logits_of_all_tokens_and_all_columns_never_exist():
    ours, whole = interpreted(columns_at_once)
    num = int(batch()[1].sum())
    assert whole == 1009
    assert ours <= max(128, 4 * 1009 // num)
