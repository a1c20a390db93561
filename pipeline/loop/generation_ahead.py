"""Generation ahead of training: which batches start early, which groups are too old, and the budget of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from verizero.pipeline.config.rl import max_group_tokens
from verizero.pipeline.run.algorithm import response_kinds
from verizero.pipeline.run.rollouts import RolloutSource
from verizero.pipeline.run.session import StageSetup, Workers
from verizero.pipeline.run.state import InFlightBatch, Item, RunState
from verizero.pipeline.scoring.select import forecast
from verizero.pipeline.types import Group, StepMetrics

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
