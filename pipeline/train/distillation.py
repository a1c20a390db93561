"""The update of distillation on responses, by the divergence from teachers, and the same as a term of RL's update."""

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
from verizero.pipeline.rl.distillation import (
    Compared,
    ServedLogprobs,
    distillation_loss,
    drift_weights,
    stale_weights,
)
from verizero.pipeline.rl.divergences import Objective
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.collate import padded_ids, rank_micro_batches
from verizero.pipeline.train.teachers import ResponseBatch, Teacher
from verizero.pipeline.types import StepMetrics

Ids = tuple[int, ...]
SUMS = ("divergence", "kl", "entropy", "outside", "tokens", "stale_tokens", "stale_weight", "stale_clamped")


@dataclass(frozen=True, slots=True)
class DistillRow:
    """A response with its two prompts: the policy's, and the one that the teacher gets."""

    teacher: str
    """Key of the teacher."""
    prompt_ids: Ids
    teacher_prompt_ids: Ids
    response_ids: Ids
    rollout_logprobs: tuple[float, ...] | None = None
    """Log-probs of a response that an older policy sampled, where it is weighted; None: its tokens have weight 1."""

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


@dataclass(frozen=True, slots=True)
class Distillation:
    """The term of distillation in an update of RL."""

    coef: float
    teachers: Mapping[str, Teacher]
    rows: Sequence[DistillRow | None]
    """One for each response that has a reward, in the order of their groups; None: it has no term."""
    objective: Objective
    settings: DistillSettings
    counts: StepMetrics
    """Numbers of responses without a term, and of those whose teacher read what, in the whole batch."""

    def gradient(self, backend: Backend, rows: Sequence[int]) -> StepMetrics:
        """Accumulate the gradient of the term of some responses, and return its metrics.

        Raises: NonFiniteError if the term is not finite.
        """
        chosen = [row for i in rows if (row := self.rows[i]) is not None]
        counts = {**self.counts, "distill/rows": float(len(chosen))}
        if not chosen:
            return counts
        metrics = distill_gradient(backend, self.teachers, chosen, self.objective, self.settings, self.coef)
        own = {name: value for name, value in metrics.items() if name.startswith("distill/")}
        return {
            **counts,
            **own,
            "distill/tokens": metrics["tokens/trained"],
            "loss/distill": self.coef * metrics["loss"],
        }


def distill_update(
    backend: Backend,
    teachers: Mapping[str, Teacher],
    rows: Sequence[DistillRow],
    objective: Objective,
    settings: DistillSettings,
) -> StepMetrics:
    """Take one optimiser step on the mean divergence of all response tokens, and return its metrics.

    Raises: NonFiniteError if loss or gradient is not finite; that update was refused, the weights are as before.
    """
    metrics = distill_gradient(backend, teachers, rows, objective, settings)
    return {**metrics, "rows": float(len(rows)), **backend.step()}


def distill_gradient(
    backend: Backend,
    teachers: Mapping[str, Teacher],
    rows: Sequence[DistillRow],
    objective: Objective,
    settings: DistillSettings,
    coef: float = 1.0,
) -> StepMetrics:
    """Accumulate the gradient of `coef` times the mean divergence of all response tokens, and return the metrics.

    Every rank gets all rows and takes its share of them. The denominator is the number of response tokens of the whole
    step, counted before any backward: micro-batches and ranks change nothing. A micro-batch has one teacher.

    Raises: NonFiniteError if the mean is not finite; all gradients were dropped.
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
            divergences, sums = _weighted(divergences, logprobs, batch, objective)
            loss = distillation_loss(divergences, logprobs, batch.mask, objective.discount, total)
            backend.backward(coef * loss)
            stats[number] += torch.cat([_sums(divergences, compared), sums])
    stats = backend.ranks.row_ranks.all_reduce(stats)
    loss_of_step = float(stats[:, 0].sum()) / total
    if not math.isfinite(loss_of_step):  # a sum over ranks, so that all of them raise and none waits for another
        backend.discard()
        raise NonFiniteError(
            f"the divergence to the teacher is {loss_of_step}; the update was refused, lower the learning rate"
        )
    return _summary(stats, names, objective)


def _weighted(
    divergences: Tensor, logprobs: Tensor, batch: ResponseBatch, objective: Objective
) -> tuple[Tensor, Tensor]:
    """Return the divergences [B, T] times their weights, and the last three sums of SUMS."""
    sums = torch.zeros(3, dtype=torch.float64)
    if objective.drift_gamma:
        divergences = divergences * drift_weights(divergences, batch.mask, objective.drift_gamma)
    if objective.stale_weights and batch.stale is not None and batch.rollout_logprobs is not None:
        weights = stale_weights(logprobs, batch.rollout_logprobs.to(logprobs), batch.stale, batch.mask, objective)
        divergences = divergences * weights.values
        stale_tokens = batch.mask & batch.stale.unsqueeze(1)
        counted = (stale_tokens, weights.values * stale_tokens, weights.clamped)
        sums = torch.stack([x.detach().double().sum().cpu() for x in counted])
    return divergences, sums


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
    logprobs = stale = None
    if not of_teacher and any(r.rollout_logprobs is not None for r in rows):
        logprobs = torch.zeros(ids.shape, dtype=torch.float64)
        stale = torch.tensor([r.rollout_logprobs is not None for r in rows], device=device)
    for k, row in enumerate(rows):
        where = slice(len(prompts[k]), len(prompts[k]) + len(responses[k]))
        mask[k, where] = True
        if logprobs is not None and row.rollout_logprobs is not None:
            logprobs[k, where] = torch.tensor(row.rollout_logprobs, dtype=torch.float64)
    return ResponseBatch(ids, mask, None if logprobs is None else logprobs.to(device), stale)


def _sums(divergences: Tensor, compared: Compared) -> Tensor:
    """Return the sums over the tokens of one micro-batch, in the order of SUMS, without its last three."""
    columns = (
        divergences,
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
    if objective.stale_weights:
        out["distill/stale"] = sums["stale_tokens"] / tokens
        out["distill/stale_clamped"] = sums["stale_clamped"] / tokens
        if sums["stale_tokens"]:
            out["distill/stale_weight"] = sums["stale_weight"] / sums["stale_tokens"]
    if len(names) > 1:
        by_teacher = {
            name: dict(zip(SUMS, sums, strict=True)) for name, sums in zip(names, stats.tolist(), strict=True)
        }
        out |= {f"distill/kl/{name}": sums["kl"] / max(sums["tokens"], 1.0) for name, sums in by_teacher.items()}
    return out
