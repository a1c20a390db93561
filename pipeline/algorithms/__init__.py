"""Algorithms of RL by name: `from verizero.pipeline.algorithms import gspo` is the algorithm that recipes call gspo."""

from typing import Any


def __getattr__(name: str) -> Any:
    from verizero.pipeline import registry
    from verizero.pipeline.errors import UnknownName

    try:
        return registry.find("algorithms", name)
    except UnknownName as exc:
        raise AttributeError(str(exc)) from exc
