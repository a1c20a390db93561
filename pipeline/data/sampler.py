"""Draw training prompts: each once an epoch, in an order that a resume does not change; and count those attempted."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from verizero.pipeline.errors import CheckpointError, DataError
from verizero.pipeline.seeds import stream
from verizero.pipeline.types import Group, Prompt

ONLY_POOL = ""
"""Name of the single pool if domains have no weights."""


class PromptLedger:
    """The ids of the prompts that were attempted."""

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def __len__(self) -> int:
        """Return the number of distinct prompts that were attempted."""
        return len(self._ids)

    def record_group(self, group: Group) -> None:
        """Add the group's prompt if a response was graded. Failures of graders are no attempts."""
        if not all(m.verdict.is_left_out for m in group.members):
            self._ids.add(group.prompt.id)

    def state_dict(self) -> dict[str, Any]:
        """Return the ids for JSON, sorted, so that equal ledgers have equal bytes."""
        return {"ids": sorted(self._ids)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the ids of `state_dict`. Raises: CheckpointError if they are malformed."""
        ids = state.get("ids")
        if not isinstance(ids, list):
            raise CheckpointError(f"not a ledger's state: {state!r:.80}")
        self._ids = set(map(str, ids))


class PromptSampler:
    """Draws prompts without end. Its state is a few counts: orders are computed from the seed."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        seed: int,
        order: Literal["shuffle", "sequential"] = "shuffle",
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """`weights` is each domain's share of the draws; a domain's prompts are then epochs of their own.

        Raises: DataError if the weights do not name exactly the domains there are.
        """
        self.prompts = tuple(prompts)
        self.seed = seed
        self.order = order
        self._pools = _pools(self.prompts, weights)
        total = sum(weights.values()) if weights else 1.0
        self._shares = {name: weights[name] / total if weights else 1.0 for name in self._pools}
        self._drawn = dict.fromkeys(self._pools, 0)
        self._orders: dict[str, tuple[int, list[int]]] = {}

    def next(self, n: int) -> list[Prompt]:
        """Return the next prompts, one twice only if an epoch ends. Raises: ValueError; DataError without prompts."""
        if n < 1:
            raise ValueError(f"n must be >= 1, got {n}")
        if not self.prompts:
            raise DataError("there are no prompts to sample from; check data.train and its limits")
        return [self._take(self._next_pool()) for _ in range(n)]

    def state_dict(self) -> dict[str, Any]:
        """Return the position, for JSON. The ledger has its own state."""
        return {"prompts": self._digest(), "seed": self.seed, "order": self.order, "drawn": dict(self._drawn)}

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
        drawn = state.get("drawn")
        if not isinstance(drawn, Mapping) or drawn.keys() != self._pools.keys():
            raise CheckpointError(
                f"the sampler's state is of other weights (counts {drawn!r}, here of {sorted(self._pools)}); "
                "resume with the recipe that the run began with"
            )
        self._drawn = {name: int(drawn[name]) for name in self._pools}

    def _next_pool(self) -> str:
        """Return the pool that is furthest behind its share, the first of equals: shares are exact up to one draw."""
        total = sum(self._drawn.values()) + 1
        return max(self._pools, key=lambda name: self._shares[name] * total - self._drawn[name])

    def _take(self, pool: str) -> Prompt:
        """Return the prompt at the pool's position, and advance."""
        members = self._pools[pool]
        # The count alone gives epoch and position, so a resume needs no saved order.
        epoch, position = divmod(self._drawn[pool], len(members))
        self._drawn[pool] += 1
        # Only the present epoch's order is kept; it can be computed again at any time.
        if self._orders.get(pool, (-1, []))[0] != epoch:
            order = list(members)
            if self.order == "shuffle":
                stream(self.seed, "data", "order", pool, epoch).shuffle(order)
            self._orders[pool] = (epoch, order)
        return self.prompts[self._orders[pool][1][position]]

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
