"""The update: groups to one or several optimiser steps, with their metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from verizero.pipeline.errors import DataError, NonFiniteError
from verizero.pipeline.rl.episodes import num_forked
from verizero.pipeline.rl.loss import Counts, LossInputs, count, policy_loss, summarize
from verizero.pipeline.rl.parts import Parts
from verizero.pipeline.seeds import stream
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.collate import Micro
from verizero.pipeline.train.critic import learn
from verizero.pipeline.train.micros import cut_to, micros_of
from verizero.pipeline.train.minibatches import minibatches
from verizero.pipeline.train.prepare import Prepared, Settings, prepare
from verizero.pipeline.train.replay import replay_at
from verizero.pipeline.train.sharing import packs_rows
from verizero.pipeline.train.texts import text_gradient
from verizero.pipeline.types import Group, StepMetrics, TrainBatch


def update(backend: Backend, parts: Parts, groups: Sequence[Group], settings: Settings) -> StepMetrics:
    """Train on `groups`, and return the metrics of the updates, averaged.

    Advantages, old and reference log-probs are computed once for the whole batch; then each minibatch is one optimiser
    step, whose denominators are counted over all of its micro-batches and ranks before any backward. Every rank gets
    all groups: what needs the model is divided by rows, and each rank computes the rest for itself.

    A loss or gradient that is not finite refuses its optimiser step and ends the batch; the steps on earlier
    minibatches stay, and `updates/refused` counts the refusal.

    Raises: NonFiniteError if the first optimiser step was refused, so that nothing changed.
    """
    prepared = prepare(backend, parts, groups, settings)
    batch, before = prepared.batch, prepared.before
    seen: list[StepMetrics] = []
    refused = 0.0
    for number, rows in enumerate(minibatches(parts.updates, batch.group_ids.tolist(), settings.seed, settings.step)):
        try:
            metrics = _one_update(backend, parts, prepared, rows, settings, number)
        except NonFiniteError:
            if not seen:
                raise
            refused = 1.0
            break
        seen.append(metrics)
        # Measured in the minibatch's own forward, so its step is taken already; the next ones are not.
        if parts.updates.max_kl is not None and metrics.get("policy_kl/k3", 0.0) > parts.updates.max_kl:
            break
    metrics = {
        **prepared.advantages.stats,
        **_averaged(seen),
        "updates": float(len(seen)),
        "updates/refused": refused,
        "rows": float(prepared.num_responses),
    }
    if before.stale is not None:
        late = before.stale if prepared.shares is None else before.stale & prepared.shares.counts
        metrics["rows/off_policy"] = float(late.sum())
    if batch.episode_ids is not None:
        metrics["episodes/forked"] = float(num_forked(batch.episode_ids))
    if parts.kl.where != "none":
        metrics["kl/coef"] = settings.controllers.kl.coef
    settings.controllers.observe(metrics)
    return metrics


def _averaged(updates: Sequence[StepMetrics]) -> StepMetrics:
    """Return the mean of each metric over the updates that observed it; a minibatch may have no stale row."""
    values = {name: [m[name] for m in updates if name in m] for name in dict.fromkeys(n for m in updates for n in m)}
    return {name: sum(observed) / len(observed) for name, observed in values.items()}


def _one_update(
    backend: Backend, parts: Parts, prepared: Prepared, rows: list[int], settings: Settings, number: int
) -> StepMetrics:
    """Take one optimiser step of the policy, and one of the critic if there is one; in its warm-up the latter only."""
    micros = micros_of(prepared.batch, rows, settings.micro_batch_tokens, backend.ranks.data)
    warming = parts.critic is not None and settings.step < parts.critic.warmup_steps
    metrics: StepMetrics = {}
    try:
        if not warming:
            metrics |= _policy_gradient(backend, parts, prepared, micros, settings, number)
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
    backend: Backend, parts: Parts, prepared: Prepared, micros: Sequence[Micro], settings: Settings, number: int
) -> StepMetrics:
    """Accumulate the gradient of the policy loss of one optimiser step, and return its metrics."""
    done = number / (parts.updates.num_epochs * parts.updates.num_minibatches)
    before, selection = prepared.before, prepared.selection
    # The denominators of the whole step, of all ranks, before any backward: so micro-batches change nothing.
    local = torch.stack([_count(parts, prepared, at, m) for at, m, _ in micros]).sum(0)
    totals = Counts(*backend.ranks.data.all_reduce(local).tolist())
    stats: Tensor | None = None
    for each in micros:
        at, micro, targets = each
        width = micro.input_ids.shape[1]
        observed = micro.extras.get("observation_mask")
        where = micro.response_mask > 0 if observed is None else (micro.response_mask + observed) > 0
        replay = replay_at(micro.recorded, where)
        logprobs, entropy = backend.logprobs(
            micro.input_ids,
            where,
            settings.temperature,
            "policy",
            True,
            replay,
            targets=targets.with_answers(),
        )
        inputs = LossInputs(
            logprobs=logprobs,
            advantages=prepared.advantages.advantages[at, :width],
            response_mask=micro.response_mask,
            old_logprobs=before.old_for(parts, settings, each, logprobs, done),
            ref_logprobs=cut_to(before.ref, at, width),
            rollout_logprobs=micro.rollout_logprobs,
            entropy=entropy,
            truncated=micro.truncated,
            high_entropy=cut_to(selection.high_entropy, at, width),
            selected=cut_to(selection.selected, at, width),
            right=prepared.right[at],
            low_moment=cut_to(selection.low_moment, at, width),
            stale=None if before.stale is None else before.stale[at],
            mean_weight=prepared.mean_weight,
            shares=None if prepared.shares is None else prepared.shares.at(at),
            observed=observed,
        )
        out = policy_loss(
            parts,
            inputs,
            totals,
            kl_coef=settings.controllers.kl.coef,
            entropy_coef=settings.controllers.entropy.coef,
            observation_coef=settings.observation_coef,
        )
        backend.backward(out.loss)
        stats = out.stats if stats is None else stats + out.stats
    assert stats is not None
    metrics = summarize(backend.ranks.data.all_reduce(stats), totals)
    loss = metrics["loss/total"]
    if not math.isfinite(loss):  # a sum over ranks, so that all of them raise and none waits for another
        raise NonFiniteError(f"the loss is {loss} at step {settings.step}; update refused, lower the learning rate")
    return metrics


def _count(parts: Parts, prepared: Prepared, at: Tensor, micro: TrainBatch) -> Tensor:
    shares = None if prepared.shares is None else prepared.shares.at(at)
    observed = micro.extras.get("observation_mask")
    return count(parts, micro.response_mask, micro.truncated, prepared.right[at], shares, observed)


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
    seen = text_gradient(backend, chosen, coef, settings.pad_id, settings.micro_batch_tokens, packs_rows(backend))
    return {"loss/ptx": coef * seen["loss"], "ptx/tokens": seen["tokens"]}


def _critic_gradient(backend: Backend, parts: Parts, prepared: Prepared, micros: Sequence[Micro]) -> StepMetrics:
    """Accumulate the gradient of the value loss of one optimiser step, require it finite, and return its metrics."""
    predicted, returns = prepared.predicted, prepared.advantages.returns
    assert backend.critic is not None
    assert parts.critic is not None
    assert predicted is not None
    assert returns is not None
    metrics = learn(backend.critic, parts.critic, micros, predicted, returns, backend.ranks.data.all_reduce)
    backend.critic.require_finite()
    return metrics
