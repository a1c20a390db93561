"""The routers of a mixture of experts: recording which experts they chose, and making them choose the same again.

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

from pipeline.errors import ConfigError

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Where configurations of transformers say that a model is a mixture of experts."""
KIND = "TopKRouter"
TOLERANCE = 1e-5
"""Of the weights that are computed again, against the router's own."""


@dataclass
class Tally:
    """How often a router would have chosen other experts than those it was made to use, summed over forwards."""

    changed: int = 0
    """Choices (a token in a layer) whose set of experts differs."""
    total: int = 0


@dataclass
class Choices:
    """What the routers chose in the last forward, in the order of their layers: each [tokens, top_k]."""

    by_layer: list[Tensor] = field(default_factory=list)

    def take(self, rows: int) -> Tensor:
        """[rows, tokens, layers, top_k] int16 of that forward, which is forgotten."""
        found, self.by_layer = torch.stack(self.by_layer, 1).to(torch.int16), []
        return found.view(rows, -1, *found.shape[1:])


def num_experts(config: Any) -> int | None:
    """How many experts a layer of this configuration has; None for a dense model."""
    return next((int(n) for name in EXPERTS if (n := getattr(config, name, None))), None)


def routers(model: Any) -> list[Any]:
    """The routers of a known kind, in the order of their layers; empty for a dense model."""
    return [m for m in model.modules() if type(m).__name__.endswith(KIND)]


@contextmanager
def recording(model: Any) -> Iterator[Choices]:
    """Within the block, each forward leaves what the routers chose; `take` it after every one."""
    choices = Choices()
    handles = [r.register_forward_hook(lambda _m, _x, out: choices.by_layer.append(out[2])) for r in routers(model)]
    try:
        yield choices
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def replaying(model: Any, wanted: Tensor) -> Iterator[Tally]:
    """Within the block, forwards over [B, T] tokens use the experts `wanted` [B, T, layers, top_k].

    Their weights are computed from the router's present logits, over those experts: the gradient reaches the router.
    Where `wanted` is -1 the router chooses. Choices that it would have made otherwise are counted.

    Raises: ConfigError if the model has another number of routers or experts a token.
    Source: arXiv:2512.02556 section 3.1, "keep routing".
    """
    found = routers(model)
    layers, top_k = wanted.shape[2:]
    if len(found) != layers or any(r.top_k != top_k for r in found):
        raise ConfigError(
            f"the recorded routing is of {layers} layers with {top_k} experts a token, the policy has "
            f"{len(found)} routers with {sorted({r.top_k for r in found})}; sample with the policy's own architecture"
        )
    tally = Tally()

    def hook_of(layer: int) -> Any:
        forced = wanted[:, :, layer].reshape(-1, top_k).long()

        def hook(router: Any, _inputs: Any, out: Any) -> Any:
            logits, weights, own = out
            if len(own) != len(forced):
                raise ConfigError(f"the recorded routing is of {len(forced)} tokens, the forward has {len(own)}")
            known = forced[:, :1] >= 0
            chosen = torch.where(known, forced, own)
            differs = (chosen.sort(1).values != own.sort(1).values).any(1)
            tally.changed += int(differs.sum())
            tally.total += int(known.sum())
            return logits, weigh(router, logits, chosen).to(weights.dtype), chosen

        return hook

    handles = [r.register_forward_hook(hook_of(layer)) for layer, r in enumerate(found)]
    try:
        yield tally
    finally:
        for handle in handles:
            handle.remove()


def weigh(router: Any, logits: Tensor, chosen: Tensor) -> Tensor:
    """[tokens, top_k] weights of the experts `chosen`, from the router's logits [tokens, experts], in float32."""
    weights = torch.softmax(logits, -1, dtype=torch.float).gather(1, chosen)
    return weights / weights.sum(1, keepdim=True) if getattr(router, "norm_topk_prob", True) else weights


@torch.no_grad()
def unreplayable(model: Any) -> str | None:
    """Why the routing of this mixture of experts cannot be replayed; None if it can, as a trial on a few tokens shows.

    The weights that are computed here for the router's own choices must be the router's, and other choices must change
    what the model answers.
    """
    found = routers(model)
    if not found:
        return f"model type {model.config.model_type!r} has no router that is known (one called …{KIND})"
    ids = (torch.arange(8, device=model.device) * 7919 % model.config.vocab_size).view(2, 4)
    worst = 0.0

    def compare(router: Any, _inputs: Any, out: Any) -> None:
        nonlocal worst
        logits, weights, own = out
        worst = max(worst, float((weigh(router, logits, own).to(weights.dtype) - weights).abs().max()))

    was_training = model.training
    model.eval()
    handles = [r.register_forward_hook(compare) for r in found]
    try:
        with recording(model) as choices:
            plain = model(input_ids=ids, use_cache=False).logits
            own = choices.take(2)
        with replaying(model, own):
            same = model(input_ids=ids, use_cache=False).logits
        with replaying(model, (own + 1) % found[0].num_experts):
            other = model(input_ids=ids, use_cache=False).logits
    except (AttributeError, IndexError, TypeError, ValueError, RuntimeError, ConfigError) as exc:
        return f"its routers are not of the known kind ({type(exc).__name__}: {exc})"
    finally:
        for handle in handles:
            handle.remove()
        model.train(was_training)
    if not worst <= TOLERANCE:
        return f"its routers weigh experts in another way (weights differ by {worst:.2g})"
    tolerance = 2e-2 if model.dtype in (torch.bfloat16, torch.float16) else 1e-4
    if not (plain - same).abs().max() <= tolerance * plain.abs().max():
        return "the same choices, replayed, give other logits"
    return "other choices, replayed, change nothing" if torch.equal(same, other) else None
