"""Tables of words, written as plain text so that they read as lists."""

from __future__ import annotations


def in_order(text: str) -> list[str]:
    """Return the words of `text`, which are separated by space, in their order."""
    return text.split()


def words_of(text: str) -> frozenset[str]:
    """Return the words of `text` as a set."""
    return frozenset(text.split())


def meanings(text: str) -> dict[str, str]:
    """Return a dictionary from each name to its meaning; a line holds one meaning and then all names for it."""
    lines = (line.split() for line in text.strip().splitlines())
    return {name: meaning for meaning, *names in lines for name in names}
