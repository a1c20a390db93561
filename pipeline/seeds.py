"""One root seed, many named streams: the same name gives the same numbers on every machine and in every order."""

from __future__ import annotations

import hashlib
import random

ESCAPES = str.maketrans({"\x1e": "\x1e0", "\x1f": "\x1e1"})
"""So that a name that holds the separator is not two names."""


def derive(root: int, *names: str | int) -> int:
    """The 63-bit seed of the stream `names` under `root`; independent of every other stream and of call order.

    Example: derive(0, "rollout", 3, "arithmetic/17+25", 5)
    """
    text = "\x1f".join([str(root), *(f"{type(n).__name__}:{n}".translate(ESCAPES) for n in names)])
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big") >> 1


def stream(root: int, *names: str | int) -> random.Random:
    """A `random.Random` for the stream `names`."""
    return random.Random(derive(root, *names))
