"""The update of distillation: responses and their teachers to one optimiser step, with its metrics."""

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
from verizero.pipeline.rl.distillation import Compared, Told, distillation_loss
from verizero.pipeline.rl.divergences import Objective
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.collate import padded_ids, rank_micro_batches
from verizero.pipeline.train.teachers import Reading, Teacher
from verizero.pipeline.types import StepMetrics

Ids = tuple[int, ...]
SUMS = ("divergence", "kl", "entropy", "outside", "tokens")


@dataclass(frozen=True, slots=True)
class DistillRow:
    """One response, after the prompt that the policy had and after the one that its teacher reads."""

    teacher: str
    """Key of the teacher."""
    prompt_ids: Ids
    teacher_prompt_ids: Ids
    response_ids: Ids

    @property
    def longest(self) -> int:
        """Tokens of the longer of both rows."""
        return max(len(self.prompt_ids), len(self.teacher_prompt_ids)) + len(self.response_ids)


@dataclass(frozen=True, slots=True)
class DistillSettings:
    """The numbers of an update."""

    pad_id: int
    micro_batch_tokens: int
    chunk_tokens: int | None = None
    """Most rows of logits in memory at a time; None: as many as take 128 MiB."""


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
        own = [r for r in rows if r.teacher == name]
        for reading, answer in _with_teacher(backend, teachers[name], own, settings):
            compared = _compared(backend, reading, answer, objective, settings.chunk_tokens)
            each, logprobs = (spread(x, reading.where) for x in (compared.divergence, compared.logprobs))
            backend.backward(distillation_loss(each, logprobs, reading.where, objective.discount, total))
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
    backend: Backend, reading: Reading, answer: Readout | Told, objective: Objective, chunk_tokens: int | None
) -> Compared:
    """Return the policy's divergences from what a teacher said of a micro-batch."""

    def compute(model: Any) -> tuple[Tensor, ...]:
        # A plain tuple, which the hooks of sharded modules can take apart and put together again.
        return tuple(compare_at(model, reading.input_ids, reading.where, answer, objective, chunk_tokens))

    return Compared(*backend.compute(compute))


def _with_teacher(
    backend: Backend, teacher: Teacher, rows: Sequence[DistillRow], settings: DistillSettings
) -> Iterator[tuple[Reading, Readout | Told]]:
    """Yield this rank's micro-batches of the rows, each with what the teacher says of them.

    All ranks have as many; the last may be idle, a row of which nothing trains.
    """
    ranks = backend.ranks.row_ranks
    widths = [padded_width(r.longest, backend.model.device) for r in rows]
    pieces, num_idle = rank_micro_batches(widths, settings.micro_batch_tokens, ranks.rank, ranks.size)
    pieces += [[]] * num_idle
    spare = min(rows, key=lambda r: r.longest)

    def readings(of_teacher: bool) -> list[Reading]:
        return [_reading(backend, [rows[i] for i in piece], spare, of_teacher, settings.pad_id) for piece in pieces]

    yield from zip(readings(False), teacher.read(readings(True)), strict=True)


def _reading(backend: Backend, rows: Sequence[DistillRow], spare: DistillRow, of_teacher: bool, pad_id: int) -> Reading:
    """Return the rows as the policy had them or as the teacher reads them; without rows an idle micro-batch."""
    device = backend.model.device
    prompts = [r.teacher_prompt_ids if of_teacher else r.prompt_ids for r in rows or [spare]]
    responses = [r.response_ids for r in rows or [spare]]
    ids = padded_ids([(*p, *y) for p, y in zip(prompts, responses, strict=True)], pad_id, device)
    where = torch.zeros(ids.shape, dtype=torch.bool, device=device)
    for k in range(len(rows)):
        where[k, len(prompts[k]) : len(prompts[k]) + len(responses[k])] = True
    return Reading(ids, where)


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
        of_each = zip(names, stats.tolist(), strict=True)
        out |= {f"distill/kl/{name}": own[1] / max(own[4], 1.0) for name, own in of_each}
    return out
