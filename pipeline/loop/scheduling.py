"""How far generation runs ahead of the update: what is launched, what is too old, what the budget of tokens allows."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.config.run import most_tokens
from pipeline.loop.steps import launch
from pipeline.rollout.continuation import oldest
from pipeline.run.schedule import Item
from pipeline.run.session import Session
from pipeline.scoring.select import forecast
from pipeline.types import Group, StepMetrics

MOST_OVERSAMPLING = 4
"""One generation draws at most this many times the prompts of a batch."""


def out_of_tokens(session: Session) -> bool:
    """A further step might generate more than is left of the recipe's budget of tokens."""
    left = affordable(session)
    return left is not None and left < session.rounds.prompts_per_step and not flies(session)


def affordable(session: Session) -> int | None:
    """How many groups can be sampled whatever their length within the recipe's budget; None: it has none."""
    rl, parts = session.rounds, session.parts
    if rl.max_tokens is None:
        return None
    greedy = parts is not None and parts.needs_greedy
    each = most_tokens(rl, session.config.rollout.max_response_tokens, greedy)
    flying = 0 if session.runahead is None else sum(len(f.launched.prompts) for f in session.runahead.flying)
    return max(0, (rl.max_tokens - session.state.num_tokens) // each - flying)


def without_stale(session: Session, groups: Sequence[Group]) -> tuple[list[Group], int]:
    """The groups that are not older than `rollout.max_staleness` where that is above 0, and how many are."""
    most = session.config.rollout.max_staleness
    kept = [g for g in groups if most == 0 or age_of(session, g) <= most]
    return kept, len(groups) - len(kept)


def age_of(session: Session, group: Group) -> int:
    """How many updates old the oldest token of the group is."""
    return session.state.policy_version - oldest(m.rollout for m in group.members)


def flies(session: Session) -> bool:
    """Something is generated ahead."""
    return session.runahead is not None and session.runahead.oldest() is not None


def launch_ahead(session: Session, item: Item, trained: Sequence[Group]) -> StepMetrics:
    """Begin to generate for the steps to come, so many that `max_staleness` batches are under way; what to log of it.

    Nothing is launched for steps that do not come, nor past the recipe's budget of tokens.
    """
    rl, state, ahead = session.rounds, session.state, session.runahead
    if ahead is None:
        return {}
    ahead.go_on(session.engine, session.data.renderer, session.config.seed)
    want, begun = rl.prompts_per_step, len(ahead.flying)
    left = (rl.rounds - item.round + 1) * item.num_steps - state.step - 1
    for number in range(min(session.config.rollout.max_staleness, left) - begun):
        steps_ahead = len(ahead.flying) + 1
        coming = len(state.carried) + round(state.acceptance * sum(len(f.launched.prompts) for f in ahead.flying))
        count = forecast(max(0, want * steps_ahead - coming), state.acceptance, MOST_OVERSAMPLING * want)
        if (budget := affordable(session)) is not None:
            count = min(count, budget)
        if want * steps_ahead <= coming or count == 0:
            break
        launch(session, session.sampler.next(count), number, steps_ahead)
    ages = [age_of(session, g) for g in trained] or [0]
    return {
        "groups/in_flight": float(sum(len(f.launched.prompts) for f in ahead.flying)),
        "staleness/mean": sum(ages) / len(ages),
        "staleness/max": float(max(ages)),
    }
