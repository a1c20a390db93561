"""Continuing a stage of which the recipe now asks more rounds, steps or epochs.

What the stage did so far stays valid if none of it depended on its length. A learning rate that is falling does, and so
does a temperature that goes to `temperature_end`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verizero.pipeline.config.load import parse
from verizero.pipeline.config.run import RunConfig, section_class_of
from verizero.pipeline.config.sections import OptimizerConfig
from verizero.pipeline.config.stages import RoundsConfig
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.run.schedule import schedule
from verizero.pipeline.run.state import RunState
from verizero.pipeline.train import optimizer


def differs_only_in_length(kind: str, before: dict[str, Any], now: dict[str, Any]) -> bool:
    """True if the fields of two fingerprints differ only in rounds, steps or epochs, which both name."""
    names = {f"{kind}.{name}" for name in section_class_of(kind).lengths}
    changed = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    return changed <= names and all(before.get(n) is not None and now.get(n) is not None for n in changed)


def why_not_longer(kind: str, before: dict[str, Any], now: dict[str, Any], state: RunState) -> str | None:
    """Return the reason, in words, why the stage at `state` cannot continue with the new length; None if it can."""
    in_rounds = issubclass(section_class_of(kind), RoundsConfig)
    done = state.step_in_stage if in_rounds else state.step or state.stage.last_steps
    if done == 0:
        return None
    if state.step == 0 and not state.stage.last_length:
        return "its last checkpoint is of an earlier version of verizero, which did not write down its length"
    totals = [_steps(kind, fields) for fields in (before, now)]
    if totals[1] is not None and totals[1] <= done:
        return f"it has done {done} of its steps already"
    if totals[1] is None and now[f"{kind}.epochs"] < before[f"{kind}.epochs"]:
        return "it may have passed their end already"
    each = f"{kind}.steps_per_round"
    if in_rounds and before[each] != now[each] and done > before[each]:
        return f"{each} can only change before round 2 begins; raise {kind}.rounds"
    if now.get(f"{kind}.algorithm.temperature_end") is not None:
        return f"{kind}.algorithm.temperature_end made the temperature of its steps depend on their number"
    for section in (f"{kind}.optimizer", f"{kind}.critic"):
        numbers = {name: now.get(f"{section}.{name}") for name in OptimizerConfig.model_fields}
        if numbers["learning_rate"] is not None and _has_fallen(OptimizerConfig.model_validate(numbers), done, totals):
            return f"{section}.schedule={numbers['schedule']} has lowered its learning rate towards the old end already"
    return None


def _steps(kind: str, fields: dict[str, Any]) -> int | None:
    """Return the steps of the whole stage; None if they follow from the data."""
    if issubclass(section_class_of(kind), RoundsConfig):
        return int(fields[f"{kind}.rounds"] * fields[f"{kind}.steps_per_round"])
    steps: int | None = fields[f"{kind}.steps"]
    return steps


def _has_fallen(config: OptimizerConfig, done: int, totals: list[int | None]) -> bool:
    # Without the warm-up, which ends at the same update in both, and may have several updates in a step.
    numbers = config.model_copy(update={"warmup_steps": 0})
    if numbers.schedule == "constant":
        return False
    return any(total is None or optimizer.schedule(numbers, done, total) < numbers.rate for total in totals)


def with_more_steps(config: RunConfig, steps: int, base: Path) -> RunConfig:
    """Return the recipe with `steps` more steps in its last stage; `base` is its folder.

    Raises: ConfigError if the stage has no steps of its own, or consists of rounds of which they are no multiple.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ConfigError(f"steps must be a whole number of at least 1, got {steps!r}")
    stage = config.stages[-1]
    section: Any = config.section_of(stage)
    if isinstance(section, RoundsConfig):
        num_rounds, rest = divmod(steps, section.steps_per_round)
        more = {"rounds": section.rounds + num_rounds}
        if rest:
            more = {"steps_per_round": section.steps_per_round + steps}
        if rest and section.rounds > 1:
            raise ConfigError(
                f"steps={steps}: stage {stage.name} consists of rounds of {section.steps_per_round} steps; give a "
                f"multiple, e.g. {steps - rest + section.steps_per_round}"
            )
    elif "steps" in section.lengths and section.steps is not None:
        more = {"steps": section.steps + steps}
    else:
        raise ConfigError(
            f"steps={steps}: the last stage, {stage.name}, does not count its length in steps; raise "
            f"{', '.join(f'{stage.kind}.{name}' for name in section.lengths) or 'another'} and start it again"
        )
    tree = config.model_dump(mode="json", exclude_unset=True)
    if stage.changes or sum(s.kind == stage.kind for s in config.stages) > 1:
        # In the stage alone: others of its kind share the section.
        changed = stage.model_copy(update={"changes": {**stage.changes, **more}})
        tree["stages"][-1] = changed.model_dump(mode="json")
    else:
        tree[stage.kind] |= more
    return parse(tree, source=f"{config.name} with more steps", base=base)


def reopen_longer_stage(config: RunConfig, state: RunState) -> None:
    """Reopen a finished stage if the recipe now asks for more of it: take back its last item."""
    stage = next((s for s in config.stages if s.name == state.stage.name), None)
    if stage is None:
        return
    length = config.section_of(stage).length_of_item
    if state.step == 0 and state.stage.last_length and length > state.stage.last_length:
        state.num_done, state.step, state.is_evaluated = state.num_done - 1, state.stage.last_steps, False
    if not state.is_at_end_of_stage(schedule(config)):
        state.stage_ends.pop(stage.name, None)
