"""A policy so small that every group of its responses can be written down, with its chance and its exact gradient.

A response has one or two tokens of three words; word 0 as the first token ends it. What an estimator expects, and how
far it strays, are then sums, not samples.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from verizero.pipeline.rl.credit import AdvantageInputs, compute_advantages
from verizero.pipeline.rl.parts import Parts

WORDS = 3
RESPONSES: tuple[tuple[int, ...], ...] = ((0,), *itertools.product(range(1, WORDS), range(WORDS)))


@dataclass
class Tiny:
    """Logits of the first token [3], and of the second after each first one [3, 3], in one vector with gradient."""

    theta: Tensor

    @classmethod
    def of(cls, seed: int, scale: float = 1.0) -> Tiny:
        generator = torch.Generator().manual_seed(seed)
        size = WORDS + WORDS * WORDS
        return cls((scale * torch.randn(size, generator=generator, dtype=torch.float64)).requires_grad_())

    def distributions(self, response: Sequence[int]) -> list[Tensor]:
        """Log-probabilities over the words, at each token of the response."""
        first, second = self.theta[:WORDS], self.theta[WORDS:].view(WORDS, WORDS)
        return [first.log_softmax(0), *(second[word].log_softmax(0) for word in response[:-1])]

    def token_logprobs(self) -> Tensor:
        """[7, 2]: the log-probability of each token of each response, 0 past the end."""
        rows = []
        for response in RESPONSES:
            tokens = [d[word] for d, word in zip(self.distributions(response), response, strict=True)]
            rows.append(torch.stack([*tokens, *[self.theta.new_zeros(())] * (2 - len(tokens))]))
        return torch.stack(rows)

    def square_sums(self) -> Tensor:
        """[7, 2]: the sum of the squared probabilities of all words, at each token."""
        sums = [[float((2 * d).exp().sum().detach()) for d in self.distributions(r)] for r in RESPONSES]
        return torch.tensor([[*row, *[0.0] * (2 - len(row))] for row in sums], dtype=torch.float64)

    def chances(self) -> Tensor:
        """[7]: the probability of each response, with gradient."""
        return self.token_logprobs().sum(1).exp()

    def gradient(self, value: Tensor) -> Tensor:
        """The gradient of a number to the logits."""
        return torch.autograd.grad(value, self.theta, retain_graph=True)[0]

    def scores(self) -> Tensor:
        """[7, 2, 12]: the gradient of each token's log-probability."""
        return torch.stack([torch.stack([self.gradient(x) for x in row]) for row in self.token_logprobs()])


MASK = torch.tensor([[1.0] * len(r) + [0.0] * (2 - len(r)) for r in RESPONSES])


@dataclass
class Expected:
    """Mean [12] of a gradient estimate over all groups, and its total variance about the mean."""

    mean: Tensor
    variance: float


def expected(
    parts: Parts,
    policy: Tiny,
    rewards: Tensor,
    size: int,
    fill: Callable[[AdvantageInputs, Tensor], AdvantageInputs] = lambda inputs, rows: inputs,
) -> Expected:
    """Return the moments of mean_i sum_t A_t grad log pi(y_t) over all groups of `size` responses, ordered.

    `rewards` [7]; `fill` adds inputs to those of all groups, given the number [B] of each row's response.
    """
    groups = torch.tensor(list(itertools.product(range(len(RESPONSES)), repeat=size)))  # [M, size]
    rows = groups.flatten()
    group_ids = torch.arange(len(groups)).repeat_interleave(size)
    inputs = fill(AdvantageInputs(rewards[rows], group_ids, MASK[rows]), rows)
    advantages = compute_advantages(parts, inputs).advantages.view(*groups.shape, 2)
    scores = policy.scores()[groups]  # [M, size, 2, 12]
    estimates = (advantages.unsqueeze(-1) * scores).sum(dim=2).mean(dim=1)
    chances = policy.chances().detach()[groups].prod(dim=1)
    mean = (chances.unsqueeze(1) * estimates).sum(dim=0)
    spread = ((estimates - mean) ** 2).sum(dim=1)
    return Expected(mean, float((chances * spread).sum()))


def with_kl(policy: Tiny, reference: Tiny) -> Callable[[AdvantageInputs, Tensor], AdvantageInputs]:
    """Return a `fill` for `expected` that adds the log-probs of policy and reference."""
    old, ref = policy.token_logprobs().detach(), reference.token_logprobs().detach()
    return lambda inputs, rows: replace(inputs, old_logprobs=old[rows], ref_logprobs=ref[rows])
