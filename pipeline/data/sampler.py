"""Draw training prompts: each once an epoch, in an order that a resume does not change."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from verizero.pipeline.config.data import PassRateConfig
from verizero.pipeline.data.ledger import PassRateLedger
from verizero.pipeline.errors import CheckpointError, DataError
from verizero.pipeline.seeds import stream
from verizero.pipeline.types import Prompt

ONLY_POOL = ""
"""Name of the single pool if domains have no weights."""


class PromptSampler:
    """Draws prompts without end. Its state is a few counts: orders are computed from the seed."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        seed: int,
        order: Literal["shuffle", "sequential"] = "shuffle",
        weights: Mapping[str, float] | None = None,
        ledger: PassRateLedger | None = None,
        pass_rate: PassRateConfig | None = None,
    ) -> None:
        """`weights` is each domain's share of the draws; a domain's prompts are then epochs of their own.

        With `pass_rate`, prompts that rest by the ledger are skipped.
        Raises: DataError if the weights do not name exactly the domains there are.
        """
        if pass_rate is not None and ledger is None:
            raise DataError("sampling by pass rate needs a ledger that the attempts are recorded in; pass ledger=")
        self.prompts = tuple(prompts)
        self.seed = seed
        self.order = order
        self.ledger = ledger
        self.pass_rate = pass_rate
        self._pools = _pools(self.prompts, weights)
        total = sum(weights.values()) if weights else 1.0
        self._shares = {name: weights[name] / total if weights else 1.0 for name in self._pools}
        self._drawn = dict.fromkeys(self._pools, 0)
        self._served = dict.fromkeys(self._pools, 0)
        self._orders: dict[str, tuple[int, list[int]]] = {}
        self.num_rested = 0
        """Draws skipped because of their pass rate."""
        self.num_unrested = 0
        """Prompts drawn although their pass rate is out of bounds, as is that of every prompt of their pool."""

    def next(self, n: int) -> list[Prompt]:
        """Return the next `n` prompts. A prompt is among them twice only if an epoch ends within them.

        Raises: ValueError for n < 1; DataError if there are no prompts.
        """
        if n < 1:
            raise ValueError(f"n must be >= 1, got {n}")
        if not self.prompts:
            raise DataError("there are no prompts to sample from; check data.train and its limits")
        return [self._draw(self._next_pool()) for _ in range(n)]

    def state_dict(self) -> dict[str, Any]:
        """Return the position, for JSON. The ledger has its own state."""
        return {
            "prompts": self._digest(),
            "seed": self.seed,
            "order": self.order,
            "drawn": dict(self._drawn),
            "served": dict(self._served),
            "rested": self.num_rested,
            "unrested": self.num_unrested,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a position. Raises: CheckpointError if its prompts, seed, order or weights differ."""
        domains = self.state_dict()
        for key, what in (("prompts", "other prompts"), ("seed", "another seed"), ("order", "another order")):
            # With any of these changed, equal counts would point to other prompts.
            if state.get(key) != domains[key]:
                raise CheckpointError(
                    f"the sampler's state is of {what} ({key} {state.get(key)!r}, here {domains[key]!r}); "
                    "resume with the recipe and the data that the run began with"
                )
        drawn, num_drawn = state.get("drawn"), state.get("served")
        pools = self._pools.keys()
        if not (
            isinstance(drawn, Mapping) and isinstance(num_drawn, Mapping) and drawn.keys() == num_drawn.keys() == pools
        ):
            raise CheckpointError(
                f"the sampler's state is of other weights (counts {drawn!r}, here of {sorted(self._pools)}); "
                "resume with the recipe that the run began with"
            )
        self._drawn = {name: int(drawn[name]) for name in self._pools}
        self._served = {name: int(num_drawn[name]) for name in self._pools}
        self.num_rested = int(state.get("rested", 0))
        self.num_unrested = int(state.get("unrested", 0))

    def _next_pool(self) -> str:
        """Return the pool that is furthest behind its share, the first of equals: shares are exact up to one draw."""
        total = sum(self._served.values()) + 1
        return max(self._pools, key=lambda name: self._shares[name] * total - self._served[name])

    def _draw(self, pool: str) -> Prompt:
        members = self._pools[pool]
        for _ in range(len(members)):
            prompt, epoch = self._take(pool)
            if self.pass_rate is None or self.ledger is None:
                return prompt
            if not self.ledger.is_skipped(prompt.id, self.pass_rate, epoch):
                return prompt
            # A prompt that rests was not served, so its pool keeps its share of the draws.
            self._served[pool] -= 1
            self.num_rested += 1
        # A whole epoch rests: without a way out this would never return.
        self.num_unrested += 1
        return self._take(pool)[0]

    def _take(self, pool: str) -> tuple[Prompt, int]:
        """Return the prompt at the pool's position and its epoch, and advance."""
        members = self._pools[pool]
        # The count alone gives epoch and position, so a resume needs no saved order.
        epoch, position = divmod(self._drawn[pool], len(members))
        self._drawn[pool] += 1
        self._served[pool] += 1
        # Only the present epoch's order is kept; it can be computed again at any time.
        if self._orders.get(pool, (-1, []))[0] != epoch:
            order = list(members)
            if self.order == "shuffle":
                stream(self.seed, "data", "order", pool, epoch).shuffle(order)
            self._orders[pool] = (epoch, order)
        return self.prompts[self._orders[pool][1][position]], epoch

    def _digest(self) -> str:
        """Return a hash of the ids and questions, in order."""
        digest = hashlib.sha256()
        for prompt in self.prompts:
            # Lengths keep two neighbours from running into each other: "a","bc" is not "ab","c".
            digest.update(f"{len(prompt.id)}:{prompt.id}{len(prompt.question)}:{prompt.question}".encode())
        return digest.hexdigest()[:32]


def _pools(prompts: Sequence[Prompt], weights: Mapping[str, float] | None) -> dict[str, list[int]]:
    """Return pool -> indices of prompts: a pool for each domain with a weight above 0, or one pool for all."""
    if weights is None:
        return {ONLY_POOL: list(range(len(prompts)))}
    pools: dict[str, list[int]] = {}
    for i, prompt in enumerate(prompts):
        pools.setdefault(prompt.domain, []).append(i)
    if pools.keys() != weights.keys():
        raise DataError(
            f"data.sampling.weights must name each domain of the prompts and no other: domains {sorted(pools)}, "
            f"weights {sorted(weights)}; 0 leaves a domain out"
        )
    # Sorted: `max` takes the first of equals, which must not depend on the order of rows.
    return {name: pools[name] for name in sorted(pools) if weights[name] > 0}
