"""The update of RL: train on groups by one or several optimiser steps, and return their metrics.

`prepare` computes everything that is computed once for a batch, before its first optimiser step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from verizero.pipeline.errors import DataError, NonFiniteError, RunError
from verizero.pipeline.models.routing import num_experts
from verizero.pipeline.rl.credit import AdvantageInputs, Advantages, compute_advantages
from verizero.pipeline.rl.episodes import Shares, episode_layout, num_forked, shares_of
from verizero.pipeline.rl.logprobs import score_norms
from verizero.pipeline.rl.loss import Counts, LossInputs, count_denominators, policy_loss, ratio_logprobs, summarize
from verizero.pipeline.rl.parts import Parts
from verizero.pipeline.rl.selection import Selection, select_tokens
from verizero.pipeline.seeds import derive, stream
from verizero.pipeline.train.backend import Backend, WhichModel
from verizero.pipeline.train.collate import Micro, collate, cut_to, micros_of, minibatches, replay_of, turn_table
from verizero.pipeline.train.critic import critic_values_of, value_gradient
from verizero.pipeline.train.distillation import Distillation
from verizero.pipeline.train.texts import Row, text_gradient
from verizero.pipeline.train.trees import ids_of_rows, packed_paths, tree_metrics
from verizero.pipeline.types import Group, StepMetrics, TrainBatch


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
    names = dict.fromkeys(name for of_step in metrics_of_steps for name in of_step)
    # A minibatch may have no stale row, and so lacks some metrics.
    values = {name: [of_step[name] for of_step in metrics_of_steps if name in of_step] for name in names}
    metrics = {
        **prepared.advantages.stats,
        **{name: sum(x) / len(x) for name, x in values.items()},
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


def _optimizer_step(
    backend: Backend, parts: Parts, prepared: Prepared, rows: list[int], settings: Settings, number: int
) -> StepMetrics:
    """Take one optimiser step of policy and critic on a minibatch; while the critic warms up, of the critic only."""
    micros = micros_of(prepared.batch, rows, settings.micro_batch_tokens, backend.ranks)
    is_warming_up = parts.critic is not None and settings.step_in_stage < parts.critic.warmup_steps
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


@dataclass(frozen=True, slots=True)
class Settings:
    """The numbers of an update, and its other inputs besides the groups."""

    pad_id: int
    temperature: float
    micro_batch_tokens: int
    policy_version: int
    """The version of the policy that is updated; rollouts of an older one are off-policy."""
    max_response_tokens: int
    """The longest response (of an episode: trained tokens) that the recipe allows, for penalties on length."""
    with_reference: bool = False
    """Measure the KL to the reference even if the objective does not use it."""
    seed: int = 0
    step: int = 0
    """Over all stages: it names the random draws."""
    step_in_stage: int = 0
    """By it the critic warms up: each stage begins with a new one."""
    texts: Sequence[Row] = ()
    """Demonstrations: each optimiser step also trains on `texts_per_update` of them if `ptx_coef` is above 0."""
    texts_per_update: int = 0
    distillation: Distillation | None = None
    """A term that brings the policy closer to a teacher; None: there is none."""


@dataclass(slots=True)
class FirstStepLogprobs:
    """Old log-probs from the first optimiser step's own forward, for later epochs; with one minibatch an epoch."""

    shape: torch.Size
    """(B, T), of the whole batch."""
    values: Tensor | None = None
    """[B, T]; 0 in rows that were not computed yet."""

    def store(self, rows: Tensor, logprobs: Tensor, mask: Tensor) -> None:
        """Store the log-probs [b, t] of those rows [b] at the True entries of `mask` [b, t]."""
        if self.values is None:
            self.values = logprobs.new_zeros(self.shape)
        _set_rows(self.values, rows, logprobs, mask)


@dataclass(frozen=True, slots=True)
class BatchStart:
    """[B, T] log-probs and entropies from before the batch's first update; None where the algorithm needs none."""

    old_logprobs: Tensor | None
    """By the trainer. None also with one update per batch: they equal the current ones."""
    ratio_logprobs: Tensor | None
    """The log-probs that the ratio compares to: `old_logprobs`, but others on stale rows."""
    ref_logprobs: Tensor | None
    entropy: Tensor | None
    stale: Tensor | None
    """bool [B]: rows of responses, or of episodes with a turn, sampled by an older policy; None if there are none."""
    first_step: FirstStepLogprobs | None = None
    """Old log-probs that the first optimiser step will compute; None if it need not."""

    @classmethod
    def of(cls, backend: Backend, parts: Parts, batch: TrainBatch, settings: Settings) -> BatchStart:
        """Compute them by forwards over the batch."""
        ref_logprobs = None
        if parts.needs_reference or settings.with_reference:
            ref_logprobs, _ = _logprobs_of(backend, batch, "reference", settings)
        # All of an episode is stale if one turn is, as all of a response is if one token is.
        is_stale = _oldest_versions(batch) < settings.policy_version
        stale = is_stale if bool(is_stale.any()) else None
        old_logprobs = ratio = entropy = None
        if parts.has_old_forward:
            needs_entropy = parts.params.high_entropy_share is not None
            old_logprobs, entropy = _logprobs_of(backend, batch, "policy", settings, needs_entropy)
            ratio = ratio_logprobs(parts, stale, old_logprobs, batch.rollout_logprobs)
        first_step = FirstStepLogprobs(batch.response_mask.shape) if parts.first_step_gives_old else None
        return cls(old_logprobs, ratio, ref_logprobs, entropy, stale, first_step)

    def old_logprobs_of(self, micro: Micro, logprobs: Tensor, is_first: bool) -> Tensor | None:
        """Return the trainer's old log-probs [b, t] of a micro-batch; None if they are the current ones.

        `logprobs` [b, t]: the current ones. `is_first`: no update of the batch was taken yet.
        """
        if self.first_step is None or not is_first:
            old = self.old_logprobs if self.first_step is None else self.first_step.values
            return cut_to(old, micro.rows, logprobs.shape[1])
        self.first_step.store(micro.rows, logprobs.detach(), micro.batch.response_mask > 0)
        return logprobs.detach()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch with all that is computed once for it, before its first optimiser step."""

    batch: TrainBatch
    start: BatchStart
    critic_values: Tensor | None
    advantages: Advantages
    selection: Selection
    shares: Shares | None
    """The part of its episode that each row is; None where every row is a whole episode."""
    is_tree_refused: bool = False
    """Rows share enough tokens to compute them as a tree, and the policy's architecture does not allow it."""

    @property
    def num_responses(self) -> int:
        """The number of responses; an episode counts as one, however many rows it has."""
        return len(self.batch.rewards) if self.shares is None else int(self.shares.counts.sum())


def prepare(backend: Backend, parts: Parts, groups: Sequence[Group], settings: Settings) -> Prepared:
    """Return the batch of these groups with everything that is computed once for it.

    Every rank gets all groups: ranks divide the rows for what needs the model, and each computes the rest itself.
    """
    paths, is_refused = packed_paths(backend, ids_of_rows(groups))
    collated = collate(groups, settings.pad_id, backend.model.device)
    is_routed = collated.records is not None and num_experts(backend.model.config) is not None
    collated = replace(collated, paths=paths, is_routed=is_routed)
    shares = None
    if collated.episode_ids is not None and collated.turn_ids is not None:
        shares = shares_of(episode_layout(collated.episode_ids, collated.turn_ids, collated.response_mask > 0))
    batch = _with_length_penalties(parts, collated, shares, settings)
    start = BatchStart.of(backend, parts, batch, settings)
    critic_values = _critic_values(backend, parts, batch, settings)
    advantages = compute_advantages(
        parts,
        AdvantageInputs(
            rewards=batch.rewards,
            group_ids=batch.group_ids,
            response_mask=batch.response_mask,
            old_logprobs=start.ratio_logprobs,
            ref_logprobs=start.ref_logprobs,
            values=critic_values,
            greedy_rewards=_greedy_rewards(groups, batch),
            reward_components=_reward_components(groups, batch) if parts.needs_components else None,
            score_norms=_score_norms(backend, batch, start, settings) if parts.needs_score_norms else None,
            episode_ids=batch.episode_ids,
            turn_ids=batch.turn_ids,
            turn_rewards=turn_table(groups, collated.rewards.device) if parts.credits_turns else None,
        ),
    ).to(batch.response_mask.dtype)
    selection = _selection(parts, batch, start, advantages, settings)
    return Prepared(batch, start, critic_values, advantages, selection, shares=shares, is_tree_refused=is_refused)


def _with_length_penalties(parts: Parts, batch: TrainBatch, shares: Shares | None, settings: Settings) -> TrainBatch:
    """Return the batch with the algorithm's penalties for the length of responses, or of episodes, in the rewards."""
    lengths = (batch.response_mask.sum(1) if shares is None else shares.lengths).tolist()
    penalties = [parts.params.length_penalty(int(n), settings.max_response_tokens) for n in lengths]
    if not any(penalties):
        return batch
    penalties_B = torch.tensor(penalties, dtype=torch.float64, device=batch.rewards.device)
    return replace(batch, rewards=batch.rewards + penalties_B)


def _critic_values(backend: Backend, parts: Parts, batch: TrainBatch, settings: Settings) -> Tensor | None:
    """Return the critic's values of the batch before it learns from it; None for an algorithm without a critic."""
    if parts.critic is None:
        return None
    if backend.critic is None:
        raise RunError("the algorithm has a critic and the backend holds none; call start_critic first")
    micros = micros_of(batch, range(len(batch.rewards)), settings.micro_batch_tokens, backend.ranks)
    return critic_values_of(backend.critic, batch, micros, backend.ranks)


def _selection(
    parts: Parts, batch: TrainBatch, start: BatchStart, advantages: Advantages, settings: Settings
) -> Selection:
    """Return the tokens that the algorithm selects over the whole batch; an empty selection if it trains on all."""
    if not parts.needs_selection or start.ratio_logprobs is None:
        return Selection()
    return select_tokens(
        parts,
        advantages=advantages.advantages,
        old_logprobs=start.ratio_logprobs,
        response_mask=batch.response_mask,
        old_entropy=start.entropy,
        generator=torch.Generator().manual_seed(derive(settings.seed, "selection", settings.step)),
    )


@torch.no_grad()
def _logprobs_of(
    backend: Backend, batch: TrainBatch, which: WhichModel, settings: Settings, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return [B, T] log-probs of every response token, and entropies if asked for, in the backend's number type."""
    # Made at the first micro-batch, whose number type and device they take.
    logprobs_B_T: Tensor | None = None
    entropies_B_T: Tensor | None = None
    ranks = backend.ranks
    for micro in micros_of(batch, range(len(batch.rewards)), settings.micro_batch_tokens, ranks):
        mask_b_t, replay = micro.batch.response_mask > 0, replay_of(micro.batch)
        logprobs_b_t, entropies_b_t = backend.logprobs(
            micro.batch.input_ids, mask_b_t, settings.temperature, which, entropy, replay, targets=micro.targets
        )
        if logprobs_B_T is None:
            logprobs_B_T = logprobs_b_t.new_zeros(batch.response_mask.shape)
            entropies_B_T = torch.zeros_like(logprobs_B_T) if entropy else None
        # An idle micro-batch has an empty mask: its forward only keeps in step with the other ranks.
        _set_rows(logprobs_B_T, micro.rows, logprobs_b_t, mask_b_t)
        if entropies_B_T is not None and entropies_b_t is not None:
            _set_rows(entropies_B_T, micro.rows, entropies_b_t, mask_b_t)
    assert logprobs_B_T is not None
    # Each rank has 0 in the rows of the others.
    return ranks.all_reduce(logprobs_B_T), None if entropies_B_T is None else ranks.all_reduce(entropies_B_T)


def _set_rows(out: Tensor, rows: Tensor, values: Tensor, mask: Tensor) -> None:
    """Set out[rows] of [B, T] to `values` [b, t] at the True entries of `mask` [b, t]."""
    width = values.shape[1]
    out[rows, :width] = torch.where(mask, values, out[rows, :width])


def _score_norms(backend: Backend, batch: TrainBatch, start: BatchStart, settings: Settings) -> Tensor:
    """Return [B, T] score norms of the policy before the batch's first update, by a forward at half the temperature."""
    logprobs = start.old_logprobs
    if logprobs is None:
        logprobs, _ = _logprobs_of(backend, batch, "policy", settings)
        if start.first_step is not None:
            start.first_step.values = logprobs
    half = replace(settings, temperature=settings.temperature / 2)
    return score_norms(logprobs, _logprobs_of(backend, batch, "policy", half)[0])


def _greedy_rewards(groups: Sequence[Group], batch: TrainBatch) -> Tensor | None:
    """Return [B]: the reward of the greedy response to each row's prompt; None if a group has none."""
    rewards = [g.greedy_reward for g in groups]
    if any(r is None for r in rewards):
        return None
    # `group_ids` are indices into `groups`.
    return torch.tensor(rewards, dtype=batch.rewards.dtype, device=batch.rewards.device)[batch.group_ids]


def _reward_components(groups: Sequence[Group], batch: TrainBatch) -> Tensor:
    """Return [B, K] components of the rewards; a reward without components is its only one."""
    # In the order of `collate`: by group, then member, without members that have no reward.
    rows = [m.components or (m.reward,) for g in groups for m in g.members if m.reward is not None]
    components = torch.tensor(rows, dtype=torch.float64, device=batch.rewards.device)
    return components if batch.episode_ids is None else components[batch.episode_ids]


def _oldest_versions(batch: TrainBatch) -> Tensor:
    """Return [B]: the policy version of the oldest token of each row's episode."""
    versions = batch.extras["policy_version"]
    if batch.episode_ids is None:
        return versions
    # Episode ids have no gaps, so there are at most B of them.
    oldest_E = torch.empty_like(versions).scatter_reduce(0, batch.episode_ids, versions, "amin", include_self=False)
    return oldest_E[batch.episode_ids]
