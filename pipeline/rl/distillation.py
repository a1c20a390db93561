"""Distillation on the policy's own responses: the divergence of its next-token distribution from a teacher's.

At each token of a response, p = pi(. | what came before) and q is the teacher's distribution there:

    reverse_kl  D = sum_v p_v (log p_v - log q_v)             gradient to logit j: p_j (log p_j - log q_j - D)
    forward_kl  D = sum_v q_v (log q_v - log p_v)             gradient to logit j: p_j - q_j

Over `top_k`, p and q are those of the teacher's k most likely tokens and of one outcome for all others together, so D
is 0 only where the two agree on these, never above the D over the vocabulary, and equal to it at k = V. Over
`sampled`, D is log p(y) - log q(y) with the gradient D grad log p(y): in the mean over y ~ p, value and gradient are
those of the reverse KL.

Source: arXiv:2306.13649 eq. 1 at both its ends.
DEPARTURES: GKD mixes given responses into the policy's own; here all are the policy's own. NeMo-RL drops all tokens
but the k and divides both by what is left; here they are one outcome.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from verizero.pipeline.rl.divergences import Divergence, Objective
from verizero.pipeline.rl.logprobs import NEVER, working
from verizero.pipeline.rl.ratios import exp_clamped
from verizero.pipeline.rl.reduce import masked

LEAST_REST = 1e-6
"""The least probability of all other tokens: a server's numbers are rounded, and may add up to above 1."""


@dataclass(frozen=True, slots=True)
class ServedLogprobs:
    """A served teacher's answer: log-probs [N, K], at its temperature, of the tokens `ids` [N, K]."""

    ids: Tensor
    logprobs: Tensor


class Compared(NamedTuple):
    """Policy and teacher at N tokens, each [N]; the first two have a gradient."""

    divergence: Tensor
    logprobs: Tensor
    """Log-probs of the sampled tokens under the policy."""
    reverse_kl: Tensor
    """Over the same outcomes as the divergence."""
    entropy: Tensor
    """The policy's, over the vocabulary."""
    outside: Tensor
    """The policy's probability of all tokens that are not compared one by one; 0 over the vocabulary."""


def compare(logits: Tensor, targets: Tensor, teacher: Tensor | ServedLogprobs, objective: Objective) -> Compared:
    """Return the divergences of the policy's logits [N, V] from the teacher at the sampled tokens `targets` [N].

    `teacher`: its logits [N, V'], or served log-probs. If V and V' differ, because the vocabulary was padded to two
    sizes, both are cut to the smaller: the tokens past it are in no text. Log-probs of -inf count as -10,000.
    """
    if isinstance(teacher, ServedLogprobs):
        log_p, log_q = distribution(logits, objective.temperature), None
    else:
        width = min(logits.shape[-1], teacher.shape[-1])
        log_p = distribution(logits[:, :width], objective.temperature)
        with torch.no_grad():
            log_q = distribution(teacher[:, :width], objective.temperature).to(log_p.dtype)
    picked = log_p.gather(1, targets.unsqueeze(1)).squeeze(1)
    outside = torch.zeros_like(picked, requires_grad=False)
    if objective.over == "sampled":
        theirs = teacher.logprobs[:, 0] if isinstance(teacher, ServedLogprobs) else at(log_q, targets)
        # log p(y) - log q(y), whose gradient is that number times grad log p(y), as of policy gradient.
        gap = (picked - theirs.to(picked.dtype)).detach()
        values = gap + gap * (picked - picked.detach())
        kl = values.detach()
    else:
        mine, theirs, ids = _outcomes(log_p, log_q, teacher, objective)
        values = divergence(objective.divergence, mine, theirs)
        kl = divergence("reverse_kl", mine, theirs).detach()
        if ids is not None and ids.shape[1] < log_p.shape[1]:
            outside = with_rest(log_p.detach(), ids)[:, -1].exp()
    detached = log_p.detach()
    return Compared(values, picked, kl, -(detached.exp() * detached).sum(1), outside)


def distribution(logits: Tensor, temperature: float) -> Tensor:
    """Return log softmax(logits / temperature) over the last dimension in float32 or wider; -inf becomes -10,000."""
    return torch.log_softmax(working(logits) / temperature, dim=-1).clamp(min=NEVER)


def divergence(name: Divergence, log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return D of each distribution [..., V] of the policy (log_p) from the teacher's (log_q), [...]."""
    log_a, log_b = (log_p, log_q) if name == "reverse_kl" else (log_q, log_p)
    return (log_a.exp() * (log_a - log_b)).sum(-1)


def with_rest(log_probs: Tensor, ids: Tensor) -> Tensor:
    """Return [N, K + 1]: the log-probs [N, V] of the tokens `ids` [N, K], and of all others together unless K = V."""
    named = log_probs.gather(1, ids)
    if ids.shape[1] == log_probs.shape[1]:
        return named
    # From the others' own log-probs: 1 minus the sum of the named ones would lose all digits of a small rest.
    rest = log_probs.scatter(1, ids, NEVER).logsumexp(1, keepdim=True)
    return torch.cat([named, rest.clamp(min=NEVER)], 1)


class Weights(NamedTuple):
    """Importance weights [B, T] without gradient, and where they were clamped."""

    values: Tensor
    clamped: Tensor
    """bool."""


def stale_weights(logprobs: Tensor, rollout_logprobs: Tensor, stale: Tensor, mask: Tensor, how: Objective) -> Weights:
    """Return the weights of tokens that an older policy sampled, at most `how.stale_cap`; 1 in rows that are not stale.

    `stale`: bool [B]. They are pi(y_t) / pi_gen(y_t), which give the sampled reverse KL the gradient that it has at the
    states that pi_gen visited.

    Source: as in prime-rl's `opd_loss_fn`, whose weights are not capped, and which drops tokens by DPPO's rule.
    """
    weights = exp_clamped(masked(logprobs.detach() - rollout_logprobs, mask))
    is_above = (weights > how.stale_cap) & stale.unsqueeze(1) & mask
    values = torch.where(stale.unsqueeze(1), weights.clamp(max=how.stale_cap), torch.ones_like(weights))
    return Weights(values, is_above)


def at(log_probs: Tensor | None, ids: Tensor) -> Tensor:
    """Return [N]: the log-probs [N, V] of one token each."""
    assert log_probs is not None
    return log_probs.gather(1, ids.unsqueeze(1)).squeeze(1)


def _outcomes(
    log_p: Tensor, log_q: Tensor | None, teacher: Tensor | ServedLogprobs, objective: Objective
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return log-probs of policy and teacher over the outcomes that are compared, and the teacher's top tokens."""
    if objective.over == "vocabulary":
        assert log_q is not None
        return log_p, log_q, None
    if isinstance(teacher, ServedLogprobs):
        ids, named = teacher.ids, teacher.logprobs.to(log_p.dtype)
    else:
        assert log_q is not None
        named, ids = log_q.topk(min(objective.top_k, log_q.shape[1]), dim=1)
    mine = with_rest(log_p, ids)
    if log_q is not None:
        return mine, with_rest(log_q, ids), ids
    if ids.shape[1] == log_p.shape[1]:
        return mine, named, ids
    rest = (1 - named.exp().sum(1, keepdim=True)).clamp(min=LEAST_REST).log()
    return mine, torch.cat([named, rest], 1), ids
