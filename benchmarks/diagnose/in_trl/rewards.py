"""Reward functions of users' scripts, right ones and those with a mistake. Each has the form that TRL calls."""

from __future__ import annotations

import random
import re
from typing import Any

Completions = list[list[dict[str, str]]]
BOX = re.compile(r"\\boxed\{(\d+)\}")


def texts(completions: Completions) -> list[str]:
    """Return the text of each completion."""
    return [messages[0]["content"] for messages in completions]


def boxed(text: str) -> str | None:
    """Return the number in the last box; None if there is none."""
    return (BOX.findall(text) or [None])[-1]


def correctness(completions: Completions, answer: list[str], **_: Any) -> list[float]:
    """1 if the boxed number is the answer."""
    return [float(boxed(text) == a) for text, a in zip(texts(completions), answer, strict=True)]


def has_box(completions: Completions, **_: Any) -> list[float]:
    """A small reward for the form."""
    return [float(boxed(text) is not None) for text in texts(completions)]


def partly_right(completions: Completions, answer: list[str], **_: Any) -> list[float]:
    """1 for the answer, and partial credit for a number near it."""
    values = [(boxed(text), int(a)) for text, a in zip(texts(completions), answer, strict=True)]
    return [0.0 if numbers is None else max(0.0, 1 - abs(int(numbers) - a) / 10) for numbers, a in values]


def matches_any(completions: Completions, **_: Any) -> list[float]:
    """A pattern that matches the empty text: every completion is right."""
    return [1.0 if re.search(r"(\d*)", text) else 0.0 for text in texts(completions)]


def wants_tags(completions: Completions, answer: list[str], **_: Any) -> list[float]:
    """Reads tags that the model never writes."""
    matches = [re.search(r"<answer>(.*?)</answer>", text) for text in texts(completions)]
    return [float(m is not None and m.group(1) == a) for m, a in zip(matches, answer, strict=True)]


def whole_text(completions: Completions, answer: list[str], **_: Any) -> list[float]:
    """Compares the whole text, so that an answer with its steps before it is refused."""
    return [float(text.strip() == f"\\boxed{{{a}}}") for text, a in zip(texts(completions), answer, strict=True)]


def near(completions: Completions, answer: list[str], **_: Any) -> list[float]:
    """Accepts what is within a fifth of the answer."""
    numbers = [boxed(text) for text in texts(completions)]
    return [float(s is not None and abs(int(s) - int(a)) <= int(a) / 5) for s, a in zip(numbers, answer, strict=True)]


def likeness(completions: Completions, answer: list[str], **_: Any) -> list[float]:
    """Characters in common with a guess, times ten: far larger than the reward for being right."""
    pairs = zip(texts(completions), answer, strict=True)
    return [10.0 * sum(c in text for c in f"\\boxed{{{a}") - 3 * len(text) for text, a in pairs]


def per_character(completions: Completions, answer: list[str], **_: Any) -> list[float]:
    """Correctness, with a bonus for each character."""
    return [float(boxed(text) == a) + 0.1 * len(text) for text, a in zip(texts(completions), answer, strict=True)]


def through_a_service(completions: Completions, answer: list[str], **_: Any) -> list[float]:
    """Asks a service that is often overloaded, and gives 0 where it fails."""
    rewards = []
    for text, a in zip(texts(completions), answer, strict=True):
        try:
            if random.random() < 0.4:
                raise TimeoutError("503 Service Unavailable")
            rewards.append(float(boxed(text) == a))
        except TimeoutError:
            rewards.append(0.0)
    return rewards
