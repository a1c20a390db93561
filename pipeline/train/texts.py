"""The next-token loss of texts: supervised fine-tuning, and its share in a reinforcement learning update."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from pipeline.errors import NonFiniteError
from pipeline.models.widths import padded_width
from pipeline.rl.loss import ptx_loss
from pipeline.train.backend import Backend
from pipeline.train.collate import deal, padded_ids

Row = tuple[tuple[int, ...], int]
"""Token ids, and the number of the first ones that are not trained on."""


def text_gradient(
    backend: Backend, batch: Sequence[Row], coef: float, pad_id: int, micro_batch_tokens: int, packs: bool = False
) -> dict[str, float]:
    """Accumulate `coef` times the gradient of the mean negative log-likelihood of all trained tokens of the batch.

    Return that loss and the number of tokens. Every rank gets the whole batch and takes its share of the rows.
    `packs`: rows are computed without padding; the loss and its gradient are the same.

    Raises: NonFiniteError if the loss is not finite.
    """
    device = backend.model.device
    total = float(sum(len(ids) - skip for ids, skip in batch))
    loss = torch.zeros(1, dtype=torch.float64)
    ranks, shortest = backend.ranks.data, min(range(len(batch)), key=lambda i: len(batch[i][0]))
    sizes = [len(ids) if packs else padded_width(len(ids), device) for ids, _ in batch]
    pieces, num_idle = deal(sizes, micro_batch_tokens, ranks.rank, ranks.size, packs)
    for piece in [*pieces, *([[]] * num_idle)]:  # idle ones keep in step with the other ranks
        ids = padded_ids([batch[i][0] for i in piece or [shortest]], pad_id, device)
        where = torch.zeros(ids.shape, dtype=torch.bool, device=device)
        for row, i in enumerate(piece):
            where[row, batch[i][1] : len(batch[i][0])] = True
        lengths = [len(batch[i][0]) for i in piece or [shortest]] if packs else None
        logprobs, _ = backend.logprobs(ids, where, 1.0, lengths=lengths)
        share = ptx_loss(logprobs, where, total, 1.0)
        backend.backward(coef * share)  # the loss that is reported has no `coef`
        loss += float(share.detach())
    mean = float(ranks.all_reduce(loss)[0])
    if not math.isfinite(mean):  # a sum over ranks, so that all of them raise and none waits for another
        raise NonFiniteError(f"the loss of texts is {mean}; the update was refused, lower the learning rate")
    return {"loss": mean, "tokens": total}
