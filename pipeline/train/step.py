"""The update: groups to one or several optimiser steps, with their metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pipeline.errors import DataError, NonFiniteError, RunError
from pipeline.rl.controllers import entropy_controller, kl_controller
from pipeline.rl.credit import AdvantageInputs, Advantages, compute_advantages
from pipeline.rl.loss import Counts, LossInputs, count, policy_loss, summarize
from pipeline.rl.parts import Parts
from pipeline.rl.selection import Selection, select_tokens
from pipeline.rl.shaping import length_penalty
from pipeline.seeds import derive, stream
from pipeline.train.backend import Backend, Who
from pipeline.train.collate import collate, deal, rows_of, untrained
from pipeline.train.critic import Predicted, learn, predict
from pipeline.train.ranks import ALONE, Ranks
from pipeline.train.replay import replay_of
from pipeline.train.texts import Row, text_gradient
from pipeline.types import Group, StepMetrics, TrainBatch


class Controllers:
    """The adaptive coefficients of an algorithm; fixed ones where it adapts none."""

    def __init__(self, parts: Parts) -> None:
        self.kl = kl_controller(parts)
        self.entropy = entropy_controller(parts)

    def observe(self, metrics: StepMetrics) -> None:
        """Adapt the coefficients to the metrics of an update."""
        # k1 is the unbiased estimate; the target is meant per token, as this mean is.
        if "kl/k1" in metrics:
            self.kl.update(metrics["kl/k1"], round(metrics["rows"]))
        if "entropy" in metrics:
            self.entropy.update(metrics["entropy"])

    def state_dict(self) -> dict[str, Any]:
        """Return the coefficients, for the checkpoint."""
        return {"kl": self.kl.state_dict(), "entropy": self.entropy.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the coefficients from a checkpoint."""
        self.kl.load_state_dict(state["kl"])
        self.entropy.load_state_dict(state["entropy"])


@dataclass(frozen=True, slots=True)
class Settings:
    """The numbers of an update, and what it uses besides the groups."""

    pad_id: int
    temperature: float
    micro_batch_tokens: int
    policy_version: int
    """The version of the policy that is updated; rollouts of an older one are off-policy."""
    max_response_tokens: int
    controllers: Controllers
    with_reference: bool = False
    """Measure the KL to the reference even if the objective does not use it."""
    seed: int = 0
    step: int = 0
    texts: Sequence[Row] = ()
    """Demonstrations, of which `texts_per_update` join each optimiser step where `ptx_coef` is above 0."""
    texts_per_update: int = 0


def update(backend: Backend, parts: Parts, groups: Sequence[Group], settings: Settings) -> StepMetrics:
    """Train on `groups`, and return the metrics of the updates, averaged.

    Advantages, old and reference log-probs are computed once for the whole batch; then each minibatch is one optimiser
    step, whose denominators are counted over all of its micro-batches and ranks before any backward. Every rank gets
    all groups: what needs the model is divided by rows, and each rank computes the rest for itself.

    Raises: NonFiniteError if a loss or gradient is not finite; that optimiser step was refused;
        the steps on earlier minibatches of the batch stay.
    """
    batch = _shaped(parts, collate(groups, settings.pad_id, backend.model.device), settings)
    before = _Before.of(backend, parts, batch, settings)
    predicted = _predicted(backend, parts, batch, settings)
    # Without a sum over ranks: every rank has all groups here.
    advantages = compute_advantages(
        parts,
        AdvantageInputs(
            rewards=batch.rewards,
            group_ids=batch.group_ids,
            response_mask=batch.response_mask,
            old_logprobs=before.old,
            ref_logprobs=before.ref,
            values=None if predicted is None else predicted.values,
            final_values=None if predicted is None else predicted.final,
            greedy_rewards=_greedy(groups, batch),
            reward_components=_components(groups, batch) if parts.needs_components else None,
            truncated=batch.truncated,
        ),
        kl_coef=settings.controllers.kl.coef,
    )
    selection = _selected(parts, batch, before, advantages, settings)
    prepared = _Prepared(batch, before, predicted, advantages, selection)
    seen: list[StepMetrics] = []
    for number, rows in enumerate(_minibatches(parts, batch, settings)):
        metrics = _one_update(backend, parts, prepared, rows, settings, number)
        seen.append(metrics)
        # Measured in the minibatch's own forward, so its step is taken already; the next ones are not.
        if parts.updates.max_kl is not None and metrics.get("policy_kl/k3", 0.0) > parts.updates.max_kl:
            break
    mean = {name: sum(m[name] for m in seen) / len(seen) for name in seen[0]}
    metrics = {**advantages.stats, **mean, "updates": float(len(seen)), "rows": float(len(batch.rewards))}
    if before.stale is not None:
        metrics["rows/off_policy"] = float(before.stale.sum())
    if parts.kl.where != "none":
        metrics["kl/coef"] = settings.controllers.kl.coef
    settings.controllers.observe(metrics)
    return metrics


@dataclass(frozen=True, slots=True)
class _Before:
    """[B, T] log-probs and entropies from before the batch's first update; None where the algorithm needs none."""

    old: Tensor | None
    ref: Tensor | None
    entropy: Tensor | None
    stale: Tensor | None
    """bool [B]: sampled by an older policy; None if no row was."""

    @classmethod
    def of(cls, backend: Backend, parts: Parts, batch: TrainBatch, settings: Settings) -> _Before:
        ref = None
        if parts.needs_reference or settings.with_reference:
            ref, _ = _logprobs_of(backend, batch, "reference", settings)
        stale = batch.extras["policy_version"] < settings.policy_version
        # With one update of a batch the old log-probs are the current ones: no forward of their own is needed.
        several = parts.updates.num_epochs * parts.updates.num_minibatches > 1
        old = entropy = None
        if (parts.needs_old_logprobs and several) or parts.kl.where == "reward" or parts.needs_selection:
            old, entropy = _logprobs_of(backend, batch, "policy", settings, parts.masks.high_entropy_share is not None)
            # The ratio of a row that an older policy sampled is to that policy, as its engine reported it.
            old = torch.where(stale[:, None], batch.rollout_logprobs, old)
        return cls(old, ref, entropy, stale if bool(stale.any()) else None)

    def old_for(self, rows: Tensor, width: int, logprobs: Tensor, batch: TrainBatch) -> Tensor | None:
        """Return the old log-probs of a micro-batch; None if they are the current ones."""
        if self.old is not None:
            return self.old[rows, :width]
        if self.stale is None:
            return None
        # Fresh rows: the current log-probs, whose ratio is 1. Stale rows: what their engine reported.
        return torch.where(self.stale[rows, None], batch.rollout_logprobs[rows, :width], logprobs.detach())


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A batch with all that is computed once for it, before its first optimiser step."""

    batch: TrainBatch
    before: _Before
    predicted: Predicted | None
    advantages: Advantages
    selection: Selection


def _selected(
    parts: Parts, batch: TrainBatch, before: _Before, advantages: Advantages, settings: Settings
) -> Selection:
    """Return the tokens that the algorithm selects over the whole batch; an empty selection if it trains on all."""
    if not parts.needs_selection or before.old is None:
        return Selection()
    return select_tokens(
        parts,
        advantages=advantages.advantages,
        old_logprobs=before.old,
        response_mask=batch.response_mask,
        old_entropy=before.entropy,
        generator=torch.Generator().manual_seed(derive(settings.seed, "selection", settings.step)),
    )


Micros = list[tuple[Tensor, TrainBatch]]
"""Micro-batches, each with its rows in the whole batch."""


def _one_update(
    backend: Backend, parts: Parts, prepared: _Prepared, rows: list[int], settings: Settings, number: int
) -> StepMetrics:
    """Take one optimiser step of the policy, and one of the critic if there is one; in its warm-up the latter only."""
    micros = _micros(prepared.batch, rows, settings, backend.ranks.data)
    warming = parts.critic is not None and settings.step < parts.critic.warmup_steps
    metrics: StepMetrics = {}
    try:
        if not warming:
            metrics |= _policy_gradient(backend, parts, prepared, micros, settings)
            metrics |= _text_gradient(backend, parts, number, settings)
        if parts.critic is not None:
            metrics |= _critic_gradient(backend, parts, prepared, micros)
            metrics["critic/warming_up"] = float(warming)
        # All gradients are finite from here on, or none of the two optimisers steps.
        if not warming:
            metrics |= backend.step()
    except NonFiniteError:
        backend.discard()
        raise
    if backend.critic is not None and parts.critic is not None:
        metrics |= backend.critic.step()
    if warming:  # a shared critic's loss left a gradient in the policy's backbone
        backend.discard()
    return metrics


def _policy_gradient(
    backend: Backend, parts: Parts, prepared: _Prepared, micros: Micros, settings: Settings
) -> StepMetrics:
    """Accumulate the gradient of the policy loss of one optimiser step, and return its metrics."""
    batch, before, selection = prepared.batch, prepared.before, prepared.selection
    # The denominators of the whole step, of all ranks, before any backward: so micro-batches change nothing.
    local = sum((count(parts, m.response_mask, m.truncated) for _, m in micros), Counts())
    totals = Counts(*backend.ranks.data.all_reduce(torch.tensor(local.to_list(), dtype=torch.float64)).tolist())
    stats: Tensor | None = None
    for at, micro in micros:
        width = micro.input_ids.shape[1]
        where = micro.response_mask > 0
        replay = replay_of(micro)
        logprobs, entropy = backend.logprobs(micro.input_ids, where, settings.temperature, "policy", True, replay)
        inputs = LossInputs(
            logprobs=logprobs,
            advantages=prepared.advantages.advantages[at, :width],
            response_mask=micro.response_mask,
            old_logprobs=before.old_for(at, width, logprobs, batch),
            ref_logprobs=_cut(before.ref, at, width),
            rollout_logprobs=micro.rollout_logprobs,
            entropy=entropy,
            truncated=micro.truncated,
            high_entropy=_cut(selection.high_entropy, at, width),
            selected=_cut(selection.selected, at, width),
        )
        coefs = settings.controllers
        out = policy_loss(parts, inputs, totals, kl_coef=coefs.kl.coef, entropy_coef=coefs.entropy.coef)
        backend.backward(out.loss)
        stats = out.stats if stats is None else stats + out.stats
    assert stats is not None
    metrics = summarize(backend.ranks.data.all_reduce(stats), totals)
    loss = metrics["loss/total"]
    if not math.isfinite(loss):  # a sum over ranks, so that all of them raise and none waits for another
        raise NonFiniteError(f"the loss is {loss} at step {settings.step}; update refused, lower the learning rate")
    return metrics


def _text_gradient(backend: Backend, parts: Parts, number: int, settings: Settings) -> StepMetrics:
    """Accumulate the gradient of the loss of some demonstrations, drawn for each optimiser step; return its metrics."""
    coef = parts.terms.ptx_coef
    if coef == 0:
        return {}
    if not settings.texts:
        raise DataError(
            f"ptx_coef is {coef:g} and there are no demonstrations; give data.demonstrations, or set it to 0"
        )
    draw = stream(settings.seed, "ptx", settings.step, number)
    chosen = [draw.choice(settings.texts) for _ in range(settings.texts_per_update)]
    seen = text_gradient(backend, chosen, coef, settings.pad_id, settings.micro_batch_tokens)
    return {"loss/ptx": coef * seen["loss"], "ptx/tokens": seen["tokens"]}


def _predicted(backend: Backend, parts: Parts, batch: TrainBatch, settings: Settings) -> Predicted | None:
    """Return the critic's values of the batch before it learns from it; None for an algorithm without a critic."""
    if parts.critic is None:
        return None
    if backend.critic is None:
        raise RunError("the algorithm has a critic and the backend holds none; call start_critic first")
    everything = _micros(batch, list(range(len(batch.rewards))), settings, backend.ranks.data)
    with_final = bool(parts.advantage.options.get("bootstrap_truncated"))
    return predict(backend.critic, batch, everything, with_final, backend.ranks.data.all_reduce)


def _critic_gradient(backend: Backend, parts: Parts, prepared: _Prepared, micros: Micros) -> StepMetrics:
    """Accumulate the gradient of the value loss of one optimiser step, require it finite, and return its metrics."""
    predicted, returns = prepared.predicted, prepared.advantages.returns
    assert backend.critic is not None
    assert parts.critic is not None
    assert predicted is not None
    assert returns is not None
    metrics = learn(backend.critic, parts.critic, micros, predicted, returns, backend.ranks.data.all_reduce)
    backend.critic.require_finite()
    return metrics


@torch.no_grad()
def _logprobs_of(
    backend: Backend, batch: TrainBatch, who: Who, settings: Settings, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return [B, T] log-probs of every response token, and entropies if asked for, in the backend's number type."""
    # Made at the first micro-batch, whose number type and device they take.
    out: Tensor | None = None
    entropies: Tensor | None = None
    for at, micro in _micros(batch, list(range(len(batch.rewards))), settings, backend.ranks.data):
        where, replay = micro.response_mask > 0, replay_of(micro)
        own, own_entropies = backend.logprobs(micro.input_ids, where, settings.temperature, who, entropy, replay)
        if out is None:
            out = own.new_zeros(batch.response_mask.shape)
            entropies = torch.zeros_like(out) if entropy else None
        if not bool(where.any()):  # an idle micro-batch: its forward only keeps in step with the other ranks
            continue
        out[at, : own.shape[1]] = own
        if entropies is not None and own_entropies is not None:
            entropies[at, : own.shape[1]] = own_entropies
    assert out is not None
    every = backend.ranks.data.all_reduce  # each rank has 0 in the rows of the others
    return every(out), None if entropies is None else every(entropies)


def _cut(values: Tensor | None, rows: Tensor, width: int) -> Tensor | None:
    return None if values is None else values[rows, :width]


def _shaped(parts: Parts, batch: TrainBatch, settings: Settings) -> TrainBatch:
    """Return the batch with the algorithm's rewards for the length of responses added."""
    lengths = batch.response_mask.sum(1).tolist()
    added = [length_penalty(parts.shaping, int(n), settings.max_response_tokens) for n in lengths]
    if not any(added):
        return batch
    return replace(batch, rewards=batch.rewards + torch.tensor(added, device=batch.rewards.device))


def _micros(batch: TrainBatch, rows: Sequence[int], settings: Settings, ranks: Ranks = ALONE) -> Micros:
    """Return this rank's micro-batches of those rows. All ranks have as many: the last ones of some are idle."""
    lengths = batch.attention_mask.sum(1).tolist()
    pieces, num_idle = deal([lengths[i] for i in rows], settings.micro_batch_tokens, ranks.rank, ranks.size)
    device = batch.rewards.device
    own = [[rows[i] for i in piece] for piece in pieces]
    idle = (torch.tensor([0], device=device), untrained(batch)) if num_idle else None  # any row: none of it trains
    return [
        *((torch.tensor(piece, device=device), rows_of(batch, piece)) for piece in own),
        *([idle] * num_idle if idle is not None else []),
    ]


def _minibatches(parts: Parts, batch: TrainBatch, settings: Settings) -> Iterator[list[int]]:
    """Yield the rows of each optimiser step: whole groups, reshuffled for each epoch."""
    group_of = batch.group_ids.tolist()
    groups: dict[int, list[int]] = {}
    for row, group in enumerate(group_of):
        groups.setdefault(group, []).append(row)
    order = list(groups)
    num = min(parts.updates.num_minibatches, len(order))
    for epoch in range(parts.updates.num_epochs):
        if num > 1:
            stream(settings.seed, "minibatches", settings.step, epoch).shuffle(order)
        for i in range(num):
            # By strides: the minibatches differ by one group at most.
            yield [row for group in order[i::num] for row in groups[group]]


def _greedy(groups: Sequence[Group], batch: TrainBatch) -> Tensor | None:
    known = [g.greedy_reward for g in groups]
    if any(r is None for r in known):
        return None
    # `collate` numbers groups by their place here: [groups] -> [B].
    return torch.tensor(known, dtype=batch.rewards.dtype, device=batch.rewards.device)[batch.group_ids]


def _components(groups: Sequence[Group], batch: TrainBatch) -> Tensor:
    """Return [B, K] components of the rewards; a reward without components is its only one."""
    # By group, then member, without those that have no reward: the rows of `collate`.
    rows = [m.components or (m.reward,) for g in groups for m in g.members if m.reward is not None]
    return torch.tensor(rows, dtype=torch.float64, device=batch.rewards.device)
