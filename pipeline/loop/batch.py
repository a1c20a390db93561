"""The batch of one RL step: groups carried over from the last step, then new ones until the batch is full."""

from __future__ import annotations

from dataclasses import dataclass, field

from verizero.pipeline.loop.phases import Phases
from verizero.pipeline.loop.scheduling import MAX_OVERSAMPLING, affordable_groups, drop_stale
from verizero.pipeline.run.dealing import share_of
from verizero.pipeline.run.session import StageSetup, Workers
from verizero.pipeline.run.state import RunState
from verizero.pipeline.scoring.score import GradingTally
from verizero.pipeline.scoring.second_opinion import Opinions
from verizero.pipeline.scoring.select import REASONS, acceptance_after, forecast
from verizero.pipeline.types import Group, StepMetrics


@dataclass
class Batch:
    """The groups that one step trains on, and how they came together."""

    groups: list[Group]
    sampled: list[Group]
    """All groups that this step generated, kept or not."""
    counts: dict[str, int]
    """Sampled groups by the reason for which they were kept or dropped."""
    tallies: list[GradingTally]
    metrics: StepMetrics = field(default_factory=dict)
    opinions: list[Opinions] | None = None
    """Second opinions on each group of `sampled`; None if the recipe asks for none."""


def fill_batch(workers: Workers, setup: StageSetup, state: RunState, phases: Phases) -> Batch:
    """Return the groups for one update. Sampling ends when the batch is full or the refills are used up."""
    rounds, stage, source, second = setup.rounds, state.stage, workers.rollouts, workers.graders.second
    want = rounds.prompts_per_step
    fresh, num_stale = drop_stale(setup, state, stage.carried)
    batch = Batch(fresh, [], dict.fromkeys(REASONS, 0), [])
    for attempt in range(1 + rounds.select.max_refills):
        missing = want - len(batch.groups)
        if missing <= 0:
            break
        count = forecast(missing, stage.acceptance, MAX_OVERSAMPLING * want)
        if (affordable := affordable_groups(source, setup, state)) is not None:
            count = min(count, affordable)
        if count == 0 and not source.in_flight:
            break
        prompts = phases.next_prompts(count)
        groups, tally = phases.verify(prompts, phases.generate(prompts, attempt))
        kept, counts = phases.select(groups)
        stage.acceptance = acceptance_after(stage.acceptance, len(kept), len(groups))
        fresh, num_dropped = drop_stale(setup, state, kept)
        num_stale += num_dropped
        batch.groups += fresh
        batch.sampled += groups
        if second is not None:
            second.ask(state.rl_step, groups, share_of(workers.backend.ranks, prompts).places)
        batch.tallies.append(tally)
        for reason, num_groups in counts.items():
            batch.counts[reason] += num_groups
    num_carried_in, surplus = len(stage.carried), batch.groups[want:]
    batch.groups = batch.groups[:want]
    stage.carried = surplus if rounds.select.carry_over else []
    batch.metrics["groups/carried_in"] = float(num_carried_in)
    batch.metrics["groups/carried_out"] = float(len(stage.carried))
    batch.metrics["groups/surplus_dropped"] = float(len(surplus) - len(stage.carried))
    if setup.config.rollout.max_staleness > 0:
        batch.metrics["groups/stale"] = float(num_stale)
    return batch
