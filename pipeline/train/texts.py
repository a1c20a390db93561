"""The next-token loss of texts: supervised fine-tuning, and its share in a reinforcement learning update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from verizero.pipeline.errors import NonFiniteError
from verizero.pipeline.models.forward import Targets
from verizero.pipeline.models.shared_prompts import SharedPrompts, moved
from verizero.pipeline.models.widths import padded_width
from verizero.pipeline.rl.loss import ptx_loss
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.collate import deal, padded_ids
from verizero.pipeline.train.sharing import places_of
from verizero.pipeline.types import PackedAs, PromptOf


class Row(NamedTuple):
    """A sequence of tokens, some of which are trained on.

    Example: Row(ids=(5, 6, 7, 8, 9), spans=((1, 2), (3, 5)))
    """

    ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    """(begin, end) of the tokens that are trained on, in order; the row's first token is in none."""

    @property
    def num_trained(self) -> int:
        """The number of tokens that are trained on."""
        return sum(end - begin for begin, end in self.spans)


def row_after(ids: tuple[int, ...], skip: int) -> Row:
    """Return a row of which all but the first `skip` tokens are trained on."""
    return Row(ids, ((skip, len(ids)),))


def text_gradient(
    backend: Backend, batch: Sequence[Row], coef: float, pad_id: int, micro_batch_tokens: int, packs: bool = False
) -> dict[str, float]:
    """Accumulate `coef` times the gradient of the mean negative log-likelihood of all trained tokens of the batch.

    Return that loss and the number of tokens. Every rank gets the whole batch and takes its share of the rows.
    `packs`: rows are computed without padding; the loss and its gradient are the same.

    Raises: NonFiniteError if the loss is not finite.
    """
    device, total = backend.model.device, float(sum(row.num_trained for row in batch))
    loss = torch.zeros(1, dtype=torch.float64, device=device)
    for micro in _micros(backend, batch, pad_id, micro_batch_tokens, packs):
        where = torch.zeros(micro.ids.numel(), dtype=torch.bool, device=device)
        where = where.index_fill_(0, micro.targets.at, True).view_as(micro.ids)
        logprobs, _ = backend.logprobs(micro.ids, where, 1.0, lengths=micro.lengths, targets=micro.targets)
        share = ptx_loss(logprobs, where, total, 1.0)
        backend.backward(coef * share)  # the loss that is reported has no `coef`
        loss += share.detach()
    mean = float(backend.ranks.data.all_reduce(loss.cpu())[0])
    if not math.isfinite(mean):  # a sum over ranks, so that all of them raise and none waits for another
        raise NonFiniteError(f"the loss of texts is {mean}; the update was refused, lower the learning rate")
    return {"loss": mean, "tokens": total}


class _Micro(NamedTuple):
    ids: Tensor
    """int64 [B, T], padded on the right."""
    targets: Targets
    lengths: list[int] | None
    """Tokens of each row, which `backend.logprobs` packs. None: rows are padded, or `targets` has them packed."""


def _micros(backend: Backend, batch: Sequence[Row], pad_id: int, most: int, packs: bool) -> list[_Micro]:
    """Return this rank's micro-batches, on the device."""
    device, ranks, lengths = backend.model.device, backend.ranks.data, [len(row.ids) for row in batch]
    # Every rank must ask. In runs nothing is padded, and shapes are few: see `models.varlen`.
    in_runs = PackedAs(most, in_runs=True) if packs and backend.can_share_prompts(in_runs=True) else None
    sizes = lengths if packs else [padded_width(n, device) for n in lengths]
    alone = None if in_runs is None else [PromptOf(i, 0, n) for i, n in enumerate(lengths)]
    pieces, num_idle = deal(sizes, most, ranks.rank, ranks.size, packs, alone, fills=in_runs is not None)
    shortest = min(range(len(batch)), key=lengths.__getitem__)
    made = []
    for piece in [*pieces, *([[]] * num_idle)]:  # idle ones keep in step with the other ranks
        rows = piece or [shortest]
        width = padded_width(max(lengths[i] for i in rows), device)
        ids = padded_ids([batch[i].ids for i in rows], pad_id, width=width)
        layout = None if alone is None else SharedPrompts.of([alone[i] for i in rows], width, in_runs)
        at = places_of([batch[i].spans for i in piece], width)
        own = [lengths[i] for i in rows] if packs and in_runs is None else None
        made.append(_Micro(ids, Targets(at, layout), own))
    tensors = moved([x for micro in made for x in (micro.ids, *micro.targets.tensors())], device)
    return [_Micro(next(tensors), micro.targets.with_tensors(tensors), micro.lengths) for micro in made]
