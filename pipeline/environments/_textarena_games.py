"""Far side of the environment `textarena`: runs by path under the interpreter that has that package.

    python -P far.py '{"path": "_textarena_games.py:game", "threads": 1}'

The package uses the global `random` and seeds it at each reset. Episodes share a process, one call at a time. So the
state of the random numbers is set before each call of an episode and saved after it, and episodes do not affect each
other.
"""

from __future__ import annotations

import difflib
import importlib
import random
import sys
from contextlib import contextmanager
from typing import Any

INSTALL = "python -m pip install 'textarena>=0.7.4,<0.8'"
PLAYER_ACTION = "PLAYER_ACTION"
NOTHING = "(nothing new)"
KINDS = ("corpora", "taggers", "tokenizers", "models")
"""Folders of NLTK's data."""

try:
    ta: Any = importlib.import_module("textarena")
except ImportError as exc:
    raise ImportError(f"{exc}, for {sys.executable}; run there: {INSTALL}") from exc


def _find_data(names: Any, *_: Any, **__: Any) -> bool:
    """Replace `nltk.download`, which games call while they are imported: accept data that exists, download nothing."""
    data = importlib.import_module("nltk").data
    for name in [names] if isinstance(names, str) else names:
        for path in [f"{kind}/{name}{end}" for kind in KINDS for end in ("", ".zip")]:
            try:
                data.find(path)
                break
            except LookupError:
                continue
        else:
            raise FileNotFoundError(
                f"the game needs NLTK's data {name!r}, which is not here; on a machine with a network run "
                f"python -m nltk.downloader {name}, copy its folder nltk_data, and set NLTK_DATA to it"
            )
    return True


class RandomState:
    """The state of the global random numbers in one episode."""

    def __init__(self, seed: int) -> None:
        """`seed` begins them."""
        self._states: Any = None
        self._seed = seed

    @contextmanager
    def in_place(self) -> Any:
        """Set the global random numbers to this episode's state within the block, and save the state after it."""
        numpy: Any = sys.modules.get("numpy")
        before = random.getstate(), numpy.random.get_state() if numpy else None
        if self._states is None:
            random.seed(self._seed)
        else:
            random.setstate(self._states[0])
        # A game may import numpy in the middle.
        if numpy and (self._states is None or self._states[1] is None):
            numpy.random.seed(self._seed % 2**32)
        elif numpy:
            numpy.random.set_state(self._states[1])
        try:
            yield
        finally:
            self._states = random.getstate(), numpy.random.get_state() if numpy else None
            random.setstate(before[0])
            if numpy:
                numpy.random.set_state(before[1])


class Game:
    """One game, in which the policy has a seat."""

    def __init__(self, params: dict[str, Any], seeds: tuple[int, int]) -> None:
        """`seeds`: of the game, and of the opponent."""
        self._params, self._seed = params, seeds[0]
        self._opponent: Any = params.get("opponent")
        self._seat = int(params.get("seat") or 0)
        self._random = RandomState(seeds[0])
        self._choices = random.Random(seeds[1])
        self._moves = 0
        self._env: Any = None

    def start(self) -> Any:
        """Return the rules and the first observation."""
        _import(self._params["game"])
        with self._random.in_place():
            self._env = _make_game(self._params["game"], self._params.get("options") or {})
            self._env.reset(num_players=2 if self._opponent else 1, seed=self._seed)
            done = self._play_others(False)
            if done:
                raise RuntimeError("the game ended before the policy's first move; give it the other seat")
            return {"messages": [self._observation()]}

    def step(self, message: dict[str, Any]) -> Any:
        """Make the policy's move, and those of its opponent."""
        with self._random.in_place():
            done = self._play_others(self._act(message["content"]))
            if not done:
                return {"messages": [self._observation()]}
            rewards, info = self._env.close()
            reward = (rewards or {}).get(self._seat)
            own_info = (info or {}).get(self._seat) or {}
            reason = str(own_info.get("reason") or "")
            if isinstance(reward, str) and own_info.get("invalid_move"):
                # Some games of the package give the reason of an invalid move in place of the reward.
                reward, reason = None, f"Invalid Move: {reward}"
            elif not isinstance(reward, (int, float)):
                raise RuntimeError(f"the game ended with the rewards {rewards!r}, which have no number for the policy")
            return {"done": True, "reward": reward, "answer": reason}

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _act(self, text: str) -> bool:
        if self._params.get("brackets", True) and "[" not in text and "]" not in text:
            text = f"[{text}]"
        return bool(self._env.step(text)[0])

    def _play_others(self, done: bool) -> bool:
        """Play the opponent until it is the policy's turn. Return True if the game is over."""
        state = self._env.state
        while not done and state.current_player_id != self._seat:
            self._env.get_observation()
            done = self._opponents_move(state)
        return done

    def _opponents_move(self, state: Any) -> bool:
        """Make the first of the opponent's moves that the game allows; undo the effects of moves that it refused."""
        moves = list(self._opponent["moves"])
        if self._opponent.get("pick") == "in_order":
            first = self._moves % len(moves)
            moves = moves[first:] + moves[:first]
        else:
            self._choices.shuffle(moves)
        self._moves += 1
        allowance, seen = state.error_allowance, state.observations[self._seat]
        for move in moves:
            length, errors = len(seen), state.error_count
            state.error_allowance = sys.maxsize
            try:
                done = bool(self._env.step(move)[0])
            finally:
                state.error_allowance = allowance
            if state.error_count <= errors:
                return done
            del seen[length:]
            self._env.get_observation()
        raise ValueError(f"the game allows none of the opponent's moves {moves[:20]}; add some to opponent.moves")

    def _observation(self) -> dict[str, Any]:
        player, parts = self._env.get_observation()
        names, lines = self._env.state.role_mapping, []
        for source, text, kind in parts:
            # The policy's own moves are in its turns. Some games repeat them in the game's name.
            is_own = source == player or (source == -1 and not self._opponent)
            if getattr(kind, "name", kind) == PLAYER_ACTION and is_own:
                continue
            lines.append(str(text) if source == -1 else f"[{names.get(source, f'Player {source}')}] {text}")
        return {"role": "user", "content": "\n".join(lines).strip() or NOTHING}


def _import(game: str) -> None:
    """Import the game before its random numbers are seeded. Raises: ValueError if the package has none of that name."""
    registry = importlib.import_module("textarena.envs.registration").ENV_REGISTRY
    if game not in registry:
        near = difflib.get_close_matches(game, list(registry), n=3, cutoff=0.4)
        raise ValueError(f"textarena has no game {game!r}" + (f"; did you mean {' or '.join(near)}?" if near else ""))
    nltk: Any = importlib.import_module("nltk")
    nltk.download = _find_data
    entry = registry[game].entry_point
    if isinstance(entry, str):
        importlib.import_module(entry.partition(":")[0])


def _make_game(game: str, options: dict[str, Any]) -> Any:
    """Return the game without its wrappers, which repeat the whole conversation in every observation."""
    env = ta.make(game, **options)
    while isinstance(env, ta.Wrapper):
        env = env.env
    return env


def game(params: dict[str, Any], prompt: dict[str, Any], task_seed: int, sample_seed: int) -> Game:
    """Return a game that `start` begins. A row's answer {"seed": number} replaces the task's seed."""
    reference = prompt.get("reference")
    row_seed = reference.get("seed") if isinstance(reference, dict) else None
    return Game(params, (task_seed if row_seed is None else int(row_seed), sample_seed))
