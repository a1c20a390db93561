"""Fill the batch of one RL step: with groups carried over from the last step, then with new ones."""

from __future__ import annotations

from dataclasses import dataclass, field

from verizero.pipeline.loop.generation_ahead import MAX_OVERSAMPLING, affordable_groups, drop_stale
from verizero.pipeline.loop.phases import Phases
from verizero.pipeline.run.dealing import share_of
from verizero.pipeline.run.session import StageSetup, Workers
from verizero.pipeline.run.state import RunState
from verizero.pipeline.scoring.score import GradingTally
from verizero.pipeline.scoring.second_opinion import Opinions
from verizero.pipeline.scoring.select import GROUP_KINDS, acceptance_after, forecast
from verizero.pipeline.types import Group, StepMetrics


@dataclass
class Batch:
    """The groups that one step trains on, and those that it sampled."""

    groups: list[Group]
    sampled: list[Group]
    """All groups that this step sampled, kept or dropped."""
    counts: dict[str, int]
    """The number of sampled groups that were kept, or dropped for each reason."""
    tallies: list[GradingTally]
    metrics: StepMetrics = field(default_factory=dict)
    opinions: list[Opinions] | None = None
    """Second opinions on each group of `sampled`; None: off."""


def fill_batch(workers: Workers, setup: StageSetup, state: RunState, phases: Phases) -> Batch:
    """Return the groups for one update. Sampling ends when the batch is full or the refills are used up."""
    rounds, stage, rollouts, second_verifier = setup.rounds, state.stage, workers.rollouts, workers.graders.second
    batch_size = rounds.prompts_per_step
    young_groups, num_stale = drop_stale(setup, state, stage.carried)
    batch = Batch(young_groups, [], dict.fromkeys(GROUP_KINDS, 0), [])
    for attempt in range(1 + rounds.select.max_refills):
        num_missing = batch_size - len(batch.groups)
        if num_missing <= 0:
            break
        num_prompts = forecast(num_missing, stage.acceptance, MAX_OVERSAMPLING * batch_size)
        if (affordable := affordable_groups(rollouts, setup, state)) is not None:
            num_prompts = min(num_prompts, affordable)
        if num_prompts == 0 and not rollouts.in_flight:
            break
        prompts = phases.next_prompts(num_prompts)
        groups, tally = phases.verify(prompts, phases.generate(prompts, attempt))
        selected_groups, counts = phases.select(groups)
        stage.acceptance = acceptance_after(stage.acceptance, len(selected_groups), len(groups))
        young_groups, num_dropped = drop_stale(setup, state, selected_groups)
        num_stale += num_dropped
        batch.groups += young_groups
        batch.sampled += groups
        if second_verifier is not None:
            second_verifier.ask(state.rl_step, groups, share_of(workers.backend.ranks, prompts).indices)
        batch.tallies.append(tally)
        for reason, num_groups in counts.items():
            batch.counts[reason] += num_groups
    num_carried_in, surplus = len(stage.carried), batch.groups[batch_size:]
    batch.groups = batch.groups[:batch_size]
    stage.carried = surplus if rounds.select.carry_over else []
    batch.metrics["groups/carried_in"] = float(num_carried_in)
    batch.metrics["groups/carried_out"] = float(len(stage.carried))
    batch.metrics["groups/surplus_dropped"] = float(len(surplus) - len(stage.carried))
    if setup.config.rollout.max_staleness > 0:
        batch.metrics["groups/stale"] = float(num_stale)
    return batch
