"""Record which experts the routers of a mixture of experts chose, and make them use the same again.

Routers of the kind that transformers calls `…TopKRouter` are known: they answer with (logits, weights, indices). A
hook reads or replaces the last two; the logits, and so a load-balancing loss, stay the router's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.proof import agree, evaluating, probe_ids

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Fields in which configurations of transformers give the number of experts of a layer."""
KIND = "TopKRouter"
"""The end of the class name of a router that answers with (logits, weights, indices)."""
WEIGHT_TOLERANCE = 1e-5
"""Greatest difference of the experts' weights computed here from the router's own."""


@dataclass
class Rerouted:
    """The number of times that routers would have chosen other experts than they had to use, over all forwards."""

    changed: int = 0
    """Choices (one token in one layer) whose set of experts differs."""
    total: int = 0


@dataclass
class Choices:
    """The experts that the routers chose in the last forward: [tokens, top_k] for each layer, in order."""

    by_layer: list[Tensor] = field(default_factory=list)

    def take(self, rows: int) -> Tensor:
        """Return int16 [rows, tokens, layers, top_k] for the last forward, and forget it."""
        chosen, self.by_layer = torch.stack(self.by_layer, 1).to(torch.int16), []
        return chosen.view(rows, -1, *chosen.shape[1:])


def num_experts(config: Any) -> int | None:
    """Return the number of experts of a layer; None for a dense model."""
    return next((int(n) for name in EXPERTS if (n := getattr(config, name, None))), None)


def routers(model: Any) -> list[Any]:
    """Return the routers of the known kind, in the order of their layers; empty for a dense model."""
    return [m for m in model.modules() if type(m).__name__.endswith(KIND)]


@contextmanager
def recording(model: Any) -> Iterator[Choices]:
    """Record what the routers choose in the forwards within the block; call `take` after each of them."""
    choices = Choices()
    handles = [r.register_forward_hook(lambda _m, _x, out: choices.by_layer.append(out[2])) for r in routers(model)]
    try:
        yield choices
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def replaying(model: Any, wanted: Tensor, num_rows: Tensor | None = None) -> Iterator[Rerouted]:
    """Make forwards over [B, T] tokens within the block use the experts `wanted` [B, T, layers, top_k].

    The experts' weights are computed from the router's present logits, so that the gradient reaches the router. Where
    `wanted` is -1 the router chooses. Choices that it would have made differently are counted, `num_rows` [B * T] times
    each; None: once.

    Raises: ConfigError if the model has another number of routers or experts a token.
    Source: arXiv:2512.02556 section 3.1, "keep routing".
    """
    own_routers = routers(model)
    layers, top_k = wanted.shape[2:]
    if len(own_routers) != layers or any(r.top_k != top_k for r in own_routers):
        raise ConfigError(
            f"the recorded routing is of {layers} layers with {top_k} experts a token, the policy has "
            f"{len(own_routers)} routers with {sorted({r.top_k for r in own_routers})}; sample with the policy's own "
            "architecture"
        )
    counted = Rerouted()

    def hook_of(layer: int) -> Any:
        forced = wanted[:, :, layer].reshape(-1, top_k).long()

        def hook(router: Any, _inputs: Any, out: Any) -> Any:
            logits, weights, own = out
            if len(own) != len(forced):
                raise ConfigError(f"the recorded routing is of {len(forced)} tokens, the forward has {len(own)}")
            known = forced[:, :1] >= 0
            chosen = torch.where(known, forced, own)
            # The order of a token's experts does not change its sum: compare them as sets.
            differs = (chosen.sort(1).values != own.sort(1).values).any(1)
            times = known[:, 0].long() if num_rows is None else num_rows
            counted.changed += int((differs * times).sum())
            counted.total += int(times.sum())
            return logits, weigh(router, logits, chosen).to(weights.dtype), chosen

        return hook

    handles = [r.register_forward_hook(hook_of(layer)) for layer, r in enumerate(own_routers)]
    try:
        yield counted
    finally:
        for handle in handles:
            handle.remove()


def weigh(router: Any, logits: Tensor, chosen: Tensor) -> Tensor:
    """Return float32 [tokens, top_k]: the weights of the experts `chosen`, from logits [tokens, experts]."""
    weights = torch.softmax(logits, -1, dtype=torch.float).gather(1, chosen)
    return weights / weights.sum(1, keepdim=True) if getattr(router, "norm_topk_prob", True) else weights


def unreplayable(model: Any) -> str | None:
    """Return why the routing of this mixture of experts cannot be replayed; None if a trial on a few tokens succeeds.

    The weights that are computed here for the router's own choices must be the router's, and other choices must change
    what the model answers.
    """
    own_routers = routers(model)
    if not own_routers:
        return f"model type {model.config.model_type!r} has no router that is known (one called …{KIND})"
    ids = probe_ids(model, 2, 4)
    worst = 0.0

    def compare(router: Any, _inputs: Any, out: Any) -> None:
        nonlocal worst
        logits, weights, own = out
        worst = max(worst, float((weigh(router, logits, own).to(weights.dtype) - weights).abs().max()))

    handles = [r.register_forward_hook(compare) for r in own_routers]
    try:
        with evaluating(model):
            with recording(model) as choices:
                plain = model(input_ids=ids, use_cache=False).logits
                own = choices.take(2)
            with replaying(model, own):
                same = model(input_ids=ids, use_cache=False).logits
            with replaying(model, (own + 1) % own_routers[0].num_experts):
                other = model(input_ids=ids, use_cache=False).logits
    except (AttributeError, IndexError, TypeError, ValueError, RuntimeError, ConfigError) as exc:
        return f"its routers are not of the known kind ({type(exc).__name__}: {exc})"
    finally:
        for handle in handles:
            handle.remove()
    if not worst <= WEIGHT_TOLERANCE:
        return f"its routers weigh experts in another way (weights differ by {worst:.2g})"
    if not agree(same, plain):
        return "the same choices, replayed, give other logits"
    return "other choices, replayed, change nothing" if torch.equal(same, other) else None
