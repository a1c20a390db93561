"""An environment whose answers tell nothing: every number and word of them is drawn at random.

A policy that gains as much here has not learnt from what it observes. Used by `benchmarks/episodes.py --deaf`.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

from pydantic import Field

from verizero.pipeline.data.generators.sql import NAMES
from verizero.pipeline.environments.base import Environment, EnvironmentParams, Reply, Start, load
from verizero.pipeline.seeds import stream
from verizero.pipeline.types import Message, Prompt

WORDS: dict[str, tuple[str, ...]] = {
    "higher": ("higher", "lower"),
    "lower": ("higher", "lower"),
    **dict.fromkeys(NAMES, tuple(NAMES)),
}
"""Words that are replaced, each by one of these; single letters are replaced by letters."""
TOKEN = re.compile(r"\d|[a-z]+")


class Params(EnvironmentParams):
    """The environment that is made deaf."""

    name: str
    params: dict[str, Any] = Field(default_factory=dict)


class Deaf:
    """Plays the real environment and blurs what it answers."""

    def __init__(self, inner: Environment, seed: int) -> None:
        self.inner, self._draw = inner, stream(seed, "deaf")

    def start(self) -> Start:
        """Begin as the real environment does."""
        return self.inner.start()

    def step(self, message: Message) -> Reply:
        """Answer with a text of the same form that tells nothing; verdict and end are the real ones."""
        reply = self.inner.step(message)
        return replace(
            reply, messages=tuple(replace(m, content=blurred(m.content, self._draw)) for m in reply.messages)
        )

    def close(self) -> None:
        """Close the real environment."""
        self.inner.close()


def blurred(text: str, draw: random.Random) -> str:
    """Return a text of the same form with other digits, letters and words."""

    def other(match: re.Match[str]) -> str:
        word = match.group()
        if word.isdigit():
            return str(draw.randrange(10))
        if len(word) == 1:
            return draw.choice("abcdefghijklmnopqrstuvwxyz")
        return draw.choice(WORDS.get(word, (word,)))

    return TOKEN.sub(other, text)


def deaf(params: Params, prompt: Prompt, task_seed: int, sample_seed: int) -> Deaf:
    """Return a deaf episode of the named environment."""
    inner = load(params.name).bind(params.params).make(prompt, task_seed, sample_seed)
    return Deaf(inner, sample_seed)
