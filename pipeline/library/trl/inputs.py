"""Rows and reward functions of a script of TRL: checked, and as a recipe names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.library.columns import Guess, guess
from verizero.pipeline.library.functions import verifier_of
from verizero.verifiers._reward_functions import RewardFunction

PROMPT = "prompt"
"""The column of questions in data sets of TRL."""
LOOKED_AT = 50
NO_MEANING = ("id", "system", "demonstration", "domain", "verifier", "environment")
"""Columns that mean something in other data of this project, and nothing in that of a script of TRL."""
STATE = frozenset({"trainer_state", "environments"})
"""Arguments that TRL's trainer gives a reward function, and graders here cannot."""


def rows_of(data: Any, name: str) -> list[dict[str, Any]]:
    """Return the rows of a data set. Raises: ConfigError where they are not in memory, or have no prompts."""
    if data is None or isinstance(data, str | Path):
        raise ConfigError(f"{name}={data!r}; give a list of dicts or a Dataset, e.g. of datasets.load_dataset")
    if isinstance(data, Mapping) or not hasattr(data, "__len__") or not hasattr(data, "__iter__"):
        remedy = "its split" if isinstance(data, Mapping) else "list(data.take(n)) for its first n rows"
        raise ConfigError(f"{name} is {type(data).__name__}, which has no number of rows; give {remedy}")
    rows = [dict(row) for row in data]
    for number, row in enumerate(rows, 1):
        if PROMPT not in row:
            raise ConfigError(
                f"{name} has no column {PROMPT!r} in row {number}; its columns are {', '.join(row)}; rename the one "
                f"with the question: data.rename_column('question', {PROMPT!r})"
            )
    if not rows:
        raise ConfigError(f"{name} has no rows")
    for column in ("image", "images"):
        if rows[0].get(column) is not None:
            raise ConfigError(f"{name} has a column {column!r}, and policies read text alone; drop it")
    return rows


def rewards_of(functions: Any, weights: Sequence[float] | None) -> list[Any]:
    """Return the reward functions. Raises: ConfigError for what is none, or for another number of weights."""
    rewards = list(functions) if isinstance(functions, list | tuple) else [functions]
    for reward in rewards:
        if reward is None:
            raise ConfigError("reward_funcs is not given; give a function f(completions, **columns) -> list")
        if hasattr(reward, "save_pretrained") or (isinstance(reward, str) and ("/" in reward or Path(reward).is_dir())):
            what = reward if isinstance(reward, str) else type(reward).__name__
            raise ConfigError(
                f"reward_funcs has {what!r}, a model that scores; give a function that calls it, or use the verifier "
                "reward_model in a recipe (docs/verifiers.md)"
            )
        if callable(reward) and (state := RewardFunction.of(reward).arguments & STATE):
            raise ConfigError(
                f"a reward function asks for {min(state)!r}, and the process that grades knows of no trainer; drop "
                "that argument"
            )
    if weights is not None and len(weights) != len(rewards):
        raise ConfigError(f"reward_weights has {len(weights)} numbers for {len(rewards)} reward functions")
    return rewards


def meaning_of(rows: list[dict[str, Any]], rewards: list[Any]) -> Guess:
    """Return the meaning of the columns: the question is `prompt`, and all others are for reward functions.

    Rows need no answer unless a function of another form than TRL's asks for it.
    """
    answer: Any = None
    functions: list[Callable[..., Any]] = [r for r in rewards if not isinstance(r, str)]
    if len(functions) < len(rewards) or any(RewardFunction.of(f).reads_reference for f in functions):
        answer = guess(rows[:LOOKED_AT], "train_dataset").mapping["answer"]
    mapping = {"question": PROMPT, "answer": answer, **dict.fromkeys(NO_MEANING)}
    return Guess("prompts", mapping, None, f"train_dataset: {len(rows)} rows, question is {PROMPT!r}")


def grading_of(rewards: list[Any], folder: Path, weights: Sequence[float] | None) -> dict[str, Any]:
    single = len(rewards) == 1 and weights is None
    return verifier_of(rewards[0] if single else rewards, folder, weights, None)
