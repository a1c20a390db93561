"""What a rollout engine is: tokens in, tokens out, from weights of a known version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pipeline.types import FinishReason


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt in tokens and one seed for each response wanted; a response depends on its own seed only."""

    prompt_ids: tuple[int, ...]
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. temperature 0 is greedy; top_p 1 and top_k 0 keep the whole vocabulary."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """One response. `logprobs` are those of its tokens at the sampling temperature (at 1 when greedy)."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason


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
