"""Compare policy and teacher at the tokens of responses from hidden states, some tokens at a time.

The logits [N, V] of neither model exist at once. Those of a chunk are computed again in the backward, which costs one
more product with each model's output embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from verizero.pipeline.models.forward import Targets, call_as_forward, logits_at, states_at
from verizero.pipeline.rl.distillation import Compared, ServedLogprobs, compare
from verizero.pipeline.rl.divergences import Objective
from verizero.pipeline.rl.logprobs import CHUNK_ELEMENTS


@dataclass(frozen=True, slots=True)
class Readout:
    """A model's output at N tokens: hidden states with the output layer, or logits."""

    states: Tensor
    """[N, H]; without `weight` the logits [N, V]."""
    weight: Tensor | None = None
    bias: Tensor | None = None

    @property
    def vocab(self) -> int:
        """The number of logits a token."""
        return int(self.states.shape[1] if self.weight is None else self.weight.shape[0])

    def logits(self, rows: slice) -> Tensor:
        """Return the logits of some of the tokens."""
        return _logits(self.states[rows], self.weight, self.bias)


def readout(
    model: Any, input_ids: Tensor, where: Tensor, targets: Targets | None = None, *, whole: bool = False
) -> Readout:
    """Return the model's output for the tokens at `where` (bool [B, T], False at column 0).

    `targets`: as in `Layout`. `whole`: as logits, for a model whose output layer will not stay in memory.
    """
    states = None if whole else states_at(model, input_ids, where, targets)
    if states is None:
        return Readout(logits_at(model, input_ids, where, targets=targets))
    head = model.get_output_embeddings()
    return Readout(states, head.weight, head.bias)


def compare_at(
    model: Any,
    input_ids: Tensor,
    where: Tensor,
    teacher: Readout | ServedLogprobs,
    objective: Objective,
    chunk_tokens: int | None = None,
    targets: Targets | None = None,
) -> Compared:
    """Return the divergences of the policy `model` from the teacher at the N tokens of `where`, row by row.

    At most `chunk_tokens` rows of logits of each model exist at once; None: as many as take 128 MiB in float32.
    `targets`: as in `Layout`.
    """
    tokens = input_ids[where] if targets is None else input_ids.flatten().index_select(0, targets.at)
    states = states_at(model, input_ids, where, targets)
    if states is None:
        whole = logits_at(model, input_ids, where, targets=targets)
        return _in_chunks(whole, None, None, tokens, teacher, objective, chunk_tokens)
    head = model.get_output_embeddings()

    def compute(own: Tensor) -> tuple[Tensor, ...]:
        return tuple(_in_chunks(own, head.weight, head.bias, tokens, teacher, objective, chunk_tokens))

    return Compared(*call_as_forward(head, compute, states))


def _in_chunks(
    states: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    targets: Tensor,
    teacher: Readout | ServedLogprobs,
    objective: Objective,
    chunk_tokens: int | None,
) -> Compared:
    vocab = states.shape[1] if weight is None else weight.shape[0]
    widest = max(vocab, teacher.vocab) if isinstance(teacher, Readout) else vocab
    size = chunk_tokens or max(1, CHUNK_ELEMENTS // widest)
    # At least one chunk: a micro-batch without tokens has a backward too, to keep in step with other ranks.
    starts = range(0, max(1, len(states)), size)

    def compared(own: Tensor, start: int) -> tuple[Tensor, ...]:
        rows = slice(start, start + size)
        if isinstance(teacher, ServedLogprobs):
            theirs: Tensor | ServedLogprobs = ServedLogprobs(teacher.ids[rows], teacher.logprobs[rows])
        else:
            with torch.no_grad():
                theirs = teacher.logits(rows)
        return compare(_logits(own, weight, bias), targets[rows], theirs, objective)

    pieces = [
        checkpoint(compared, states[at : at + size], at, use_reentrant=False, preserve_rng_state=False) for at in starts
    ]
    return Compared(*(torch.cat(column) for column in zip(*pieces, strict=True)))


def _logits(states: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return states if weight is None else F.linear(states, weight, bias)
