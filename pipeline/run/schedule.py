"""The schedule of a run: a list of items, each done once (evaluate, train a stage, evaluate, train a round …)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.stages import BASE, Stage, StageSection

EVALUATION = "evaluate"
"""Kind of the items that measure the policy."""


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a run: an evaluation, or one piece of a stage, done by the module of its kind."""

    kind: str
    """`EVALUATION`, or the kind of the stage."""
    stage: str
    """Name of the stage. An evaluation belongs to the stage that it follows."""
    label: str
    round: int = 0
    num_steps: int = 0
    """0: as many as the data make (epochs)."""

    @property
    def is_evaluation(self) -> bool:
        """True if the item measures the policy, and does nothing of a stage."""
        return self.kind == EVALUATION


def schedule(config: RunConfig) -> list[Item]:
    """Return all items of the run, in order."""
    items: list[Item] = []
    if config.data.evaluation and config.evaluation.before_training:
        items.append(Item(EVALUATION, BASE, "before training"))
    for stage in config.stages:
        items += _items(config, stage, config.section_of(stage))
    return items


def _items(config: RunConfig, stage: Stage, section: StageSection) -> Iterator[Item]:
    """Yield the items of one stage, a single one or its rounds, with the evaluations between and after them."""
    sizes = section.steps_of_items()
    for number, num_steps in enumerate(sizes, 1):
        round_ = number if section.in_rounds else 0
        label = stage.name
        if section.in_rounds:
            label = f"round {number}" if stage.name == "rl" else f"{stage.name} round {number}"
        yield Item(stage.kind, stage.name, label, round_, num_steps)
        due = not section.in_rounds or number % config.evaluation.every_rounds == 0 or number == len(sizes)
        if config.data.evaluation and section.trains_policy and due:
            yield Item(EVALUATION, stage.name, f"after {label}", round_)
