"""A run as a list of items, each done once: evaluate, train a stage, evaluate, train the next round …"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.config.run import RunConfig
from pipeline.config.stages import BASE, Stage, StageSection


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of a run: an evaluation, or one item of a stage, done by the module of its kind."""

    kind: str
    """"evaluate", or the kind of the stage."""
    stage: str
    """Its name; an evaluation belongs to the stage that it follows."""
    label: str
    round: int = 0
    num_steps: int = 0
    """0: as many as its data make (epochs)."""


def schedule(config: RunConfig) -> list[Item]:
    """All items of the run, in order."""
    items: list[Item] = []
    if config.data.evaluation and config.evaluation.before_training:
        items.append(Item("evaluate", BASE, "before training"))
    for stage in config.stages:
        items += _items(config, stage, config.section_of(stage))
    return items


def _items(config: RunConfig, stage: Stage, section: StageSection) -> Iterator[Item]:
    """The items of one stage: all in one, or rounds; and evaluations between and after them."""
    sizes = section.steps_of_items()
    for number, num_steps in enumerate(sizes, 1):
        round_ = number if section.in_rounds else 0
        label = stage.name
        if section.in_rounds:
            label = f"round {number}" if stage.name == "rl" else f"{stage.name} round {number}"
        yield Item(stage.kind, stage.name, label, round_, num_steps)
        due = not section.in_rounds or number % config.evaluation.every_rounds == 0 or number == len(sizes)
        if config.data.evaluation and section.trains_policy and due:
            yield Item("evaluate", stage.name, f"after {label}", round_)


def position(items: list[Item], num_done: int, is_evaluated: bool) -> int:
    """Index of what is next, after `num_done` items of stages, and the evaluation behind them if `is_evaluated`.

    Counted so, a run goes on where it was even if its recipe now evaluates more or less often.
    """
    for index, item in enumerate(items):
        if num_done == 0 and not (item.kind == "evaluate" and is_evaluated):
            return index
        num_done -= item.kind != "evaluate"
    return len(items)
