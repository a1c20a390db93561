"""What a rollout engine is: tokens in, tokens out, from weights of a known version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pipeline.errors import EngineError
from pipeline.types import FinishReason, KeptTokens, Routing


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt in tokens and one seed for each response wanted; a response depends on its own seed only."""

    prompt_ids: tuple[int, ...]
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn, and what is recorded. temperature 0 is greedy; top_p 1 and top_k 0 keep the vocabulary."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_kept: int = 0
    """Above 0: the set of tokens that could be drawn is recorded at each place, and holds at most so many."""
    keep_routing: bool = False
    """Record the experts of a mixture of experts."""

    @property
    def is_cut(self) -> bool:
        """Some tokens cannot be drawn."""
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
    """A response that ended while others were still written: that to seed `sample` of request `request`."""

    request: int
    sample: int
    token_ids: tuple[int, ...]
    finish_reason: FinishReason


Listener = Callable[[Sequence[Ended]], None]
"""Told of responses as they end."""


def check_requests(requests: Sequence[Request], max_tokens: int, limit: int | None, context: str) -> None:
    """Raises: EngineError for a prompt without tokens, or one that leaves no room for its response in `context`."""
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
        """The version of the weights in use."""
        ...

    def publish(self, version: int) -> None:
        """Take the policy's present weights and call them `version`.

        Raises: EngineError if the engine cannot confirm them.
        """
        ...

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        """Per request, one completion per seed, in order."""
        ...

    def close(self) -> None:
        """Release what the engine holds."""
        ...


@runtime_checkable
class Streams(Protocol):
    """An engine that also tells of each response as it ends, so that it is graded while others are still written."""

    def generate_streaming(
        self, requests: Sequence[Request], sampling: Sampling, listener: Listener
    ) -> list[list[Completion]]:
        """What `generate` returns. `listener` is told, in the calling thread, of each completion at most once."""
        ...
