"""Compute the advantages of a whole batch: shape rewards, take off the KL, credit responses, turns or tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from verizero.pipeline.errors import DataError
from verizero.pipeline.rl.advantages import Rewarded, flat_groups
from verizero.pipeline.rl.episodes import EpisodeLayout, episode_layout
from verizero.pipeline.rl.parts import Parts
from verizero.pipeline.rl.ratios import estimate_kl
from verizero.pipeline.rl.reduce import divide, masked, masked_sum, moments
from verizero.pipeline.rl.turn_credit import turns_of


@dataclass(frozen=True, slots=True)
class AdvantageInputs:
    """A whole batch of one rank, with whole groups. [B, T] values outside `response_mask` may be anything.

    Rows of one episode have equal [B] values.
    """

    rewards: Tensor
    group_ids: Tensor
    response_mask: Tensor
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    values: Tensor | None = None
    """[B, T]: entry t is V of the state before token t."""
    greedy_rewards: Tensor | None = None
    reward_components: Tensor | None = None
    """[B, K]."""
    score_norms: Tensor | None = None
    """[B, T]: see `logprobs.score_norms`."""
    episode_ids: Tensor | None = None
    """[B]: rows with the same number are one episode; None: every row is an episode of one turn."""
    turn_ids: Tensor | None = None
    """[B, T]: number of the turn of each trained token in its episode, in the order drawn."""
    turn_rewards: Tensor | None = None
    """[E, K], in the order of episode ids: the environment's reward for each turn, NaN where it gave none."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """[B, T] advantages (0 outside the mask), [B, T] returns for a critic, and metrics over all ranks."""

    advantages: Tensor
    returns: Tensor | None
    stats: dict[str, float]

    def to(self, dtype: torch.dtype) -> Advantages:
        """Return the same in another type, such as that of the policy's log-probs."""
        returns = None if self.returns is None else self.returns.to(dtype)
        return Advantages(self.advantages.to(dtype), returns, self.stats)


def compute_advantages(parts: Parts, inputs: AdvantageInputs) -> Advantages:
    """Return the advantages of a whole batch, computed in float64 and returned in the rewards' type.

    Baselines, spreads, lengths and discounts are of whole episodes: the trained tokens of all rows of an episode, in
    the order in which they were drawn, are one response.

    Metrics: moments of the input rewards and of advantages, the
    share of groups without signal, and the KL that enters the reward, before its coefficient (0 if none enters).

    Raises: DataError for a group of one where a comparison is needed, a reward that is not finite, or a missing input.
    """
    if inputs.episode_ids is None and not parts.credits_turns:
        return _of_responses(parts, inputs)
    mask = inputs.response_mask > 0
    episodes, turn_ids = inputs.episode_ids, inputs.turn_ids
    if episodes is None:
        episodes = torch.arange(len(mask), device=mask.device)
    if turn_ids is None:
        turn_ids = torch.zeros(mask.shape, dtype=torch.int64, device=mask.device)
    layout = episode_layout(episodes, turn_ids, mask)
    out = _of_responses(parts, _joined(inputs, turn_ids, layout))
    returns = None if out.returns is None else layout.spread(out.returns)
    return Advantages(layout.spread(out.advantages), returns, out.stats)


def _joined(inputs: AdvantageInputs, turn_ids: Tensor, layout: EpisodeLayout) -> AdvantageInputs:
    """Return the inputs with one row per episode: its trained tokens, without holes."""
    by_token = {"old_logprobs", "ref_logprobs", "values", "score_norms"}
    by_row = {"rewards", "group_ids", "greedy_rewards", "reward_components"}
    change = {name: layout.joined(x) for name in by_token if (x := getattr(inputs, name)) is not None}
    change |= {name: x[layout.last_row] for name in by_row if (x := getattr(inputs, name)) is not None}
    return replace(
        inputs, **change, response_mask=layout.mask, episode_ids=None, turn_ids=layout.joined(turn_ids.clamp(min=0))
    )


def _of_responses(parts: Parts, inputs: AdvantageInputs) -> Advantages:
    """Return the advantages of a batch in which every row is a whole response."""
    mask = inputs.response_mask > 0
    groups = _groups(parts, inputs)
    # Before the KL enters: the clip bounds what verifiers gave, not the penalty.
    rewards, greedy = _clipped(parts, inputs.rewards.double()), _double(inputs.greedy_rewards)
    reward_kl = _reward_kl(parts, inputs, mask)
    penalty = reward_kl * parts.params.kl_coef
    # [B, T]: the KL is charged at its own token, the verifier's reward at the last one.
    later = mask.flip(1).cumsum(1).flip(1)  # number of trained tokens from here to the end
    token_rewards = -penalty + (mask & (later == 1)).double() * rewards.unsqueeze(1)
    rewarded = Rewarded(
        rewards=rewards - penalty.sum(dim=1),  # the sum of a row of `token_rewards`
        token_rewards=token_rewards,
        mask=mask,
        groups=groups,
        values=_double(inputs.values),
        greedy_rewards=None if greedy is None else _clipped(parts, greedy),
        components=_double(inputs.reward_components),
        score_norms=_double(inputs.score_norms),
        turns=inputs.turn_ids,
        turn_rewards=_double(inputs.turn_rewards),
    )
    advantages, returns = _estimated(parts, rewarded)
    stats = _advantage_stats(inputs.rewards.double(), rewarded, advantages, reward_kl)
    if parts.params.kl_place == "reward" and parts.params.kl_cap is not None:
        capped = masked_sum((reward_kl >= parts.params.kl_cap).double(), mask)
        stats["reward/kl_capped"] = float(divide(capped, mask.sum()))
    dtype = inputs.rewards.dtype if inputs.rewards.dtype.is_floating_point else torch.float32
    return Advantages(advantages, returns, stats).to(dtype)


def _estimated(parts: Parts, x: Rewarded) -> tuple[Tensor, Tensor | None]:
    """Return [B, T] advantages, 0 outside the mask, and the critic's returns if there are any."""
    credit, options = parts.credit, parts.advantage.options
    # Credit by turn replaces the estimator (GAE over turns), or adds the turn's part to what it gives.
    instead = parts.credit_entry.replaces is not None
    function = credit.function if instead else parts.advantage.function
    estimate = function(x, **options, **(credit.options if instead else {}))
    advantages, returns = estimate if isinstance(estimate, tuple) else (estimate, None)
    # A response's advantage [B] is that of each of its tokens.
    advantages = advantages if advantages.dim() == 2 else advantages.unsqueeze(1)
    advantages = masked(advantages.expand(x.mask.shape), x.mask)
    if parts.credits_turns and not instead:
        advantages = credit.function(x, advantages, **credit.options)
    return advantages, returns


def _clipped(parts: Parts, rewards: Tensor) -> Tensor:
    bound = parts.params.reward_clip
    return rewards if bound is None else rewards.clamp(-bound, bound)


def _double(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.double()


def _reward_kl(parts: Parts, inputs: AdvantageInputs, mask: Tensor) -> Tensor:
    if parts.params.kl_place != "reward":
        return torch.zeros(mask.shape, dtype=torch.float64, device=mask.device)
    if inputs.old_logprobs is None or inputs.ref_logprobs is None:
        raise DataError("kl in the reward needs old_logprobs and ref_logprobs; run policy and reference over the batch")
    old, ref = masked(inputs.old_logprobs.double(), mask), masked(inputs.ref_logprobs.double(), mask)
    # pi_old stands for pi: a reward is of the sampled batch, and has no gradient.
    return estimate_kl(parts.params.kl_form, old, ref, cap=parts.params.kl_cap).detach()


def _groups(parts: Parts, inputs: AdvantageInputs) -> Tensor:
    if not bool(torch.isfinite(inputs.rewards).all()):
        row = int((~torch.isfinite(inputs.rewards)).nonzero()[0, 0])
        raise DataError(
            f"the reward of row {row} is {float(inputs.rewards[row])}, and must be finite; where a grader failed, give "
            "no reward, so that the response leaves its group"
        )
    if parts.needs_no_negative and bool((inputs.rewards < 0).any()):
        row = int((inputs.rewards < 0).nonzero()[0, 0])
        raise DataError(
            f"reward of row {row} is {float(inputs.rewards[row])}, and advantage {parts.advantage.label!r} divides by "
            "the mean of rewards of at least 0; let the verifier give no negative score, or use group_mean"
        )
    groups: Tensor
    # Renumbered without gaps: the estimators size their sums by the largest number.
    _, groups, sizes = torch.unique(inputs.group_ids, return_inverse=True, return_counts=True)
    if parts.needs_group and bool((sizes < 2).any()):
        row = int((sizes[groups] < 2).nonzero()[0, 0])
        raise DataError(
            f"group {int(inputs.group_ids[row])} has 1 response, and advantage {parts.advantage.label!r} compares "
            "responses; drop the group, or raise rl.group_size"
        )
    return groups


def _advantage_stats(raw: Tensor, x: Rewarded, advantages: Tensor, reward_kl: Tensor) -> dict[str, float]:
    rows = torch.ones_like(raw, dtype=torch.bool)
    num, reward_mean, reward_std = moments(raw, rows, 0)
    tokens, mean, std = moments(advantages, x.mask, 0)
    # Each row weighs 1 / (size of its group), so that sums over rows count groups.
    shares = 1 / torch.bincount(x.groups).to(x.rewards.dtype)[x.groups]
    without_signal = divide(masked_sum(shares, flat_groups(raw, x.groups)), shares.sum())
    kl_total = reward_kl.sum()
    return {
        **_turn_stats(x),
        "reward/mean": float(reward_mean),
        "reward/std": float(reward_std),
        "advantage/mean": float(mean),
        "advantage/std": float(std),
        "groups/without_signal": float(without_signal),
        "reward/kl_per_token": float(divide(kl_total, tokens)),
        "reward/kl_per_response": float(divide(kl_total, num)),
        "response/length_mean": float(divide(tokens, num)),
    }


def _turn_stats(x: Rewarded) -> dict[str, float]:
    """Return the share of turns with a reward."""
    if x.turn_rewards is None or x.turns is None:
        return {}
    exists = turns_of(x)
    return {"credit/rewarded": float(divide((exists & x.turn_rewards.isfinite()).sum().double(), exists.sum()))}
