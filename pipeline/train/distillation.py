"""The update of distillation: one optimiser step on responses, by the divergence from teachers, with its metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.errors import NonFiniteError
from verizero.pipeline.models.comparison import Readout, compare_at
from verizero.pipeline.models.forward import spread
from verizero.pipeline.models.widths import padded_width
from verizero.pipeline.rl.distillation import Compared, ServedLogprobs, distillation_loss
from verizero.pipeline.rl.divergences import Objective
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.collate import padded_ids, rank_micro_batches
from verizero.pipeline.train.teachers import ResponseBatch, Teacher
from verizero.pipeline.types import StepMetrics

Ids = tuple[int, ...]
SUMS = ("divergence", "kl", "entropy", "outside", "tokens")


@dataclass(frozen=True, slots=True)
class DistillRow:
    """A response with its two prompts: the policy's, and the one that the teacher gets."""

    teacher: str
    """Key of the teacher."""
    prompt_ids: Ids
    teacher_prompt_ids: Ids
    response_ids: Ids

    @property
    def longest(self) -> int:
        """Tokens of the response with the longer prompt."""
        return max(len(self.prompt_ids), len(self.teacher_prompt_ids)) + len(self.response_ids)


@dataclass(frozen=True, slots=True)
class DistillSettings:
    """The numbers of an update."""

    pad_id: int
    micro_batch_tokens: int
    chunk_tokens: int | None = None
    """At most so many rows of logits are in memory at a time; None: as many as take 128 MiB."""


def distill_update(
    backend: Backend,
    teachers: Mapping[str, Teacher],
    rows: Sequence[DistillRow],
    objective: Objective,
    settings: DistillSettings,
) -> StepMetrics:
    """Take one optimiser step on the mean divergence of all response tokens, and return its metrics.

    Every rank gets all rows and takes its share of them. The denominator is the number of response tokens of the whole
    step, counted before any backward: micro-batches and ranks change nothing. A micro-batch has one teacher.

    Raises: NonFiniteError if loss or gradient is not finite; that update was refused, the weights are as before.
    """
    # Every rank has all rows, so the denominator needs no sum over ranks.
    total = float(sum(len(r.response_ids) for r in rows))
    names = sorted({r.teacher for r in rows})
    stats = torch.zeros(len(names), len(SUMS), dtype=torch.float64)
    for number, name in enumerate(names):
        rows_of_teacher = [r for r in rows if r.teacher == name]
        for batch, answer in _with_answers(backend, teachers[name], rows_of_teacher, settings):
            compared = _compared(backend, batch, answer, objective, settings.chunk_tokens)
            divergences, logprobs = (spread(x, batch.mask) for x in (compared.divergence, compared.logprobs))
            backend.backward(distillation_loss(divergences, logprobs, batch.mask, objective.discount, total))
            stats[number] += _sums(compared)
    stats = backend.ranks.row_ranks.all_reduce(stats)
    loss = float(stats[:, 0].sum()) / total
    if not math.isfinite(loss):  # a sum over ranks, so that all of them raise and none waits for another
        backend.discard()
        raise NonFiniteError(
            f"the divergence to the teacher is {loss}; the update was refused, lower the learning rate"
        )
    return {**_summary(stats, names, objective), "rows": float(len(rows)), **backend.step()}


def _compared(
    backend: Backend,
    batch: ResponseBatch,
    answer: Readout | ServedLogprobs,
    objective: Objective,
    chunk_tokens: int | None,
) -> Compared:
    """Return the policy's divergences from a teacher's answer for a micro-batch."""

    def compute(model: Any) -> tuple[Tensor, ...]:
        # A plain tuple, which the hooks of sharded modules can take apart and put together again.
        return tuple(compare_at(model, batch.input_ids, batch.mask, answer, objective, chunk_tokens))

    return Compared(*backend.compute(compute))


def _with_answers(
    backend: Backend, teacher: Teacher, rows: Sequence[DistillRow], settings: DistillSettings
) -> Iterator[tuple[ResponseBatch, Readout | ServedLogprobs]]:
    """Yield this rank's micro-batches of the rows, each with the teacher's answer for it.

    All ranks have as many; the last may be idle, a row of which nothing trains.
    """
    ranks = backend.ranks.row_ranks
    widths = [padded_width(r.longest, backend.model.device) for r in rows]
    pieces, num_idle = rank_micro_batches(widths, settings.micro_batch_tokens, ranks.rank, ranks.size)
    pieces += [[]] * num_idle
    shortest = min(rows, key=lambda r: r.longest)

    def batches(of_teacher: bool) -> list[ResponseBatch]:
        return [_batch(backend, [rows[i] for i in piece], shortest, of_teacher, settings.pad_id) for piece in pieces]

    yield from zip(batches(False), teacher.read(batches(True)), strict=True)


def _batch(
    backend: Backend, rows: Sequence[DistillRow], shortest: DistillRow, of_teacher: bool, pad_id: int
) -> ResponseBatch:
    """Return the rows with the policy's prompts or the teacher's; without rows an idle micro-batch."""
    device = backend.model.device
    prompts = [r.teacher_prompt_ids if of_teacher else r.prompt_ids for r in rows or [shortest]]
    responses = [r.response_ids for r in rows or [shortest]]
    ids = padded_ids([(*p, *y) for p, y in zip(prompts, responses, strict=True)], pad_id, device)
    mask = torch.zeros(ids.shape, dtype=torch.bool, device=device)
    for k in range(len(rows)):
        mask[k, len(prompts[k]) : len(prompts[k]) + len(responses[k])] = True
    return ResponseBatch(ids, mask)


def _sums(compared: Compared) -> Tensor:
    """Return the sums over the tokens of one micro-batch, in the order of SUMS."""
    columns = (
        compared.divergence,
        compared.reverse_kl,
        compared.entropy,
        compared.outside,
        torch.ones_like(compared.entropy),
    )
    return torch.stack([c.detach().double().sum().cpu() for c in columns])


def _summary(stats: Tensor, names: Sequence[str], objective: Objective) -> StepMetrics:
    """Return the metrics of all tokens; with several teachers also the KL to each."""
    sums = dict(zip(SUMS, stats.sum(0).tolist(), strict=True))
    tokens = max(sums["tokens"], 1.0)
    out = {
        "loss": sums["divergence"] / tokens,
        "distill/kl": sums["kl"] / tokens,
        "entropy": sums["entropy"] / tokens,
        "tokens/trained": sums["tokens"],
    }
    if objective.over == "top_k":
        out["distill/outside"] = sums["outside"] / tokens
    if len(names) > 1:
        by_teacher = {
            name: dict(zip(SUMS, sums, strict=True)) for name, sums in zip(names, stats.tolist(), strict=True)
        }
        out |= {f"distill/kl/{name}": sums["kl"] / max(sums["tokens"], 1.0) for name, sums in by_teacher.items()}
    return out
