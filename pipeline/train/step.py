"""The update: groups to one or several optimiser steps, and what was seen on the way."""

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
        """Move the coefficients by what an update saw."""
        if "kl/k1" in metrics:
            self.kl.update(metrics["kl/k1"], round(metrics["rows"]))
        if "entropy" in metrics:
            self.entropy.update(metrics["entropy"])

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"kl": self.kl.state_dict(), "entropy": self.entropy.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """From the checkpoint."""
        self.kl.load_state_dict(state["kl"])
        self.entropy.load_state_dict(state["entropy"])


@dataclass(frozen=True, slots=True)
class Settings:
    """What an update needs besides the groups."""

    pad_id: int
    temperature: float
    micro_batch_tokens: int
    policy_version: int
    """Of the policy that is updated: rollouts of an older one are off-policy."""
    max_response_tokens: int
    controllers: Controllers
    with_reference: bool = False
    """Measure the KL to the reference even where the objective has no use for it."""
    seed: int = 0
    step: int = 0
    texts: Sequence[Row] = ()
    """Demonstrations, of which `texts_per_update` join each optimiser step where `ptx_coef` is above 0."""
    texts_per_update: int = 0


def update(backend: Backend, parts: Parts, groups: Sequence[Group], settings: Settings) -> StepMetrics:
    """Train on `groups`; the metrics of the updates, averaged.

    Advantages, old and reference log-probs are computed once for the whole batch; then each minibatch is one optimiser
    step, whose denominators are counted over all of its micro-batches and ranks before any backward. Every rank is
    given all groups: what needs the model is dealt out by rows, the rest each works out for itself.

    Raises: NonFiniteError if a loss or gradient is not finite; that update was refused, the weights are as before.
    """
    batch = _shaped(parts, collate(groups, settings.pad_id, backend.model.device), settings)
    fixed = _Fixed.of(backend, parts, batch, settings)
    predicted = _predicted(backend, parts, batch, settings)
    advantages = compute_advantages(
        parts,
        AdvantageInputs(
            rewards=batch.rewards,
            group_ids=batch.group_ids,
            response_mask=batch.response_mask,
            old_logprobs=fixed.old,
            ref_logprobs=fixed.ref,
            values=None if predicted is None else predicted.values,
            final_values=None if predicted is None else predicted.final,
            greedy_rewards=_greedy(groups, batch),
            reward_components=_components(groups, batch) if parts.needs_components else None,
            truncated=batch.truncated,
        ),
        kl_coef=settings.controllers.kl.coef,
    )
    fixed = fixed.selecting(parts, batch, advantages, settings)
    seen: list[StepMetrics] = []
    for number, rows in enumerate(_minibatches(parts, batch, settings)):
        metrics = _one_update(backend, parts, batch, fixed, advantages, rows, settings, predicted, number)
        seen.append(metrics)
        if parts.updates.max_kl is not None and metrics.get("policy_kl/k3", 0.0) > parts.updates.max_kl:
            break
    mean = {name: sum(m[name] for m in seen) / len(seen) for name in seen[0]}
    metrics = {**advantages.stats, **mean, "updates": float(len(seen)), "rows": float(len(batch.rewards))}
    if fixed.stale is not None:
        metrics["rows/off_policy"] = float(fixed.stale.sum())
    if parts.kl.where != "none":
        metrics["kl/coef"] = settings.controllers.kl.coef
    settings.controllers.observe(metrics)
    return metrics


NO_SELECTION = Selection()


@dataclass(frozen=True, slots=True)
class _Fixed:
    """[B, T] values that do not change while a batch is used."""

    old: Tensor | None
    ref: Tensor | None
    entropy: Tensor | None
    stale: Tensor | None
    """bool [B]: sampled by an older policy; None if no row was."""
    selection: Selection = NO_SELECTION

    @classmethod
    def of(cls, backend: Backend, parts: Parts, batch: TrainBatch, settings: Settings) -> _Fixed:
        ref = None
        if parts.needs_reference or settings.with_reference:
            ref, _ = _logprobs_of(backend, batch, "reference", settings)
        stale = batch.extras["policy_version"] < settings.policy_version
        several = parts.updates.num_epochs * parts.updates.num_minibatches > 1
        old = entropy = None
        if (parts.needs_old_logprobs and several) or parts.kl.where == "reward" or parts.needs_selection:
            old, entropy = _logprobs_of(backend, batch, "policy", settings, parts.masks.high_entropy_share is not None)
            # what an older policy sampled is held against that policy, as its engine reported it
            old = torch.where(stale[:, None], batch.rollout_logprobs, old)
        return cls(old, ref, entropy, stale if bool(stale.any()) else None)

    def selecting(self, parts: Parts, batch: TrainBatch, advantages: Advantages, settings: Settings) -> _Fixed:
        """These values with the tokens that the parts select over the whole batch."""
        if not parts.needs_selection or self.old is None:
            return self
        generator = torch.Generator().manual_seed(derive(settings.seed, "selection", settings.step))
        chosen = select_tokens(
            parts,
            advantages=advantages.advantages,
            old_logprobs=self.old,
            response_mask=batch.response_mask,
            old_entropy=self.entropy,
            generator=generator,
        )
        return replace(self, selection=chosen)

    def old_for(self, rows: Tensor, width: int, logprobs: Tensor, batch: TrainBatch) -> Tensor | None:
        """Old log-probs of a micro-batch; None where they are the current ones."""
        if self.old is not None:
            return self.old[rows, :width]
        if self.stale is None:
            return None
        return torch.where(self.stale[rows, None], batch.rollout_logprobs[rows, :width], logprobs.detach())


Micros = list[tuple[Tensor, TrainBatch]]
"""Micro-batches, each with its rows in the whole batch."""


def _one_update(
    backend: Backend,
    parts: Parts,
    batch: TrainBatch,
    fixed: _Fixed,
    advantages: Advantages,
    rows: list[int],
    settings: Settings,
    predicted: Predicted | None = None,
    number: int = 0,
) -> StepMetrics:
    """One optimiser step of the policy, and one of the critic where there is one; only the latter in its warm-up."""
    micros = _micros(batch, rows, settings, backend.ranks.data)
    warming = parts.critic is not None and settings.step < parts.critic.warmup_steps
    metrics: StepMetrics = {}
    try:
        if not warming:
            metrics |= _policy_gradient(backend, parts, batch, fixed, advantages, micros, settings)
            metrics |= _text_gradient(backend, parts, number, settings)
        if parts.critic is not None:
            metrics |= _critic_gradient(backend, parts, advantages, predicted, micros)
            metrics["critic/warming_up"] = float(warming)
        if not warming:
            metrics |= backend.step()
    except NonFiniteError:
        backend.discard()
        raise
    if backend.critic is not None and parts.critic is not None:
        metrics |= backend.critic.step()
    if warming:  # what a shared critic's loss asked of the policy's backbone
        backend.discard()
    return metrics


def _policy_gradient(
    backend: Backend,
    parts: Parts,
    batch: TrainBatch,
    fixed: _Fixed,
    advantages: Advantages,
    micros: Micros,
    settings: Settings,
) -> StepMetrics:
    """What the policy loss of an optimiser step saw; its gradient is accumulated."""
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
            advantages=advantages.advantages[at, :width],
            response_mask=micro.response_mask,
            old_logprobs=fixed.old_for(at, width, logprobs, batch),
            ref_logprobs=_cut(fixed.ref, at, width),
            rollout_logprobs=micro.rollout_logprobs,
            entropy=entropy,
            truncated=micro.truncated,
            high_entropy=_cut(fixed.selection.high_entropy, at, width),
            selected=_cut(fixed.selection.selected, at, width),
        )
        coefs = settings.controllers
        out = policy_loss(parts, inputs, totals, kl_coef=coefs.kl.coef, entropy_coef=coefs.entropy.coef)
        backend.backward(out.loss)
        stats = out.stats if stats is None else stats + out.stats
    assert stats is not None
    metrics = summarize(backend.ranks.data.all_reduce(stats), totals)
    loss = metrics["loss/total"]
    if not math.isfinite(loss):  # known to all ranks alike, so that none waits for one that gave up
        raise NonFiniteError(f"the loss is {loss} at step {settings.step}; update refused, lower the learning rate")
    return metrics


def _text_gradient(backend: Backend, parts: Parts, number: int, settings: Settings) -> StepMetrics:
    """What the loss of some demonstrations saw, drawn anew for each optimiser step; its gradient is accumulated."""
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
    """What the critic says of the batch before it learns from it; None where the algorithm has none."""
    if parts.critic is None:
        return None
    if backend.critic is None:
        raise RunError("the algorithm has a critic and the backend holds none; call start_critic first")
    everything = _micros(batch, list(range(len(batch.rewards))), settings, backend.ranks.data)
    with_final = bool(parts.advantage.options.get("bootstrap_truncated"))
    return predict(backend.critic, batch, everything, with_final, backend.ranks.data.all_reduce)


def _critic_gradient(
    backend: Backend, parts: Parts, advantages: Advantages, predicted: Predicted | None, micros: Micros
) -> StepMetrics:
    """What the value loss of an optimiser step saw; its gradient is accumulated, and finite."""
    assert backend.critic is not None
    assert parts.critic is not None
    assert predicted is not None
    assert advantages.returns is not None
    metrics = learn(backend.critic, parts.critic, micros, predicted, advantages.returns, backend.ranks.data.all_reduce)
    backend.critic.require_finite()
    return metrics


@torch.no_grad()
def _logprobs_of(
    backend: Backend, batch: TrainBatch, who: Who, settings: Settings, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """[B, T] log-probs of every response token, and entropies if asked for, in the type the backend computes in."""
    out: Tensor | None = None
    entropies: Tensor | None = None
    for at, micro in _micros(batch, list(range(len(batch.rewards))), settings, backend.ranks.data):
        where, replay = micro.response_mask > 0, replay_of(micro)
        found, seen = backend.logprobs(micro.input_ids, where, settings.temperature, who, entropy, replay)
        if out is None:
            out = found.new_zeros(batch.response_mask.shape)
            entropies = torch.zeros_like(out) if entropy else None
        if not bool(where.any()):  # only keeps step with the other ranks
            continue
        out[at, : found.shape[1]] = found
        if entropies is not None and seen is not None:
            entropies[at, : found.shape[1]] = seen
    assert out is not None
    every = backend.ranks.data.all_reduce
    return every(out), None if entropies is None else every(entropies)


def _cut(values: Tensor | None, rows: Tensor, width: int) -> Tensor | None:
    return None if values is None else values[rows, :width]


def _shaped(parts: Parts, batch: TrainBatch, settings: Settings) -> TrainBatch:
    """The batch with what the algorithm adds to rewards for the length of responses."""
    lengths = batch.response_mask.sum(1).tolist()
    added = [length_penalty(parts.shaping, int(n), settings.max_response_tokens) for n in lengths]
    if not any(added):
        return batch
    return replace(batch, rewards=batch.rewards + torch.tensor(added, device=batch.rewards.device))


def _micros(batch: TrainBatch, rows: Sequence[int], settings: Settings, ranks: Ranks = ALONE) -> Micros:
    """This rank's micro-batches of those rows: as many on every rank, the last ones empty where it has fewer."""
    lengths = batch.attention_mask.sum(1).tolist()
    pieces, num_idle = deal([lengths[i] for i in rows], settings.micro_batch_tokens, ranks.rank, ranks.size)
    device = batch.rewards.device
    own = [[rows[i] for i in piece] for piece in pieces]
    idle = (torch.tensor([0], device=device), untrained(batch)) if num_idle else None
    return [
        *((torch.tensor(piece, device=device), rows_of(batch, piece)) for piece in own),
        *([idle] * num_idle if idle is not None else []),
    ]


def _minibatches(parts: Parts, batch: TrainBatch, settings: Settings) -> Iterator[list[int]]:
    """Rows of each optimiser step: whole groups, reshuffled for each epoch."""
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
            yield [row for group in order[i::num] for row in groups[group]]


def _greedy(groups: Sequence[Group], batch: TrainBatch) -> Tensor | None:
    known = [g.greedy_reward for g in groups]
    if any(r is None for r in known):
        return None
    return torch.tensor(known, dtype=batch.rewards.dtype, device=batch.rewards.device)[batch.group_ids]


def _components(groups: Sequence[Group], batch: TrainBatch) -> Tensor:
    """[B, K] components of the rewards; of a reward that is one piece, itself."""
    rows = [m.components or (m.reward,) for g in groups for m in g.members if m.reward is not None]
    return torch.tensor(rows, dtype=torch.float64, device=batch.rewards.device)
