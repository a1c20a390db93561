"""A letter to find in a few tries; each wrong one is answered with "before" or "after"."""

from __future__ import annotations

from pydantic import Field

from verizero.pipeline.environments.base import EnvironmentParams, Reply, Start
from verizero.pipeline.types import Message, Prompt, Verdict

EXAMPLE = Prompt("c", "letter?", "environment", "c")
"""The prompt that `verizero environment --check` plays."""


class Params(EnvironmentParams):
    """Parameters of the recipe; a wrong one is refused when the recipe is loaded."""

    tries: int = Field(3, ge=1, description="letters that may be named")


class Game:
    """One episode: an object is made for each, and used once.

    An exception here is not a wrong move: the episode has no reward, and is counted. What the policy does wrong is
    answered with a message. Use no clock and no random numbers but of `verizero.pipeline.seeds.stream(task_seed, ...)`,
    so that a killed run can be repeated; a class that cannot has the attribute `deterministic = False`.
    """

    def __init__(self, params: Params, letter: str) -> None:
        """`letter` is to be found."""
        self.letter, self.left = letter, params.tries

    def start(self) -> Start:
        """Return the beginning. Without messages the policy reads the row's question."""
        return Start()

    def step(self, message: Message) -> Reply:
        """Answer what the policy wrote, or end the episode with a verdict."""
        self.left -= 1
        letter = message.content.strip()
        if letter == self.letter:
            return Reply(done=True, outcome=Verdict("graded", 1.0, "found", letter))
        if self.left == 0:
            return Reply(done=True, outcome=Verdict("graded", 0.0, "out_of_tries", letter[:20]))
        return Reply((Message("user", "before" if self.letter < letter else "after"),))

    def close(self) -> None:
        """End what the episode holds: nothing here."""


def letter_game(params: Params, prompt: Prompt, task_seed: int, sample_seed: int) -> Game:
    """Return a new game for a row, whose answer is the letter.

    `task_seed` is equal for all episodes of a prompt, `sample_seed` differs.
    """
    return Game(params, str(prompt.reference))
