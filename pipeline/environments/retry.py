"""One question with several tries: a wrong answer is answered with "wrong, try again", until none is left."""

from __future__ import annotations

from pydantic import Field

from verizero.pipeline.environments._answers import exact
from verizero.pipeline.environments.base import EnvironmentParams, Reply, Start
from verizero.pipeline.types import Message, Prompt

EXAMPLE = Prompt("retry/1", "17+25=", "environment", "42")


class Params(EnvironmentParams):
    """The tries, and the words after a wrong one."""

    tries: int = Field(3, ge=1)
    words: str = Field("wrong, try again", min_length=1)


class Retry:
    """One question. An answer is right if it equals the row's, letter by letter."""

    def __init__(self, params: Params, prompt: Prompt) -> None:
        """`prompt.reference` is the right answer."""
        self.params, self.reference, self.left = params, prompt.reference, params.tries

    def start(self) -> Start:
        """Show the row's question."""
        return Start(state=f"{self.left} left")

    def step(self, message: Message) -> Reply:
        """Compare the answer; ask again if it is wrong and a try is left."""
        self.left -= 1
        verdict = exact(message, self.reference)
        if verdict.is_correct or self.left == 0:
            return Reply(done=True, outcome=verdict)
        return Reply((Message("user", self.params.words),), state=f"{self.left} left")

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def environment(params: Params, prompt: Prompt, task_seed: int, sample_seed: int) -> Retry:
    """Return a new episode."""
    return Retry(params, prompt)
