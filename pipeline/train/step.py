"""The update of RL: train on groups by one or several optimiser steps, and return their metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from verizero.pipeline.errors import DataError, NonFiniteError
from verizero.pipeline.rl.episodes import num_forked
from verizero.pipeline.rl.loss import Counts, LossInputs, count_denominators, policy_loss, summarize
from verizero.pipeline.rl.parts import Parts
from verizero.pipeline.seeds import stream
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.collate import Micro, cut_to, micros_of, minibatches
from verizero.pipeline.train.critic import value_gradient
from verizero.pipeline.train.prepare import Prepared, Settings, prepare
from verizero.pipeline.train.replay import replay_of
from verizero.pipeline.train.texts import text_gradient
from verizero.pipeline.train.trees import tree_metrics
from verizero.pipeline.types import Group, StepMetrics


def update(backend: Backend, parts: Parts, groups: Sequence[Group], settings: Settings) -> StepMetrics:
    """Train on `groups`, and return the metrics of the optimiser steps, averaged.

    Advantages, old and reference log-probs are computed once for the whole batch; then each minibatch is one optimiser
    step, whose denominators are counted over all of its micro-batches and ranks before any backward. Every rank gets
    all groups: ranks divide the rows for what needs the model, and each computes the rest itself.

    A loss or gradient that is not finite refuses its optimiser step and ends the batch; the steps on earlier
    minibatches stay, and `updates/refused` counts the refusal.

    Raises: NonFiniteError if the first optimiser step was refused, so that nothing changed.
    """
    prepared = prepare(backend, parts, groups, settings)
    batch, stale = prepared.batch, prepared.start.stale
    metrics_of_steps: list[StepMetrics] = []
    num_refused = 0.0
    for number, rows in enumerate(minibatches(parts.params, batch.group_ids.tolist(), settings.seed, settings.step)):
        try:
            metrics = _optimizer_step(backend, parts, prepared, rows, settings, number)
        except NonFiniteError:
            if not metrics_of_steps:
                raise
            num_refused = 1.0
            break
        metrics_of_steps.append(metrics)
    metrics = {
        **prepared.advantages.stats,
        **_averaged(metrics_of_steps),
        "updates": float(len(metrics_of_steps)),
        "updates/refused": num_refused,
        "rows": float(prepared.num_responses),
    }
    if stale is not None:
        stale_responses = stale if prepared.shares is None else stale & prepared.shares.counts
        metrics["rows/off_policy"] = float(stale_responses.sum())
    if batch.episode_ids is not None:
        metrics["episodes/forked"] = float(num_forked(batch.episode_ids))
    if parts.params.kl_place != "none":
        metrics["kl/coef"] = parts.params.kl_coef
    return metrics


def _averaged(metrics_of_steps: Sequence[StepMetrics]) -> StepMetrics:
    """Return the mean of each metric over the optimiser steps that have it; a minibatch may have no stale row."""
    names = dict.fromkeys(name for metrics in metrics_of_steps for name in metrics)
    values = {name: [metrics[name] for metrics in metrics_of_steps if name in metrics] for name in names}
    return {name: sum(x) / len(x) for name, x in values.items()}


def _optimizer_step(
    backend: Backend, parts: Parts, prepared: Prepared, rows: list[int], settings: Settings, number: int
) -> StepMetrics:
    """Take one optimiser step of policy and critic on a minibatch; while the critic warms up, of the critic only."""
    micros = micros_of(prepared.batch, rows, settings.micro_batch_tokens, backend.ranks)
    is_warming_up = parts.critic is not None and settings.step < parts.critic.warmup_steps
    paths = prepared.batch.paths
    metrics = tree_metrics(paths and [paths[i] for i in rows], prepared.is_tree_refused)
    try:
        if not is_warming_up:
            metrics |= _policy_gradient(backend, parts, prepared, micros, settings, number)
            metrics |= _ptx_gradient(backend, parts, number, settings)
            if settings.distillation is not None:
                metrics |= settings.distillation.gradient(backend, rows)
        if parts.critic is not None:
            metrics |= _critic_gradient(backend, parts, prepared, micros)
            metrics["critic/warming_up"] = float(is_warming_up)
        # The critic's gradient is finite here. `step` raises before it changes anything if the policy's is not.
        if not is_warming_up:
            metrics |= backend.step()
    except NonFiniteError:
        backend.discard()
        raise
    if backend.critic is not None and parts.critic is not None:
        metrics |= backend.critic.step()
    if is_warming_up:  # a shared critic's loss left a gradient in the policy's backbone
        backend.discard()
    return metrics


def _policy_gradient(
    backend: Backend, parts: Parts, prepared: Prepared, micros: Sequence[Micro], settings: Settings, number: int
) -> StepMetrics:
    """Accumulate the gradient of the policy loss of one optimiser step, and return its metrics.

    `number`: how many optimiser steps were taken on the batch before this one.
    """
    start, selection, ranks = prepared.start, prepared.selection, backend.ranks
    # Denominators over all micro-batches and ranks, before any backward: the result does not depend on the split.
    counts_of_rank = torch.stack([_counts(parts, prepared, micro) for micro in micros]).sum(0)
    totals = Counts(*ranks.all_reduce(counts_of_rank).tolist())
    stats: Tensor | None = None
    for micro in micros:
        rows, batch, width = micro.rows, micro.batch, micro.batch.input_ids.shape[1]
        mask, replay = batch.response_mask > 0, replay_of(batch)
        logprobs, entropy = backend.logprobs(
            batch.input_ids, mask, settings.temperature, "policy", True, replay, targets=micro.targets
        )
        inputs = LossInputs(
            logprobs=logprobs,
            advantages=prepared.advantages.advantages[rows, :width],
            response_mask=batch.response_mask,
            old_logprobs=start.old_logprobs_of(micro, logprobs, number == 0),
            ref_logprobs=cut_to(start.ref_logprobs, rows, width),
            rollout_logprobs=batch.rollout_logprobs,
            entropy=entropy,
            truncated=batch.truncated,
            high_entropy=cut_to(selection.high_entropy, rows, width),
            selected=cut_to(selection.selected, rows, width),
            stale=None if start.stale is None else start.stale[rows],
            shares=None if prepared.shares is None else prepared.shares.at(rows),
        )
        out = policy_loss(parts, inputs, totals)
        backend.backward(out.loss)
        stats = out.stats if stats is None else stats + out.stats
    assert stats is not None
    metrics = summarize(ranks.all_reduce(stats), totals)
    loss = metrics["loss/total"]
    if not math.isfinite(loss):  # a sum over ranks, so that all of them raise and none waits for another
        raise NonFiniteError(f"the loss is {loss} at step {settings.step}; update refused, lower the learning rate")
    return metrics


def _counts(parts: Parts, prepared: Prepared, micro: Micro) -> Tensor:
    rows, batch = micro.rows, micro.batch
    shares = None if prepared.shares is None else prepared.shares.at(rows)
    return count_denominators(parts, batch.response_mask, batch.truncated, shares)


def _ptx_gradient(backend: Backend, parts: Parts, number: int, settings: Settings) -> StepMetrics:
    """Accumulate the gradient of the pretraining loss on demonstrations drawn for this step; return its metrics."""
    coef = parts.params.ptx_coef
    if coef == 0:
        return {}
    if not settings.texts:
        raise DataError(
            f"ptx_coef is {coef:g} and there are no demonstrations; give data.demonstrations, or set it to 0"
        )
    draw = stream(settings.seed, "ptx", settings.step, number)
    texts = [draw.choice(settings.texts) for _ in range(settings.texts_per_update)]
    metrics = text_gradient(backend, texts, coef, settings.pad_id, settings.micro_batch_tokens)
    return {"loss/ptx": coef * metrics["loss"], "ptx/tokens": metrics["tokens"]}


def _critic_gradient(backend: Backend, parts: Parts, prepared: Prepared, micros: Sequence[Micro]) -> StepMetrics:
    """Accumulate the gradient of the value loss of one optimiser step, require it finite, and return its metrics."""
    old_values, returns = prepared.critic_values, prepared.advantages.returns
    assert backend.critic is not None
    assert parts.critic is not None
    assert old_values is not None
    assert returns is not None
    metrics = value_gradient(backend.critic, parts.critic, micros, old_values, returns, backend.ranks)
    backend.critic.require_finite()
    return metrics
