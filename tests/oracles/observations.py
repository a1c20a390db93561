"""A slow double of the loss of what environments answered: token by token, from the beginnings of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Shown = tuple[tuple[int, ...], int]
"""The tokens of a row up to and with one that answered the policy, and the row's number."""


def answers(rows: Sequence[Sequence[Any]]) -> list[Shown]:
    """Every token of an episode's rows (of turns) that answered the policy, each once, with all tokens before it."""
    known: set[tuple[int, ...]] = set()  # beginnings of earlier rows
    out: list[Shown] = []
    for number, turns in enumerate(rows):
        ids: tuple[int, ...] = ()
        beginnings = []
        for place, turn in enumerate(turns):
            left = len(turn.observed)
            for token in turn.observed:
                ids = (*ids, token)
                beginnings.append(ids)
                is_prompt = place == 0 if turn.num_new is None else left > turn.num_new
                left -= 1
                if turn.trains and not is_prompt and len(ids) > 1 and ids not in known:
                    out.append((ids, number))
            for token in turn.sampled:
                ids = (*ids, token)
                beginnings.append(ids)
        known.update(beginnings)
    return out


def observation_loss(coef: float, shown: Sequence[Shown], logprob: Callable[[tuple[int, ...]], Any]) -> Any:
    """Coef times the mean negative log-prob of the last token of each beginning; 0 where there is none."""
    total: Any = 0.0
    for ids, _ in shown:
        total = total - logprob(ids)
    return coef * total / len(shown) if shown else 0.0
