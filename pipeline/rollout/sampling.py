"""Draws tokens from logits with given uniform numbers: a row's token depends on its own logits and number only."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from verizero.pipeline.rollout.engine import Sampling

BLOCK = 512
"""Tokens in a block that is summed first. 128, 512 and 2,048 took 21, 19 and 27 ms for 32 rows of 151,936 tokens."""
BLOCKS_FROM = 8192
"""The smallest vocabulary that is drawn from by blocks. By blocks and whole, on one thread of a CPU: 64 rows of 2,000
tokens 0.64 and 0.53 ms, 64 rows of 49,152 8.1 and 14.3 ms, 32 rows of 151,936 19 and 37 ms. 256 rows of 50 tokens take
0.1 ms whole."""
NUMBERS_AT_ONCE = 64
"""Numbers of a seed that are drawn at a time; the numbers do not depend on it."""


def pick(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Return tokens int64 [B] and their log-probs [B], by inverting the cumulative distribution at `uniforms`.

    logits: float32 [B, V]; uniforms: float64 [B] in [0, 1). With top_k or top_p the log-probs are those of the
    distribution cut off, renormalised. A token of probability zero is never drawn.
    """
    if sampling.temperature == 0:
        logprobs = logits.log_softmax(-1)
        tokens = logits.argmax(-1)
        return tokens, logprobs.gather(1, tokens[:, None])[:, 0]
    scaled = _scaled(logits, sampling)
    if sampling.is_cut:
        scaled = cut_off(scaled, sampling.top_k, sampling.top_p)
    return _draw(scaled, uniforms)


@dataclass(frozen=True, slots=True)
class Kept:
    """The sets that tokens were drawn from."""

    ids: Tensor
    """int32 [B, n]: each row's tokens in the order of the vocabulary, then -1; n is the limit of a set's size."""
    sizes: Tensor
    """int64 [B]: number of tokens in each set; 0 for the whole vocabulary."""
    bounded: Tensor
    """bool [B]: `max_kept` dropped some tokens of the set."""


def pick_kept(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor, Kept]:
    """Return tokens and log-probs as `pick`, and the sets drawn from: at most the `max_kept` most likely tokens."""
    cut = cut_off(_scaled(logits, sampling), sampling.top_k, sampling.top_p)
    vocab = cut.shape[1]
    max_size = min(sampling.max_kept, vocab)
    bounded = (cut > -math.inf).sum(1) > max_size
    # Bounded before the draw: log-probs are then of the set that is recorded.
    cut = most_likely(cut, max_size)
    tokens, logprobs = _draw(cut, uniforms)
    counts = (cut > -math.inf).cumsum(1, dtype=torch.int32)
    numbers = torch.arange(1, max_size + 1, dtype=torch.int32, device=cut.device).expand(len(cut), -1)
    # The k-th token of a set is the first whose count is k.
    ids = torch.searchsorted(counts, numbers.contiguous(), out_int32=True).masked_fill_(numbers > counts[:, -1:], -1)
    sizes = counts[:, -1].long()
    return tokens, logprobs, Kept(ids, sizes.masked_fill(sizes == vocab, 0), bounded)


def _scaled(logits: Tensor, sampling: Sampling) -> Tensor:
    return logits if sampling.temperature == 1 else logits / sampling.temperature


def _draw(logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    return _draw_by_blocks(logits, uniforms) if logits.shape[1] >= BLOCKS_FROM else _draw_whole(logits, uniforms)


def _draw_whole(logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    logprobs = logits.log_softmax(-1)
    # float64: over a large vocabulary a float32 sum would lose the tail.
    cumulative = _running_sums(logprobs.double().exp_())
    # Numbers are scaled by the sum, which is 1 only up to rounding.
    tokens = _first_above(cumulative, uniforms[:, None] * cumulative[:, -1:])[:, 0]
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def _draw_by_blocks(logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draw as `_draw_whole`, with float64 sums over blocks, then over the tokens of the one block that was drawn."""
    vocab = logits.shape[1]
    largest = logits.amax(-1, keepdim=True)
    weights = (logits - largest).exp_()
    whole = vocab // BLOCK * BLOCK
    sums = weights[:, :whole].view(len(weights), -1, BLOCK).sum(-1)
    rest = weights[:, whole:].sum(-1, keepdim=True)
    cumulative = _running_sums(torch.cat([sums, rest], 1).double())
    goal = uniforms[:, None] * cumulative[:, -1:]
    block = _first_above(cumulative, goal)
    before = cumulative.gather(1, (block - 1).clamp_(min=0)).masked_fill_(block == 0, 0.0)
    # The last block may be shorter: indices beyond the vocabulary get the weight 0.
    ids = block * BLOCK + torch.arange(BLOCK, device=logits.device)
    in_block = weights.gather(1, ids.clamp(max=vocab - 1)).double().masked_fill_(ids >= vocab, 0.0)
    tokens = block * BLOCK + _first_above(_running_sums(in_block), goal - before)
    logprobs = (logits.gather(1, tokens) - largest).double() - cumulative[:, -1:].log()
    return tokens[:, 0], logprobs.float()[:, 0]


def _running_sums(rows: Tensor) -> Tensor:
    """Return the sums of each row of [B, n] up to each entry, with the same rounding each time.

    A GPU shares a single row among its blocks, and adds up their sums as they end. Of several rows each has one block.
    """
    return rows.cumsum_(-1) if len(rows) > 1 else rows.expand(2, -1).cumsum(-1)[:1]


def _first_above(cumulative: Tensor, goal: Tensor) -> Tensor:
    """Return int64 [B, 1]: the first index at which cumulative [B, n] exceeds goal [B, 1]; its weight is above zero.

    If rounding makes the goal the sum of all, it is the last index with a weight above zero.
    """
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())
    return torch.minimum(torch.searchsorted(cumulative, goal, right=True), last)


def cut_off(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Return logits with -inf outside the top_k tokens, then outside the smallest set of probability >= top_p.

    Tokens as likely as the last of the top_k stay too: their order in the vocabulary does not decide.
    """
    if 0 < top_k < logits.shape[1]:
        # Compared by value, so that ties stay.
        least = logits.topk(top_k, -1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -math.inf)
    if top_p < 1:
        ordered, order = logits.sort(stable=True, dim=-1, descending=True)
        # A token stays if the more likely ones do not reach top_p without it: the first always does.
        before = _running_sums(ordered.softmax(-1)) - ordered.softmax(-1)
        # Scattering undoes the sort: from order of probability to order of vocabulary.
        dropped = torch.zeros_like(before, dtype=torch.bool).scatter(1, order, before >= top_p)
        logits = logits.masked_fill(dropped, -math.inf)
    return logits


def most_likely(logits: Tensor, max_size: int) -> Tensor:
    """Return logits with -inf outside the `max_size` likeliest tokens; of equal ones the first stay."""
    if max_size >= logits.shape[1]:
        return logits
    least = logits.topk(max_size, -1).values[:, -1:]
    above, equal = logits > least, logits == least
    room = max_size - above.sum(1, keepdim=True)
    stays = above | (equal & (equal.cumsum(1, dtype=torch.int32) <= room))
    return logits.masked_fill(~stays, -math.inf)


def uniforms(seed: int) -> Iterator[float]:
    """Yield the stream of a seed, float64 in [0, 1), without end."""
    # Drawn on the CPU: a GPU's generator gives other numbers for the same seed.
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.rand(NUMBERS_AT_ONCE, dtype=torch.float64, generator=generator).tolist()
