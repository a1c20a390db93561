"""Generates rollouts from prompts. A response's seed depends on its prompt and number, not on when it is sampled."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple, Protocol

from verizero.pipeline.config.choices import ENVIRONMENT
from verizero.pipeline.errors import EngineError
from verizero.pipeline.rollout.engine import Completion, Ended, Engine, Request, Sampling
from verizero.pipeline.rollout.play import EndedEpisode, EpisodeSetup, play
from verizero.pipeline.seeds import derive
from verizero.pipeline.types import EndedResponse, FinishReason, Prompt, Rollout, Turn

ResponseReader = Callable[[Sequence[EndedResponse]], None]
"""Receives responses as they end, each with its index among the rollouts that `generate_rollouts` returns."""

Count = Callable[[int], None]
"""Receives the number of responses that have ended since its last call."""


class Renderer(Protocol):
    """Turns prompts into tokens, and tokens into text."""

    def prompt_ids(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the prompt's tokens."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of a response without special tokens."""
        ...


class ResponseKind(NamedTuple):
    """A kind of response to each prompt of a batch. Example: ResponseKind("rl greedy", 1, Sampling(512, 0))"""

    stream: str
    """The name of its random stream."""
    samples: int
    """The number of responses to each prompt."""
    sampling: Sampling


@dataclass
class Generation:
    """The objects and the seed that responses are generated with."""

    engine: Engine
    renderer: Renderer
    seed: int
    """The root of all random numbers."""
    episode_setup: EpisodeSetup | None = None
    """None if no prompt has an environment."""


def generate_rollouts(
    generation: Generation,
    prompts: Sequence[Prompt],
    samples: int,
    sampling: Sampling,
    *stream: str | int,
    reader: ResponseReader | None = None,
    count: Count | None = None,
) -> list[Rollout]:
    """Return `samples` responses to each prompt, prompt by prompt. Equal seeds and streams give equal responses.

    Prompts with an environment become episodes, which are played after the single responses are written.
    `reader` receives the responses that the engine reports while it still writes others, and episodes as they end.
    `count` receives each response and episode once; at the end also the responses that the engine did not report.
    Raises: EngineError for an engine that does not record what `sampling` asks for.
    """
    single_at = [i for i, p in enumerate(prompts) if p.environment is None]
    played_at = [i for i, p in enumerate(prompts) if p.environment is not None]
    single, played = [prompts[i] for i in single_at], [prompts[i] for i in played_at]
    rollouts: list[Rollout] = []
    if single or not played:  # ranks that share an engine call it together, also one that has no prompt
        of_single = _with_indices_of(reader, single_at, samples)
        rollouts = _respond(generation, single, samples, sampling, stream, of_single, count)
    if played:
        if (setup := generation.episode_setup) is None:
            raise EngineError(
                f"prompt {played[0].id!r} has the environment {played[0].environment!r}, and none was made"
            )
        on_end = _episode_reader(_with_indices_of(reader, played_at, samples), played, samples, count)
        rollouts += play(generation.engine, setup, played, samples, sampling, generation.seed, *stream, on_end=on_end)
        check_recorded(sampling, [turn for r in rollouts for turn in r.turns])
    # Back to the order of the prompts; both lists have `samples` rollouts of each of theirs.
    position = {i: k for k, i in enumerate([*single_at, *played_at])}
    return [r for i in range(len(prompts)) for r in rollouts[position[i] * samples : (position[i] + 1) * samples]]


def _with_indices_of(reader: ResponseReader | None, indices: Sequence[int], samples: int) -> ResponseReader | None:
    """Return a reader of the responses to some of the prompts, which have these `indices` among all."""
    if reader is None:
        return None

    def read(ended: Sequence[EndedResponse]) -> None:
        reader([replace(e, index=indices[e.index // samples] * samples + e.index % samples) for e in ended])

    return read


def _episode_reader(
    reader: ResponseReader | None, prompts: Sequence[Prompt], samples: int, count: Count | None
) -> EndedEpisode | None:
    """Return a function that counts ended episodes, and passes those that a verifier grades on to `reader`."""
    if reader is None and count is None:
        return None

    def read(index: int, rollout: Rollout) -> None:
        if count is not None:
            count(1)
        if reader is None:
            return
        episode, prompt = rollout.episode, prompts[index // samples]
        if episode is not None and episode.outcome is None and prompt.verifier != ENVIRONMENT:
            finish: FinishReason = "length" if rollout.was_cut else "stop"
            reader([EndedResponse(index, prompt, rollout.answer, finish, episode.messages, rollout.response_ids)])

    return read


def _respond(
    generation: Generation,
    prompts: Sequence[Prompt],
    samples: int,
    sampling: Sampling,
    stream: Sequence[str | int],
    reader: ResponseReader | None,
    count: Count | None,
) -> list[Rollout]:
    """Return `samples` single responses to each prompt."""
    engine, renderer = generation.engine, generation.renderer
    times: Counter[str] = Counter()
    requests = []
    for p in prompts:  # a prompt that comes twice (an epoch ends in this call) gets other numbers the second time
        names = (p.id, times[p.id]) if times[p.id] else (p.id,)
        times[p.id] += 1
        seeds = tuple(derive(generation.seed, "rollout", *stream, *names, i) for i in range(samples))
        requests.append(Request(renderer.prompt_ids(p), seeds))

    text_of = cache(renderer.decode)  # a response that the reader received is not decoded a second time

    num_ended = 0

    def read(ended: Sequence[Ended]) -> None:
        nonlocal num_ended
        num_ended += len(ended)
        if count is not None:
            count(len(ended))
        if reader is not None:
            reader(
                [
                    EndedResponse(
                        e.request * samples + e.sample,
                        prompts[e.request],
                        text_of(e.token_ids),
                        e.finish_reason,
                        response_ids=e.token_ids,
                    )
                    for e in ended
                ]
            )

    answers = engine.generate(requests, sampling, None if reader is None and count is None else read)
    if count is not None and num_ended < len(prompts) * samples:
        count(len(prompts) * samples - num_ended)
    check_recorded(sampling, [c for completions in answers for c in completions])
    return [
        _rollout(prompt, ids, i, completion, text_of(completion.token_ids), engine.version)
        for prompt, request, completions in zip(prompts, requests, answers, strict=True)
        for ids in [array("i", request.prompt_ids)]  # one for the whole group
        for i, completion in enumerate(completions)
    ]


def _rollout(
    prompt: Prompt, prompt_ids: Sequence[int], sample: int, completion: Completion, text: str, version: int
) -> Rollout:
    return Rollout(
        prompt_id=prompt.id,
        sample=sample,
        prompt_ids=prompt_ids,
        response_ids=array("i", completion.token_ids),
        logprobs=array("f", completion.logprobs),
        text=text,
        finish_reason=completion.finish_reason,
        policy_version=version,
        kept=completion.kept,
        routing=completion.routing,
    )


def check_recorded(sampling: Sampling, completions: Sequence[Completion | Turn]) -> None:
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
