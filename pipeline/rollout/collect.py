"""Prompts to rollouts: every response has a seed of its own, made of what it is and not of when it was drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from pipeline.rollout.engine import Completion, Engine, Request, Sampling
from pipeline.seeds import derive
from pipeline.types import Prompt, Rollout


class Renders(Protocol):
    """Writes prompts as tokens, and tokens as text."""

    def prompt_ids(self, prompt: Prompt) -> tuple[int, ...]:
        """The prompt in tokens."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a response, special tokens left out."""
        ...


def collect(
    engine: Engine,
    renderer: Renders,
    prompts: Sequence[Prompt],
    samples: int,
    sampling: Sampling,
    seed: int,
    *stream: str | int,
) -> list[Rollout]:
    """`samples` responses to each prompt, prompt by prompt. The same seed and stream give the same responses."""
    times: Counter[str] = Counter()
    requests = []
    for p in prompts:  # one that comes twice (an epoch ends in this call) gets other numbers the second time
        own = (p.id, times[p.id]) if times[p.id] else (p.id,)
        times[p.id] += 1
        seeds = tuple(derive(seed, "rollout", *stream, *own, i) for i in range(samples))
        requests.append(Request(renderer.prompt_ids(p), seeds))
    answers = engine.generate(requests, sampling)
    return [
        _rollout(prompt, request, i, completion, renderer, engine.version)
        for prompt, request, completions in zip(prompts, requests, answers, strict=True)
        for i, completion in enumerate(completions)
    ]


def _rollout(
    prompt: Prompt, request: Request, sample: int, completion: Completion, renderer: Renders, version: int
) -> Rollout:
    return Rollout(
        prompt_id=prompt.id,
        sample=sample,
        prompt_ids=request.prompt_ids,
        response_ids=completion.token_ids,
        logprobs=completion.logprobs,
        text=renderer.decode(completion.token_ids),
        finish_reason=completion.finish_reason,
        policy_version=version,
    )
