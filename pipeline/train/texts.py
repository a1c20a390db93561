"""Next-token loss of texts: supervised fine-tuning, and the share of it in a reinforcement learning update."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pipeline.errors import NonFiniteError
from pipeline.rl.objective import ptx_loss
from pipeline.train.backend import Backend
from pipeline.train.collate import micro_batches, padded_ids

Row = tuple[tuple[int, ...], int]
"""Token ids, and how many of the first are not trained on."""


def text_gradient(
    backend: Backend, batch: Sequence[Row], coef: float, pad_id: int, micro_batch_tokens: int
) -> dict[str, float]:
    """The mean negative log-likelihood of all trained tokens of the batch, and their number.

    `coef` times its gradient is accumulated. The mean is over the tokens of all micro-batches and ranks.

    Raises: NonFiniteError if the loss is not finite.
    """
    device = backend.model.device
    local = torch.tensor([float(sum(len(ids) - skip for ids, skip in batch))], dtype=torch.float64)
    total = float(backend.all_reduce(local)[0])
    loss = torch.zeros(1, dtype=torch.float64)
    for piece in micro_batches([len(ids) for ids, _ in batch], micro_batch_tokens):
        ids = padded_ids([batch[i][0] for i in piece], pad_id, device)
        where = torch.zeros(ids.shape, dtype=torch.bool, device=device)
        for row, i in enumerate(piece):
            where[row, batch[i][1] : len(batch[i][0])] = True
        logprobs, _ = backend.logprobs(ids, where, 1.0, "policy", False)
        share = ptx_loss(logprobs, where, total, 1.0)
        if not bool(torch.isfinite(share)):
            raise NonFiniteError(
                f"the loss of texts is {float(share.detach())}; the update was refused, lower the learning rate"
            )
        backend.backward(coef * share)
        loss += float(share.detach())
    return {"loss": float(backend.all_reduce(loss)[0]), "tokens": total}
