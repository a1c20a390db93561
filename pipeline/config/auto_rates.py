"""Learning rates that a recipe leaves open, from the table of `rates.py`; and rates that are far from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from verizero.pipeline.config.merge import merge
from verizero.pipeline.config.rates import learning_rate
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.stages import StageSection

FAR = 10.0
"""A rate that is more than so many times higher or lower than the table's is worth a word."""


def table_rate(config: RunConfig, section: StageSection, num_parameters: int) -> float:
    """Return the table's rate for what the stage trains: the whole model, or adapters of it."""
    # A reward model trains all weights of a copy, unless the base is quantised.
    is_whole = section.learns == "ranks" and config.model.quantize is None
    return learning_rate(section.learns, num_parameters, config.train.lora is not None and not is_whole)


def leaves_rates_open(config: RunConfig) -> bool:
    """True if a stage's learning rate is null."""
    return any(rate is None for stage in config.stages for _, rate in _rates(config.section_of(stage)))


def with_rates(config: RunConfig, num_parameters: int) -> RunConfig:
    """Return the recipe with the table's learning rates in place of those that are null.

    num_parameters: of the policy.
    """
    sections: dict[str, Any] = {}
    for kind in config.kinds():
        section = getattr(config, kind)
        if isinstance(section, StageSection):
            sections[kind] = _with_rate(section, table_rate(config, section, num_parameters))
    config = config.model_copy(update=sections)
    stages = []
    for stage in config.stages:
        section = config.section_of(stage)
        rate = table_rate(config, section, num_parameters)
        missing = {field: {"learning_rate": rate} for field, value in _rates(section) if value is None}
        changes = merge(stage.changes, missing) if missing else stage.changes
        stages.append(stage.model_copy(update={"changes": changes}))
    return config.model_copy(update={"stages": tuple(stages)})


def far_rates(config: RunConfig, num_parameters: int) -> Iterator[tuple[str, str, float, float]]:
    """Yield (stage, its field, the rate there, the table's) for each rate that is far from the table."""
    for stage in config.stages:
        section = config.section_of(stage)
        near = table_rate(config, section, num_parameters)
        for field, rate in _rates(section):
            if field == "optimizer" and rate is not None and not near / FAR <= rate <= near * FAR:
                yield stage.name, f"{stage.kind}.{field}.learning_rate", rate, near


def _rates(section: StageSection) -> Iterator[tuple[str, float | None]]:
    for field, optimizer in section.optimizers():
        yield field, optimizer.learning_rate


def _with_rate(section: StageSection, rate: float) -> StageSection:
    missing = [field for field, value in _rates(section) if value is None]
    return section.model_copy(
        update={field: getattr(section, field).model_copy(update={"learning_rate": rate}) for field in missing}
    )
