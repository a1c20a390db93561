"""Responses on their way: drawn in one go or in stretches, each by the weights that the engine then has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from pipeline.rollout.collect import Renders, check_recorded, collect
from pipeline.rollout.engine import Completion, Engine, Request, Sampling
from pipeline.seeds import derive
from pipeline.types import KeptTokens, Prompt, Rollout, Routing

Asked = tuple[str, int, Sampling]
"""The stream of a kind of response, how many of it each prompt gets, and how they are drawn."""


@dataclass
class Flight:
    """What one batch of prompts was asked, and what was drawn of it so far."""

    prompts: tuple[Prompt, ...]
    asked: tuple[Asked, ...]
    stream: tuple[str | int, ...]
    """Names the flight's random numbers, whoever draws them and when."""
    drawn: list[list[Rollout]] = field(default_factory=list)
    """For each kind asked, prompt by prompt; empty before the first stretch."""


def fly(flight: Flight, engine: Engine, renderer: Renders, seed: int, stretch: int | None) -> None:
    """Draw `stretch` further tokens of each response that has not ended; None: all that is left of them."""
    begins = not flight.drawn
    for kind, (name, samples, how) in enumerate(flight.asked):
        if begins:
            first = how if stretch is None else replace(how, max_tokens=min(stretch, how.max_tokens))
            stream = (name, *flight.stream)
            flight.drawn.append(collect(engine, renderer, flight.prompts, samples, first, seed, *stream))
        else:
            stream = (name, *flight.stream, "on")
            flight.drawn[kind] = go_on(engine, renderer, flight.drawn[kind], how, stretch, seed, *stream)


def is_open(rollout: Rollout, sampling: Sampling) -> bool:
    """The response neither ended nor reached its limit."""
    return rollout.finish_reason == "length" and len(rollout.response_ids) < sampling.max_tokens


def go_on(
    engine: Engine,
    renderer: Renders,
    rollouts: Sequence[Rollout],
    sampling: Sampling,
    stretch: int | None,
    seed: int,
    *stream: str | int,
) -> list[Rollout]:
    """The rollouts, of which open ones go on for `stretch` tokens with the engine's present weights.

    The engine computes prompt and response until here anew, so each further token is of its weights alone. A rollout's
    version stays that of its first token, its oldest; its log-probs are those of the weights that drew each token.
    """
    times: Counter[tuple[str, int]] = Counter()
    waiting: dict[int, list[tuple[int, Request]]] = {}
    for i, r in enumerate(rollouts):
        who = (r.prompt_id, r.sample)
        times[who] += 1
        if is_open(r, sampling):
            have = len(r.response_ids)
            own = derive(seed, "rollout", *stream, *who, times[who], have)
            most = sampling.max_tokens - have
            request = Request(r.prompt_ids + r.response_ids, (own,))
            waiting.setdefault(most if stretch is None else min(stretch, most), []).append((i, request))
    out = list(rollouts)
    for most, some in waiting.items():
        answers = engine.generate([request for _, request in some], replace(sampling, max_tokens=most))
        check_recorded(sampling, [c for (c,) in answers])
        for (i, _), (completion,) in zip(some, answers, strict=True):
            out[i] = _longer(rollouts[i], completion, renderer)
    return out


def _longer(rollout: Rollout, more: Completion, renderer: Renders) -> Rollout:
    ids = rollout.response_ids + more.token_ids
    return replace(
        rollout,
        response_ids=ids,
        logprobs=rollout.logprobs + more.logprobs,
        text=renderer.decode(ids),
        finish_reason=more.finish_reason,
        kept=_joined(rollout.kept, more.kept),
        routing=_routed(rollout, more.routing),
    )


def _joined(first: KeptTokens | None, more: KeptTokens | None) -> KeptTokens | None:
    if first is None or more is None:
        return None
    return KeptTokens(first.sizes + more.sizes, first.ids + more.ids, first.num_bounded + more.num_bounded)


def _routed(rollout: Rollout, more: Routing | None) -> Routing | None:
    """The experts that each token was drawn with: those of the first stretch were recorded then, not those of now."""
    if rollout.routing is None or more is None:
        return None
    return replace(more, experts=rollout.routing.experts + more.experts[len(rollout.routing.experts) :])


def oldest(rollouts: Iterable[Rollout]) -> int:
    """The version of the weights that drew the oldest token among them."""
    return min(r.policy_version for r in rollouts)
