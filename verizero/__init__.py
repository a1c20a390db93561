"""Train reasoning models with rewards that can be verified.

    import verizero as vz

    run = vz.train("HuggingFaceTB/SmolLM2-135M-Instruct", "qa.jsonl", reward=is_right)

docs/python.md has all of it. The parts of the package are links to the folders next to it in the repository.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verizero.pipeline.host import openmp  # noqa: F401  before anything imports torch

if TYPE_CHECKING:
    from verizero.pipeline.api.measure import evaluate, try_out
    from verizero.pipeline.api.own_loop import OwnLoop, open
    from verizero.pipeline.api.train import train
    from verizero.pipeline.api.trained import TrainedRun
    from verizero.pipeline.errors import VerizeroError
    from verizero.pipeline.run.callbacks import STOP, Event
    from verizero.pipeline.types import Attempt, Verdict
    from verizero.verifiers.base import verifier

__all__ = [
    "STOP", "Attempt", "Event", "OwnLoop", "TrainedRun", "Verdict", "VerizeroError", "evaluate", "open", "train",
    "try_out", "verifier",
]  # fmt: skip
_HOMES = {
    "STOP": "verizero.pipeline.run.callbacks",
    "Attempt": "verizero.pipeline.types",
    "Event": "verizero.pipeline.run.callbacks",
    "OwnLoop": "verizero.pipeline.api.own_loop",
    "TrainedRun": "verizero.pipeline.api.trained",
    "Verdict": "verizero.pipeline.types",
    "VerizeroError": "verizero.pipeline.errors",
    "evaluate": "verizero.pipeline.api.measure",
    "open": "verizero.pipeline.api.own_loop",
    "train": "verizero.pipeline.api.train",
    "try_out": "verizero.pipeline.api.measure",
    "verifier": "verizero.verifiers.base",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: the command line needs none of them to start.

    Raises: RunError, with what to install, where it needs a package that training brings.
    """
    if name not in _HOMES:
        raise AttributeError(f"module 'verizero' has no attribute {name!r}; public names: {', '.join(__all__)}")
    import importlib

    from verizero.pipeline.errors import ConfigError, boundary

    with boundary(ConfigError, f"verizero.{name}"):
        return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
