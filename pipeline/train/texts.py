"""The next-token loss of texts: supervised fine-tuning, and its share in a reinforcement learning update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from pipeline.errors import NonFiniteError
from pipeline.models.widths import padded_width
from pipeline.rl.loss import ptx_loss
from pipeline.train.backend import Backend
from pipeline.train.collate import deal, padded_ids


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
    device = backend.model.device
    total = float(sum(row.num_trained for row in batch))
    loss = torch.zeros(1, dtype=torch.float64)
    ranks, shortest = backend.ranks.data, min(range(len(batch)), key=lambda i: len(batch[i].ids))
    sizes = [len(ids) if packs else padded_width(len(ids), device) for ids, *_ in batch]
    pieces, num_idle = deal(sizes, micro_batch_tokens, ranks.rank, ranks.size, packs)
    for piece in [*pieces, *([[]] * num_idle)]:  # idle ones keep in step with the other ranks
        ids = padded_ids([batch[i].ids for i in piece or [shortest]], pad_id, device)
        where = torch.zeros(ids.shape, dtype=torch.bool, device=device)
        for row, i in enumerate(piece):
            for begin, end in batch[i].spans:
                where[row, begin:end] = True
        lengths = [len(batch[i].ids) for i in piece or [shortest]] if packs else None
        logprobs, _ = backend.logprobs(ids, where, 1.0, lengths=lengths)
        share = ptx_loss(logprobs, where, total, 1.0)
        backend.backward(coef * share)  # the loss that is reported has no `coef`
        loss += float(share.detach())
    mean = float(ranks.all_reduce(loss)[0])
    if not math.isfinite(mean):  # a sum over ranks, so that all of them raise and none waits for another
        raise NonFiniteError(f"the loss of texts is {mean}; the update was refused, lower the learning rate")
    return {"loss": mean, "tokens": total}
