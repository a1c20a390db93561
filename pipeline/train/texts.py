"""The next-token loss of texts: for supervised fine-tuning, and as a term (ptx) of an RL update."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from verizero.pipeline.errors import NonFiniteError
from verizero.pipeline.models.forward import Targets
from verizero.pipeline.models.runs import Runs, moved, padded_width
from verizero.pipeline.rl.loss import ptx_loss
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.collate import padded_ids, rank_micro_batches, span_indices
from verizero.pipeline.train.trees import packed_paths, tree_metrics
from verizero.pipeline.types import Path, StepMetrics


class Row(NamedTuple):
    """A sequence of tokens, some of which are trained on. Example: Row(ids=(5, 6, 7, 8, 9), spans=((1, 2), (3, 5)))"""

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
    backend: Backend, batch: Sequence[Row], coef: float, pad_id: int, micro_batch_tokens: int
) -> StepMetrics:
    """Accumulate `coef` times the gradient of the mean negative log-likelihood of all trained tokens of the batch.

    Return that mean without `coef`, the number of tokens, and metrics of the rows' tree. Every rank gets the whole
    batch and takes its share of the rows.

    Raises: NonFiniteError if the loss is not finite.
    """
    device, total = backend.model.device, float(sum(row.num_trained for row in batch))
    loss = torch.zeros(1, dtype=torch.float64, device=device)
    paths, is_refused = packed_paths(backend, (row.ids for row in batch), texts=True)
    pieces = pieces_of_rank(backend, [len(row.ids) for row in batch], paths, micro_batch_tokens)
    for ids, mask, targets in laid_out(batch, paths, pieces, pad_id, micro_batch_tokens, device):
        logprobs, _ = backend.logprobs(ids, mask, 1.0, targets=targets)
        share = ptx_loss(logprobs, mask, total, 1.0)
        backend.backward(coef * share)  # the loss that is reported has no `coef`
        loss += share.detach()
    mean = float(backend.ranks.all_reduce(loss.cpu())[0])
    if not math.isfinite(mean):  # a sum over ranks, so that all of them raise and none waits for another
        raise NonFiniteError(f"the loss of texts is {mean}; the update was refused, lower the learning rate")
    return {"loss": mean, "tokens": total, **tree_metrics(paths, is_refused)}


def pieces_of_rank(
    backend: Backend, lengths: Sequence[int], paths: Sequence[Path] | None, max_tokens: int
) -> list[list[int]]:
    """Return this rank's micro-batches, as indices of rows; an empty one keeps it in step with others."""
    device, ranks = backend.model.device, backend.ranks
    costs = [padded_width(n, device) for n in lengths] if paths is None else lengths
    pieces, num_idle = rank_micro_batches(costs, max_tokens, ranks.rank, ranks.size, paths)
    return [*pieces, *[[]] * num_idle]


def laid_out(
    texts: Sequence[Row],
    paths: Sequence[Path] | None,
    pieces: Sequence[list[int]],
    pad_id: int,
    max_tokens: int,
    device: torch.device,
) -> list[tuple[Tensor, Tensor, Targets]]:
    """Return the micro-batches of the texts at those indices, as `text_batches` does; without any an idle one."""
    micros = [
        ([texts[i] for i in piece], paths and [paths[i] for i in piece]) if piece else idle_text(texts)
        for piece in pieces
    ]
    return text_batches(micros, pad_id, max_tokens, device)


Texts = tuple[Sequence[Row], Sequence[Path] | None]
"""Rows of one micro-batch, and the path of each; None: they are padded."""


def idle_text(rows: Iterable[Row]) -> Texts:
    """Return an idle micro-batch, which keeps a rank in step with others: the shortest row, of which nothing trains."""
    return [Row(min((row.ids for row in rows), key=len), ())], None


def text_batches(
    micros: Sequence[Texts], pad_id: int, max_tokens: int, device: torch.device
) -> list[tuple[Tensor, Tensor, Targets]]:
    """Return each micro-batch on the device: ids [b, t], padded on the right, and where they train, as mask and places.

    `max_tokens`: the limit of its tokens.
    """
    batches = []
    for rows, paths in micros:
        width = padded_width(max(len(row.ids) for row in rows), device)
        runs = None if paths is None else Runs.of(paths, width, most=max_tokens, device=device)
        targets = Targets(span_indices([row.spans for row in rows], width), runs)
        batches.append((padded_ids([row.ids for row in rows], pad_id, width=width), targets))
    on_device = moved([x for ids, targets in batches for x in (ids, *targets.tensors())], device)
    out = []
    for _, own in batches:
        ids, targets = next(on_device), own.with_tensors(on_device)
        mask = torch.zeros(ids.numel(), dtype=torch.bool, device=device)
        out.append((ids, mask.index_fill_(0, targets.at, True).view_as(ids), targets))
    return out
