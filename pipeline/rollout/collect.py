"""Prompts to rollouts: every response has a seed of its own, made of what it is and not of when it was drawn."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

from verizero.pipeline.config.choices import ENVIRONMENT
from verizero.pipeline.errors import EngineError
from verizero.pipeline.rollout.engine import Completion, Ended, Engine, Request, Sampling
from verizero.pipeline.rollout.rounds import EndedEpisode, Episodes, play
from verizero.pipeline.seeds import derive
from verizero.pipeline.types import FinishReason, Prompt, Rollout, Turn, Written

Reader = Callable[[Sequence[Written]], None]
"""Receives responses as they end, each with its place among the rollouts that `collect` returns."""

Count = Callable[[int], None]
"""Receives the number of responses that have ended since its last call."""


class Renders(Protocol):
    """Turns prompts into tokens, and tokens into text."""

    def prompt_ids(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the prompt's tokens."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of a response without special tokens."""
        ...


@dataclass
class Generation:
    """The objects and the seed that responses are generated with."""

    engine: Engine
    renderer: Renders
    seed: int
    """The root of all random numbers."""
    episodes: Episodes | None = None
    """None where no prompt has an environment."""


def collect(
    by: Generation,
    prompts: Sequence[Prompt],
    samples: int,
    sampling: Sampling,
    *stream: str | int,
    reader: Reader | None = None,
    count: Count | None = None,
) -> list[Rollout]:
    """Return `samples` responses to each prompt, prompt by prompt. Equal seeds and streams give equal responses.

    Prompts with an environment become episodes, which are played after the single responses are written.
    `reader` receives the responses that the engine tells of while it still writes others, and episodes as they end.
    `count` hears of each response and episode once; in the end also of those that the engine left out.
    Raises: EngineError for an engine that does not record what `sampling` asks for.
    """
    alone = [i for i, p in enumerate(prompts) if p.environment is None]
    played = [i for i, p in enumerate(prompts) if p.environment is not None]
    own, games = [prompts[i] for i in alone], [prompts[i] for i in played]
    responses: list[Rollout] = []
    if own or not games:  # ranks that share an engine call it together, also one that has no prompt
        responses = _respond(by, own, samples, sampling, stream, _of_places(reader, alone, samples), count)
    if games:
        if by.episodes is None:
            raise EngineError(f"prompt {games[0].id!r} has the environment {games[0].environment!r}, and none was made")
        on_end = _episode_reader(_of_places(reader, played, samples), games, samples, count)
        responses += play(by.engine, by.episodes, games, samples, sampling, by.seed, *stream, on_end=on_end)
        check_recorded(sampling, [turn for r in responses for turn in r.turns])
    # Back to the order of the prompts; both lists have `samples` responses to each of theirs.
    place = {i: k for k, i in enumerate([*alone, *played])}
    return [r for i in range(len(prompts)) for r in responses[place[i] * samples : (place[i] + 1) * samples]]


def _of_places(reader: Reader | None, places: Sequence[int], samples: int) -> Reader | None:
    """Return a reader of the responses to some of the prompts, which are at `places` among all."""
    if reader is None:
        return None

    def tell(ended: Sequence[Written]) -> None:
        reader([replace(w, place=places[w.place // samples] * samples + w.place % samples) for w in ended])

    return tell


def _episode_reader(
    reader: Reader | None, prompts: Sequence[Prompt], samples: int, count: Count | None
) -> EndedEpisode | None:
    """Return a reader of episodes, which counts all and tells `reader` of those that a verifier grades."""
    if reader is None and count is None:
        return None

    def tell(place: int, rollout: Rollout) -> None:
        if count is not None:
            count(1)
        if reader is None:
            return
        episode, prompt = rollout.episode, prompts[place // samples]
        if episode is not None and episode.outcome is None and prompt.verifier != ENVIRONMENT:
            finish: FinishReason = "length" if rollout.was_cut else "stop"
            reader([Written(place, prompt, rollout.answer, finish, episode.messages)])

    return tell


def _respond(
    by: Generation,
    prompts: Sequence[Prompt],
    samples: int,
    sampling: Sampling,
    stream: Sequence[str | int],
    reader: Reader | None,
    count: Count | None,
) -> list[Rollout]:
    """Return `samples` single responses to each prompt."""
    engine, renderer = by.engine, by.renderer
    times: Counter[str] = Counter()
    requests = []
    for p in prompts:  # a prompt that comes twice (an epoch ends in this call) gets other numbers the second time
        own = (p.id, times[p.id]) if times[p.id] else (p.id,)
        times[p.id] += 1
        seeds = tuple(derive(by.seed, "rollout", *stream, *own, i) for i in range(samples))
        requests.append(Request(renderer.prompt_ids(p), seeds))

    text_of = cache(renderer.decode)  # a response that the reader received is not decoded a second time

    num_ended = 0

    def hear(ended: Sequence[Ended]) -> None:
        nonlocal num_ended
        num_ended += len(ended)
        if count is not None:
            count(len(ended))
        if reader is not None:
            reader(
                [
                    Written(e.request * samples + e.sample, prompts[e.request], text_of(e.token_ids), e.finish_reason)
                    for e in ended
                ]
            )

    answers = engine.generate(requests, sampling, None if reader is None and count is None else hear)
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
