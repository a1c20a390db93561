"""Everything that is computed once for a batch, before its first optimiser step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.errors import RunError
from verizero.pipeline.models.widths import padded_width
from verizero.pipeline.rl.controllers import entropy_controller, kl_controller
from verizero.pipeline.rl.corrections import mean_weight, mismatch_weights, training_mask
from verizero.pipeline.rl.credit import AdvantageInputs, Advantages, compute_advantages
from verizero.pipeline.rl.episodes import Shares, layout, shares_of
from verizero.pipeline.rl.logprobs import score_norms
from verizero.pipeline.rl.loss import ratio_logprobs
from verizero.pipeline.rl.parts import Parts
from verizero.pipeline.rl.ratios import proximal
from verizero.pipeline.rl.reduce import masked
from verizero.pipeline.rl.selection import Selection, low_moment, select_tokens
from verizero.pipeline.rl.shaping import length_penalty
from verizero.pipeline.seeds import derive
from verizero.pipeline.train.backend import Backend, Who
from verizero.pipeline.train.collate import Micro, collate, row_lengths, turn_table
from verizero.pipeline.train.critic import Predicted, predict
from verizero.pipeline.train.micros import cut_to, micros_of
from verizero.pipeline.train.minibatches import minibatches
from verizero.pipeline.train.records import has_records, with_own_records
from verizero.pipeline.train.replay import replay_of
from verizero.pipeline.train.sharing import packed_prompts
from verizero.pipeline.train.texts import Row
from verizero.pipeline.types import Group, PromptOf, StepMetrics, TrainBatch


class Controllers:
    """The adaptive coefficients of an algorithm; fixed ones where it adapts none."""

    def __init__(self, parts: Parts) -> None:
        self.kl = kl_controller(parts)
        self.entropy = entropy_controller(parts)
        # A mean per token in nats, as the target is. With KL in the reward: the KL of the sampled batch, of the policy
        # at batch start. In the loss: that of the minibatches as they trained, by k1, the unbiased estimate.
        self.measure = "reward/kl_per_token" if parts.kl.where == "reward" else "kl/k1"

    def observe(self, metrics: StepMetrics) -> None:
        """Adapt the coefficients to the metrics of an update."""
        if self.measure in metrics:
            self.kl.update(metrics[self.measure], round(metrics["rows"]))
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
    """The longest response that the recipe allows, or episode in tokens that train, for penalties on length."""
    controllers: Controllers
    with_reference: bool = False
    """Measure the KL to the reference even if the objective does not use it."""
    seed: int = 0
    step: int = 0
    texts: Sequence[Row] = ()
    """Demonstrations, of which `texts_per_update` join each optimiser step where `ptx_coef` is above 0."""
    texts_per_update: int = 0
    observation_coef: float = 0.0
    """Weight of the negative log-likelihood of what environments answered, a mean over its tokens."""


@dataclass(slots=True)
class FirstPass:
    """Log-probs that the first optimiser step computed, where it trains on all rows: those of before the update."""

    shape: torch.Size
    """(B, T), of the whole batch."""
    values: Tensor | None = None
    """[B, T]; 0 in rows that were not computed yet."""

    def keep(self, rows: Tensor, logprobs: Tensor, where: Tensor) -> None:
        """Keep the log-probs [b, t] of those rows at `where`."""
        if self.values is None:
            self.values = logprobs.new_zeros(self.shape)
        _put(self.values, rows, logprobs, where)


@dataclass(frozen=True, slots=True)
class Before:
    """[B, T] log-probs and entropies from before the batch's first update; None where the algorithm needs none."""

    old: Tensor | None
    """The trainer's. None also if they are the current ones, because the batch has a single update."""
    ratio_old: Tensor | None
    """`old`, or on stale rows what the ratio compares to in its place."""
    ref: Tensor | None
    entropy: Tensor | None
    stale: Tensor | None
    """bool [B]: rows of responses, or of episodes with a turn, sampled by an older policy; None if there are none."""
    first: FirstPass | None = None
    """Log-probs that the first update keeps for later ones; None where `old` has them or nothing compares to them."""

    @classmethod
    def of(cls, backend: Backend, parts: Parts, batch: TrainBatch, settings: Settings) -> Before:
        ref = None
        if parts.needs_reference or settings.with_reference:
            ref, _ = _logprobs_of(backend, batch, "reference", settings)
        # An episode is stale as a whole, as a response is whose tokens are of several versions.
        rows = _oldest(batch) < settings.policy_version
        stale = rows if bool(rows.any()) else None
        # With one update of a batch the old log-probs are the current ones: no forward of their own is needed.
        first = FirstPass(batch.response_mask.shape) if parts.keeps_first_pass else None
        old = ratio_old = entropy = None
        if parts.has_old_pass:
            old, entropy = _logprobs_of(backend, batch, "policy", settings, parts.masks.high_entropy_share is not None)
            ratio_old = ratio_logprobs(parts, stale, old, batch.rollout_logprobs)
        return cls(old, ratio_old, ref, entropy, stale, first)

    def old_for(self, parts: Parts, settings: Settings, micro: Micro, logprobs: Tensor, done: float) -> Tensor | None:
        """Return the trainer's old log-probs of a micro-batch; None if they are the current ones.

        `done`: share of the batch's updates that were taken.
        """
        at, batch = micro.rows, micro.batch
        if self.first is not None:
            if done > 0:
                return cut_to(self.first.values, at, logprobs.shape[1])
            self.first.keep(at, logprobs.detach(), batch.response_mask > 0)
            return logprobs.detach()
        if self.old is not None or parts.mismatch.prox == "recompute":
            return cut_to(self.old, at, logprobs.shape[1])
        if done == 0:
            return logprobs.detach()
        versions = batch.extras.get("token_versions", batch.extras["policy_version"])
        behind = settings.policy_version - versions
        return proximal(parts.mismatch.prox, batch.rollout_logprobs, logprobs.detach(), behind / (behind + done))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch with all that is computed once for it, before its first optimiser step."""

    batch: TrainBatch
    before: Before
    predicted: Predicted | None
    advantages: Advantages
    selection: Selection
    mean_weight: float
    right: Tensor
    """[B] bool: the verifiers gave a reward above 0."""
    shares: Shares | None
    """The part of its episode that each row is; None where every row is a whole episode of one turn."""

    @property
    def num_responses(self) -> int:
        """The number of responses, or of episodes, whatever their rows."""
        return len(self.batch.rewards) if self.shares is None else int(self.shares.counts.sum())


def prepare(backend: Backend, parts: Parts, groups: Sequence[Group], settings: Settings) -> Prepared:
    """Return the batch of these groups with everything that is computed once for it.

    Every rank gets all groups: what needs the model is divided by rows, and each rank computes the rest for itself.
    Records of sampling come to the ranks that train on them.
    """
    prompts = packed_prompts(backend, parts, groups)
    groups = _with_own_records(backend, parts, groups, settings, prompts)
    collated = collate(groups, settings.pad_id, backend.model.device, settings.observation_coef > 0)
    collated = replace(collated, prompts=prompts)
    shares = None
    if collated.episode_ids is not None and collated.turn_ids is not None:
        shares = shares_of(layout(collated.episode_ids, collated.turn_ids, collated.response_mask > 0))
    batch = _shaped(parts, collated, shares, settings)
    before = Before.of(backend, parts, batch, settings)
    predicted = _predicted(backend, parts, batch, settings)
    rewards, states = turn_table(groups, collated.rewards.device) if parts.credits_turns else (None, None)
    # Without a sum over ranks: every rank has all groups here.
    advantages = compute_advantages(
        parts,
        AdvantageInputs(
            rewards=batch.rewards,
            group_ids=batch.group_ids,
            response_mask=batch.response_mask,
            old_logprobs=before.ratio_old,
            ref_logprobs=before.ref,
            values=None if predicted is None else predicted.values,
            final_values=None if predicted is None else predicted.final,
            greedy_rewards=_greedy(groups, batch),
            reward_components=_components(groups, batch) if parts.needs_components else None,
            truncated=batch.truncated,
            score_norms=_norms(backend, batch, before, settings) if parts.needs_score_norms else None,
            episode_ids=batch.episode_ids,
            turn_ids=batch.turn_ids,
            turn_rewards=rewards,
            turn_states=states,
        ),
        kl_coef=settings.controllers.kl.coef,
    ).to(batch.response_mask.dtype)
    selection = _selected(parts, batch, before, advantages, settings)
    return Prepared(
        batch,
        before,
        predicted,
        advantages,
        selection,
        mean_weight=_mean_weight(parts, batch, before),
        right=collated.rewards > 0,
        shares=shares,
    )


def _with_own_records(
    backend: Backend,
    parts: Parts,
    groups: Sequence[Group],
    settings: Settings,
    prompts: tuple[PromptOf, ...] | None,
) -> Sequence[Group]:
    """Return the groups with the records of the rows that this rank computes, in minibatches and in whole passes."""
    if backend.ranks.size == 1 or not any(has_records(m.rollout) for g in groups for m in g.members):
        return groups
    lengths, group_of = row_lengths(groups)
    sizes = lengths if prompts is not None else [padded_width(n, backend.model.device) for n in lengths]
    steps = minibatches(parts.updates, group_of, settings.seed, settings.step)
    return with_own_records(backend.ranks, groups, sizes, [range(len(lengths)), *steps], prompts)


def _shaped(parts: Parts, batch: TrainBatch, shares: Shares | None, settings: Settings) -> TrainBatch:
    """Return the batch with the algorithm's rewards for the length of responses, or of episodes, added."""
    lengths = (batch.response_mask.sum(1) if shares is None else shares.lengths).tolist()
    added = [length_penalty(parts.shaping, int(n), settings.max_response_tokens) for n in lengths]
    if not any(added):
        return batch
    return replace(batch, rewards=batch.rewards + torch.tensor(added, dtype=torch.float64, device=batch.rewards.device))


def _predicted(backend: Backend, parts: Parts, batch: TrainBatch, settings: Settings) -> Predicted | None:
    """Return the critic's values of the batch before it learns from it; None for an algorithm without a critic."""
    if parts.critic is None:
        return None
    if backend.critic is None:
        raise RunError("the algorithm has a critic and the backend holds none; call start_critic first")
    with_final = bool(parts.advantage.options.get("bootstrap_truncated"))
    rows, most = list(range(len(batch.rewards))), settings.micro_batch_tokens
    everything = micros_of(batch, rows, most, backend.ranks.data, with_final)
    return predict(backend.critic, batch, everything, with_final, backend.ranks.data.all_reduce)


def _selected(parts: Parts, batch: TrainBatch, before: Before, advantages: Advantages, settings: Settings) -> Selection:
    """Return the tokens that the algorithm selects over the whole batch; an empty selection if it trains on all."""
    if not parts.needs_selection or before.ratio_old is None:
        return Selection()
    selection = select_tokens(
        parts,
        advantages=advantages.advantages,
        old_logprobs=before.ratio_old,
        response_mask=batch.response_mask,
        old_entropy=before.entropy,
        generator=torch.Generator().manual_seed(derive(settings.seed, "selection", settings.step)),
    )
    if parts.mismatch.m2 is None or before.old is None:
        return selection
    mask = training_mask(parts, batch.response_mask, batch.truncated)
    # The trainer's own: the ratio's are the engine's on stale rows under `bypass`, and would differ by nothing.
    keep = low_moment(before.old, batch.rollout_logprobs, mask, parts.mismatch.m2)
    return replace(selection, low_moment=keep)


def _mean_weight(parts: Parts, batch: TrainBatch, before: Before) -> float:
    """Return the mean mismatch weight over the whole batch if the weights are normalised by it, else 1."""
    if not parts.mismatch.normalize or before.ratio_old is None:
        return 1.0
    mask = training_mask(parts, batch.response_mask, batch.truncated)
    old, engine = masked(before.ratio_old, mask), masked(batch.rollout_logprobs, mask)
    return mean_weight(mismatch_weights(parts.mismatch, old, engine, mask), mask)


@torch.no_grad()
def _logprobs_of(
    backend: Backend, batch: TrainBatch, who: Who, settings: Settings, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return [B, T] log-probs of every response token, and entropies if asked for, in the backend's number type."""
    # Made at the first micro-batch, whose number type and device they take.
    out: Tensor | None = None
    entropies: Tensor | None = None
    rows, most = list(range(len(batch.rewards))), settings.micro_batch_tokens
    for at, micro, targets in micros_of(batch, rows, most, backend.ranks.data):
        where, replay = micro.response_mask > 0, replay_of(micro)
        own, own_entropies = backend.logprobs(
            micro.input_ids, where, settings.temperature, who, entropy, replay, targets=targets
        )
        if out is None:
            out = own.new_zeros(batch.response_mask.shape)
            entropies = torch.zeros_like(out) if entropy else None
        # An idle micro-batch, whose forward only keeps in step with the other ranks, has nothing at `where`.
        _put(out, at, own, where)
        if entropies is not None and own_entropies is not None:
            _put(entropies, at, own_entropies, where)
    assert out is not None
    every = backend.ranks.data.all_reduce  # each rank has 0 in the rows of the others
    return every(out), None if entropies is None else every(entropies)


def _put(out: Tensor, rows: Tensor, values: Tensor, where: Tensor) -> None:
    """Set out[rows] to `values` [b, t] at `where`."""
    width = values.shape[1]
    out[rows, :width] = torch.where(where, values, out[rows, :width])


def _norms(backend: Backend, batch: TrainBatch, before: Before, settings: Settings) -> Tensor:
    """Return [B, T] score norms of the policy before the batch's first update, by a forward at half the temperature."""
    logprobs = before.old
    if logprobs is None:
        logprobs, _ = _logprobs_of(backend, batch, "policy", settings)
        if before.first is not None:
            before.first.values = logprobs
    half = replace(settings, temperature=settings.temperature / 2)
    return score_norms(logprobs, _logprobs_of(backend, batch, "policy", half)[0])


def _greedy(groups: Sequence[Group], batch: TrainBatch) -> Tensor | None:
    known = [g.greedy_reward for g in groups]
    if any(r is None for r in known):
        return None
    # `collate` numbers groups by their place here: [groups] -> [B].
    return torch.tensor(known, dtype=batch.rewards.dtype, device=batch.rewards.device)[batch.group_ids]


def _components(groups: Sequence[Group], batch: TrainBatch) -> Tensor:
    """Return [B, K] components of the rewards; a reward without components is its only one."""
    # By group, then member, without those that have no reward: the rows of `collate`, or its episodes.
    rows = [m.components or (m.reward,) for g in groups for m in g.members if m.reward is not None]
    components = torch.tensor(rows, dtype=torch.float64, device=batch.rewards.device)
    return components if batch.episode_ids is None else components[batch.episode_ids]


def _oldest(batch: TrainBatch) -> Tensor:
    """Return [B]: the version of the oldest token of each row's episode."""
    versions = batch.extras["policy_version"]
    if batch.episode_ids is None:
        return versions
    # `collate` numbers episodes without gaps, so that their number is at most that of rows.
    return torch.empty_like(versions).scatter_reduce(0, batch.episode_ids, versions, "amin", include_self=False)[
        batch.episode_ids
    ]
