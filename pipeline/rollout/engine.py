"""The protocol of a rollout engine: tokens in, tokens out, from weights of a known version."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from verizero.pipeline.errors import EngineError
from verizero.pipeline.types import FinishReason, KeptTokens, Routing


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt in tokens, and a seed for each response to it; a response depends on its own seed only."""

    prompt_ids: tuple[int, ...]
    seeds: tuple[int, ...]
    keys: tuple[int, ...] = ()
    """The number of the episode for each seed; empty for single responses. A pool of servers sends an episode's turns
    to the same server, which may have kept what they share."""


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
    """A response that has ended, number `sample` of request number `request`, while others may still be written."""

    request: int
    sample: int
    token_ids: tuple[int, ...]
    finish_reason: FinishReason


EndedReader = Callable[[Sequence[Ended]], None]
"""Receives responses as they end. `generate_rollouts` makes EndedResponses of them."""


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
        """Why the fallback is in use; None if it is not."""
        ...

    @property
    def answers_threads(self) -> bool:
        """True if several threads may call `generate` at a time; each returns as soon as its own responses are done."""
        ...

    def publish(self, version: int) -> None:
        """Take the module's present weights, and call them `version`. Raises: EngineError if it cannot confirm them."""
        ...

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, reader: EndedReader | None = None
    ) -> list[list[Completion]]:
        """Return, per request, one completion per seed, in order.

        `reader` receives responses as they end, in the calling thread, so that they are graded while others are still
        written. It gets each at most once; an engine may leave out any or all, which are graded after `generate`.
        """
        ...

    def rest(self) -> None:
        """Free device memory until the next `publish` or `generate`; do nothing if the engine cannot."""
        ...

    def counts(self) -> Mapping[str, float]:
        """Return numbers for the metrics of a step, by name; empty for an engine that counts nothing."""
        ...

    def close(self) -> None:
        """Release the engine's memory and processes."""
        ...
