"""The protocol of a rollout engine: tokens in, tokens out, from weights of a known version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from verizero.pipeline.errors import EngineError
from verizero.pipeline.types import FinishReason, KeptTokens, Routing


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt in tokens and one seed for each response wanted; a response depends on its own seed only."""

    prompt_ids: tuple[int, ...]
    seeds: tuple[int, ...]
    keys: tuple[int, ...] = ()
    """For each seed a number; servers that are many answer equal numbers by one of them, for its prefix cache."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The distribution that tokens are drawn from. temperature 0 is greedy; top_p 1 and top_k 0 keep the vocabulary."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_kept: int = 0
    """Above 0: the engine records the set of tokens that each token was drawn from, at most this many."""
    keep_routing: bool = False
    """The engine records the experts that a mixture of experts used for each token."""

    @property
    def is_cut(self) -> bool:
        """True if top_p or top_k leave out some tokens."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1)


@dataclass(frozen=True, slots=True)
class Completion:
    """One response. `logprobs` are those of its tokens at the sampling temperature (at 1 when greedy)."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    kept: KeptTokens | None = None
    routing: Routing | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """A response that ended while others were still written: number `sample` of request number `request`."""

    request: int
    sample: int
    token_ids: tuple[int, ...]
    finish_reason: FinishReason


Listener = Callable[[Sequence[Ended]], None]
"""Receives responses as they end."""


def check_requests(requests: Sequence[Request], max_tokens: int, limit: int | None, context: str) -> None:
    """Raise EngineError for a prompt without tokens, or one that leaves no room for its response in `context`."""
    for r in requests:
        if not r.prompt_ids:
            raise EngineError("a prompt has no tokens; check the template and the tokenizer")
        if limit is not None and len(r.prompt_ids) + max_tokens > limit:
            raise EngineError(
                f"a prompt of {len(r.prompt_ids)} tokens and max_response_tokens={max_tokens} exceed {context} of "
                f"{limit}; shorten one of them or drop long prompts (data.on_long_prompt: drop)"
            )


class Engine(Protocol):
    """Generates responses with the weights last published to it."""

    @property
    def version(self) -> int:
        """The version of the weights in use; -1 before the first `publish`."""
        ...

    @property
    def is_fast(self) -> bool | None:
        """True if the fast decode path is in use, False if a fallback is; None for an engine with one path."""
        ...

    @property
    def fallback_reason(self) -> str | None:
        """The reason for the fallback; None where none is in use."""
        ...

    @property
    def answers_threads(self) -> bool:
        """True if several threads may call `generate` at the same time, and each is answered as soon as it can be."""
        ...

    def publish(self, version: int) -> None:
        """Take the present weights of the module that the engine was made with, and call them `version`.

        Raises: EngineError if the engine cannot confirm them.
        """
        ...

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, listener: Listener | None = None
    ) -> list[list[Completion]]:
        """Return, per request, one completion per seed, in order.

        `listener` receives, in the calling thread, each response at most once as it ends, so that it is graded while
        others are still written. An engine that learns of the end too late may leave out any of
        them, or all: those are graded after `generate`.
        """
        ...

    def rest(self) -> None:
        """Give device memory back until the next `publish` or `generate`; does nothing where that is impossible."""
        ...

    def counts(self) -> Mapping[str, float]:
        """Return numbers for the metrics of a step, by name; empty for an engine that counts nothing."""
        ...

    def close(self) -> None:
        """Release what the engine holds."""
        ...
