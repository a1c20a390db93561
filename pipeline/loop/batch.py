"""Fill the batch of one RL step: with groups carried over from the last step, then with new ones.

And what is generated ahead: which batches start early, which groups are too old, and the budget of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from verizero.pipeline.config.rl import max_group_tokens
from verizero.pipeline.loop.phases import Phases
from verizero.pipeline.run.algorithm import response_kinds
from verizero.pipeline.run.rollouts import RolloutSource
from verizero.pipeline.run.session import StageSetup, Workers
from verizero.pipeline.run.state import InFlightBatch, Item, RunState
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


MAX_OVERSAMPLING = 4
"""At most this many times the prompts of a batch are sampled at once."""


def is_out_of_tokens(source: RolloutSource, setup: StageSetup, state: RunState) -> bool:
    """True if another step might exceed the recipe's budget of tokens."""
    num_affordable = affordable_groups(source, setup, state)
    return num_affordable is not None and num_affordable < setup.rounds.prompts_per_step and not source.in_flight


def affordable_groups(source: RolloutSource, setup: StageSetup, state: RunState) -> int | None:
    """Return the number of groups of full length that the budget of tokens allows; None: no budget."""
    rounds = setup.rounds
    if rounds.max_tokens is None:
        return None
    greedy = setup.parts is not None and setup.parts.needs_greedy
    are_played = source.generation.episode_setup is not None
    tokens_each = max_group_tokens(setup.config, rounds, greedy, are_played)
    return max(0, (rounds.max_tokens - state.stage.num_tokens) // tokens_each - prompts_in_flight(source))


def prompts_in_flight(source: RolloutSource) -> int:
    """Return the number of prompts in the batches in flight, which are for later steps."""
    return sum(len(batch.prompts) for batch in source.in_flight)


def drop_stale(setup: StageSetup, state: RunState, groups: Sequence[Group]) -> tuple[list[Group], int]:
    """Return the groups that are not older than `rollout.max_staleness`, and the number of dropped ones.

    If it is 0, none is dropped: there only `select.carry_over` can make a group old.
    """
    max_age = setup.config.rollout.max_staleness
    young_groups = [g for g in groups if max_age == 0 or age_of(state, g) <= max_age]
    return young_groups, len(groups) - len(young_groups)


def age_of(state: RunState, group: Group) -> int:
    """Return the number of updates since the oldest token of the group was sampled."""
    return state.policy_version - min(m.rollout.oldest_version for m in group.members)


def start_later_batches(
    workers: Workers, setup: StageSetup, state: RunState, item: Item, trained: Sequence[Group]
) -> StepMetrics:
    """Start batches for later steps until `max_staleness` are in flight; return metrics of the trained groups' ages.

    No batch is started for a step after the stage's last, or past the recipe's budget of tokens.
    """
    rounds, source, max_in_flight = setup.rounds, workers.rollouts, setup.config.rollout.max_staleness
    if max_in_flight == 0:
        return {}
    batch_size, num_in_flight = rounds.prompts_per_step, len(source.in_flight)
    steps_left = (rounds.rounds - item.round + 1) * item.num_steps - state.step - 1
    for number in range(min(max_in_flight, steps_left) - num_in_flight):
        steps_ahead = len(source.in_flight) + 1
        # Groups expected by then: those carried over, and those in flight at the recent rate of acceptance.
        num_expected = len(state.stage.carried) + round(state.stage.acceptance * prompts_in_flight(source))
        num_missing = max(0, batch_size * steps_ahead - num_expected)
        num_prompts = forecast(num_missing, state.stage.acceptance, MAX_OVERSAMPLING * batch_size)
        if (affordable := affordable_groups(source, setup, state)) is not None:
            num_prompts = min(num_prompts, affordable)
        if num_missing == 0 or num_prompts == 0:
            break
        batch = InFlightBatch(workers.sampler.next(num_prompts), state.rl_step, number)
        source.start(batch, response_kinds(setup))
    ages = [age_of(state, g) for g in trained] or [0]
    return {
        "groups/in_flight": float(prompts_in_flight(source)),
        "staleness/mean": sum(ages) / len(ages),
        "staleness/max": float(max(ages)),
    }
