"""A run as a list of items, each done once: evaluate, train a stage, evaluate, train the next round …"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.config.run import RunConfig

Kind = Literal["evaluate", "pretrain", "sft", "rl"]


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of a run. `stage` groups items for people: an evaluation belongs to the stage that it follows."""

    kind: Kind
    stage: str
    label: str
    round: int = 0
    num_steps: int = 0
    """0: as many as its data make (epochs)."""


def schedule(config: RunConfig) -> list[Item]:
    """All items of the run, in order."""
    items: list[Item] = []
    evaluates = bool(config.data.evaluation)
    if evaluates and config.evaluation.before_training:
        items.append(Item("evaluate", "base", "before training"))
    if "pretrain" in config.stages and config.pretrain is not None:
        items.append(Item("pretrain", "pretrain", "pretrain", num_steps=config.pretrain.steps or 0))
        if evaluates:
            items.append(Item("evaluate", "pretrain", "after pretrain"))
    if "sft" in config.stages and config.sft is not None:
        items.append(Item("sft", "sft", "sft", num_steps=config.sft.steps or 0))
        if evaluates:
            items.append(Item("evaluate", "sft", "after sft"))
    if "rl" in config.stages and config.rl is not None:
        for r in range(1, config.rl.rounds + 1):
            items.append(Item("rl", "rl", f"round {r}", r, config.rl.steps_per_round))
            due = r % config.evaluation.every_rounds == 0 or r == config.rl.rounds
            if evaluates and due:
                items.append(Item("evaluate", "rl", f"after round {r}", r))
    return items
