"""Fill the batch of one RL step: with groups carried over from the last step, then with new ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from verizero.pipeline.loop.generation_ahead import MAX_OVERSAMPLING, affordable_groups, drop_stale
from verizero.pipeline.loop.phases import Phases
from verizero.pipeline.run.session import StageSetup, Workers
from verizero.pipeline.run.state import RunState
from verizero.pipeline.scoring.score import GradingTally
from verizero.pipeline.scoring.select import GROUP_KINDS, GroupKind, acceptance_after, forecast
from verizero.pipeline.types import Group, StepMetrics


@dataclass
class Batch:
    """The groups that one step trains on, and those that it sampled."""

    groups: list[Group]
    """Groups to train on: carried over, then selected. After `end_batch` no more than the recipe asks for."""
    sampled: list[Group] = field(default_factory=list)
    """All groups that this step sampled, kept or dropped."""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(GROUP_KINDS, 0))
    """The number of sampled groups that were kept, or dropped for each reason."""
    tallies: list[GradingTally] = field(default_factory=list)
    num_stale: int = 0
    """Groups that were dropped because they were too old."""
    updates: list[tuple[Sequence[Group], StepMetrics]] = field(default_factory=list)
    """The groups and the metrics of each update that was made."""
    metrics: StepMetrics = field(default_factory=dict)


def fill_batch(workers: Workers, setup: StageSetup, state: RunState, phases: Phases) -> Batch:
    """Return the groups for one update. Sampling ends when the batch is full or the refills are used up."""
    batch = begin_batch(setup, state)
    while (num_prompts := num_prompts_wanted(workers, setup, state, batch)) is not None:
        prompts = phases.next_prompts(num_prompts)
        groups, tally = phases.verify(prompts, phases.generate(prompts, len(batch.tallies)))
        add_sampled(batch, groups, tally)
        add_selected(setup, state, batch, groups, *phases.select(groups))
    end_batch(setup, state, batch)
    return batch


def begin_batch(setup: StageSetup, state: RunState) -> Batch:
    """Return a batch with the groups that are carried over from the last step."""
    young_groups, num_stale = drop_stale(setup, state, state.stage.carried)
    return Batch(young_groups, num_stale=num_stale)


def num_prompts_wanted(workers: Workers, setup: StageSetup, state: RunState, batch: Batch) -> int | None:
    """Return the number of prompts to sample next; None if the batch is full, or the refills or tokens are used up.

    If a batch is in flight its prompts come next, whatever the number.
    """
    rounds, rollouts = setup.rounds, workers.rollouts
    batch_size = rounds.prompts_per_step
    num_missing = batch_size - len(batch.groups)
    if num_missing <= 0 or len(batch.tallies) > rounds.select.max_refills:
        return None
    num_prompts = forecast(num_missing, state.stage.acceptance, MAX_OVERSAMPLING * batch_size)
    if (affordable := affordable_groups(rollouts, setup, state)) is not None:
        num_prompts = min(num_prompts, affordable)
    return None if num_prompts == 0 and not rollouts.in_flight else num_prompts


def add_sampled(batch: Batch, groups: list[Group], tally: GradingTally) -> None:
    """Note the groups of one generation, and what grading them took."""
    batch.sampled += groups
    batch.tallies.append(tally)


def add_selected(
    setup: StageSetup,
    state: RunState,
    batch: Batch,
    groups: Sequence[Group],
    selected: Sequence[Group],
    counts: Mapping[GroupKind, int],
) -> None:
    """Note the groups that were selected out of `groups`, and the number of each kind."""
    state.stage.acceptance = acceptance_after(state.stage.acceptance, len(selected), len(groups))
    young_groups, num_dropped = drop_stale(setup, state, selected)
    batch.num_stale += num_dropped
    batch.groups += young_groups
    for reason, num_groups in counts.items():
        batch.counts[reason] += num_groups


def end_batch(setup: StageSetup, state: RunState, batch: Batch) -> None:
    """Carry groups beyond the batch over to the next step, or drop them, as the recipe says."""
    rounds, stage = setup.rounds, state.stage
    num_carried_in, surplus = len(stage.carried), batch.groups[rounds.prompts_per_step :]
    batch.groups = batch.groups[: rounds.prompts_per_step]
    stage.carried = surplus if rounds.select.carry_over else []
    batch.metrics["groups/carried_in"] = float(num_carried_in)
    batch.metrics["groups/carried_out"] = float(len(stage.carried))
    batch.metrics["groups/surplus_dropped"] = float(len(surplus) - len(stage.carried))
    if setup.config.rollout.max_staleness > 0:
        batch.metrics["groups/stale"] = float(batch.num_stale)
