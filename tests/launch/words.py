"""What the runs of these tests are asked: by a launcher of several hosts too, which loads nothing that trains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from verizero.pipeline.config.run import RunConfig

CHANGES = (
    "stages=[rl]", "model.create=null", "rl.rounds=1", "rl.steps_per_round=5", "rl.prompts_per_step=5",
    "evaluation.before_training=false", "launch.gpus_per_node=2", "rl.optimizer.eps=1e-5",
)  # fmt: skip
"""With the default eps of 1e-8 a gradient near zero, which is rounding alone, would make a step of full size."""


def overrides(recipe: Path, name: str, *more: str) -> list[str]:
    return [*CHANGES, f"model.path={recipe.parent / 'start' / 'model'}", f"name={name}", *more]


def words_of(recipe: Path, changes: Sequence[str]) -> list[str]:
    """The command line of those changes."""
    return ["train", str(recipe), "--no-prefect", *(w for c in changes for w in ("--set", c))]


def folder_of(config: RunConfig) -> Path:
    return Path(config.output) / config.name
