"""The schedule of generation: which batches are started early, which groups are too old, and the budget of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from verizero.pipeline.config.rl import max_group_tokens
from verizero.pipeline.rollout.continuation import oldest_version
from verizero.pipeline.run.rollouts import RolloutSource
from verizero.pipeline.run.sampling import response_kinds, temperature
from verizero.pipeline.run.schedule import Item
from verizero.pipeline.run.session import StageSetup, Workers
from verizero.pipeline.run.state import InFlightBatch, RunState
from verizero.pipeline.scoring.select import forecast
from verizero.pipeline.types import Group, StepMetrics

MAX_OVERSAMPLING = 4
"""One generation samples at most this many times the prompts of a batch."""


def is_out_of_tokens(source: RolloutSource, setup: StageSetup, state: RunState) -> bool:
    """True if another step might generate more than is left of the recipe's budget of tokens."""
    left = affordable_groups(source, setup, state)
    return left is not None and left < setup.rounds.prompts_per_step and not source.in_flight


def affordable_groups(source: RolloutSource, setup: StageSetup, state: RunState) -> int | None:
    """Return how many groups can be sampled within the budget of tokens if all are of full length; None: no budget."""
    rounds = setup.rounds
    if rounds.max_tokens is None:
        return None
    greedy = setup.parts is not None and setup.parts.needs_greedy
    are_played = source.generation.episode_setup is not None
    tokens_each = max_group_tokens(setup.config, rounds, greedy, are_played)
    return max(0, (rounds.max_tokens - state.stage.num_tokens) // tokens_each - prompts_in_flight(source))


def prompts_in_flight(source: RolloutSource) -> int:
    """Return the number of prompts that are being answered for later steps."""
    return sum(len(batch.prompts) for batch in source.in_flight)


def drop_stale(setup: StageSetup, state: RunState, groups: Sequence[Group]) -> tuple[list[Group], int]:
    """Return the groups that are not older than `rollout.max_staleness`, and the number of others.

    At 0 none is dropped: only `select.carry_over` can make a group old there.
    """
    most = setup.config.rollout.max_staleness
    kept = [g for g in groups if most == 0 or age_of(state, g) <= most]
    return kept, len(groups) - len(kept)


def age_of(state: RunState, group: Group) -> int:
    """Return how many updates ago the oldest token of the group was sampled."""
    return state.policy_version - oldest_version(m.rollout for m in group.members)


def start_later_batches(
    workers: Workers, setup: StageSetup, state: RunState, item: Item, trained: Sequence[Group]
) -> StepMetrics:
    """Start to generate for later steps until `max_staleness` batches are in flight; return metrics of their ages.

    No batch is started for a step that will not come, or past the recipe's budget of tokens.
    """
    rounds, source, max_in_flight = setup.rounds, workers.rollouts, setup.config.rollout.max_staleness
    if max_in_flight == 0:
        return {}
    source.advance()
    want, num_before = rounds.prompts_per_step, len(source.in_flight)
    steps_left = (rounds.rounds - item.round + 1) * item.num_steps - state.step - 1
    for number in range(min(max_in_flight, steps_left) - num_before):
        steps_ahead = len(source.in_flight) + 1
        # the groups that will be there by then: carried over, and those in flight at the recent rate of acceptance
        coming = len(state.stage.carried) + round(state.stage.acceptance * prompts_in_flight(source))
        missing = max(0, want * steps_ahead - coming)
        count = forecast(missing, state.stage.acceptance, MAX_OVERSAMPLING * want)
        if (budget := affordable_groups(source, setup, state)) is not None:
            count = min(count, budget)
        if missing == 0 or count == 0:
            break
        degrees = temperature(setup, state, steps_ahead)
        batch = InFlightBatch(workers.sampler.next(count), state.rl_step, number, degrees)
        source.start(batch, response_kinds(setup, degrees))
    ages = [age_of(state, g) for g in trained] or [0]
    return {
        "groups/in_flight": float(prompts_in_flight(source)),
        "staleness/mean": sum(ages) / len(ages),
        "staleness/max": float(max(ages)),
    }
