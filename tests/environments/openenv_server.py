"""A server of the package OpenEnv with a small game: run by path under the interpreter that has it.

python openenv_server.py PORT SESSIONS
"""

import random
import sys

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_app


class GuessAction(Action):
    """Guess a number."""

    number: int


class GuessObservation(Observation):
    """Its answer."""

    text: str = ""


class Guess(Environment):
    """A number of 1 to 32, drawn with the seed."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State()

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.number = random.Random(seed).randint(1, kwargs.get("high", 32))
        self.left = 5
        self._state = State(episode_id=episode_id)
        return GuessObservation(text="1 to 32?")

    def step(self, action, timeout_s=None, **kwargs):
        self.left -= 1
        self._state.step_count += 1
        if action.number == self.number:
            return GuessObservation(text="yes", done=True, reward=True)
        if self.left == 0:
            return GuessObservation(text="no", done=True, reward=0)
        return GuessObservation(text="higher" if action.number < self.number else "lower")

    @property
    def state(self):
        return self._state


if __name__ == "__main__":
    app = create_app(Guess, GuessAction, GuessObservation, max_concurrent_envs=int(sys.argv[2]))
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
