"""Prompts to rollouts: every response has a seed of its own, made of what it is and not of when it was drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol

from pipeline.errors import EngineError
from pipeline.rollout.engine import Completion, Ended, Engine, Request, Sampling
from pipeline.seeds import derive
from pipeline.types import Prompt, Rollout, Written

Reader = Callable[[Sequence[Written]], None]
"""Receives responses as they end, each with its place among the rollouts that `collect` returns."""


class Renders(Protocol):
    """Turns prompts into tokens, and tokens into text."""

    def prompt_ids(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the prompt's tokens."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of a response without special tokens."""
        ...


def collect(
    engine: Engine,
    renderer: Renders,
    prompts: Sequence[Prompt],
    samples: int,
    sampling: Sampling,
    seed: int,
    *stream: str | int,
    reader: Reader | None = None,
) -> list[Rollout]:
    """Return `samples` responses to each prompt, prompt by prompt. Equal seeds and streams give equal responses.

    `reader` receives the responses that the engine tells of while it still writes others.
    Raises: EngineError for an engine that does not record what `sampling` asks for.
    """
    times: Counter[str] = Counter()
    requests = []
    for p in prompts:  # a prompt that comes twice (an epoch ends in this call) gets other numbers the second time
        own = (p.id, times[p.id]) if times[p.id] else (p.id,)
        times[p.id] += 1
        seeds = tuple(derive(seed, "rollout", *stream, *own, i) for i in range(samples))
        requests.append(Request(renderer.prompt_ids(p), seeds))

    text_of = cache(renderer.decode)  # a response that the reader received is not decoded a second time

    def tell_reader(ended: Sequence[Ended]) -> None:
        assert reader is not None
        reader(
            [
                Written(e.request * samples + e.sample, prompts[e.request], text_of(e.token_ids), e.finish_reason)
                for e in ended
            ]
        )

    answers = engine.generate(requests, sampling, None if reader is None else tell_reader)
    check_recorded(sampling, [c for completions in answers for c in completions])
    return [
        _rollout(prompt, request, i, completion, text_of(completion.token_ids), engine.version)
        for prompt, request, completions in zip(prompts, requests, answers, strict=True)
        for i, completion in enumerate(completions)
    ]


def _rollout(prompt: Prompt, request: Request, sample: int, completion: Completion, text: str, version: int) -> Rollout:
    return Rollout(
        prompt_id=prompt.id,
        sample=sample,
        prompt_ids=request.prompt_ids,
        response_ids=completion.token_ids,
        logprobs=completion.logprobs,
        text=text,
        finish_reason=completion.finish_reason,
        policy_version=version,
        kept=completion.kept,
        routing=completion.routing,
    )


def check_recorded(sampling: Sampling, completions: Sequence[Completion]) -> None:
    """Raise EngineError where the engine did not record what `sampling` asks for."""
    if sampling.max_kept and sampling.is_cut and any(c.kept is None for c in completions):
        raise EngineError(
            "the engine did not record the sets of tokens that top_p and top_k left; set rollout.engine: torch, or "
            "rollout.top_p: 1 and rollout.top_k: 0"
        )
    if sampling.keep_routing and any(c.routing is None for c in completions):
        raise EngineError(
            "the engine did not record the experts it used; set rollout.engine: torch, or "
            "rl.algorithm.keep_routing: false"
        )
