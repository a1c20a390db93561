"""On-policy distillation: in each step the policy answers, and learns at each token from a teacher's distribution.

The round is that of RL: the same sampling, grading, budget and schedules of the reference. Two of its phases differ:
`select` keeps every group, for a teacher has something to say about all, and `update` brings the policy closer to its
teachers. Rewards are measured and train nothing (with `select.keep: informative` they choose the groups).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from verizero.pipeline.config.teaching import DistillConfig
from verizero.pipeline.loop.phases import Phases, PhaseWrapper
from verizero.pipeline.loop.rounds import run_round
from verizero.pipeline.run.session import Run, Session, StageSetup, Workers
from verizero.pipeline.run.state import Item, RunState
from verizero.pipeline.run.teachers import distill_rows, distill_settings, stage_teachers
from verizero.pipeline.scoring.select import GroupKind
from verizero.pipeline.stages.base import StageKind
from verizero.pipeline.stages.rl import rl_phases, update_policy
from verizero.pipeline.train.distillation import distill_update
from verizero.pipeline.types import Group, StepMetrics


def run(session: Session, item: Item, wrap: PhaseWrapper) -> None:
    """Do the steps of one round, from the step that the state names."""
    run_round(session, item, distill_phases(session).wrapped(wrap))


def distill_phases(session: Session) -> Phases:
    """Return the phases of RL, with an update on what the teachers say."""
    run, workers, state = session.run, session.workers, session.state
    setup, phases = session.setup, rl_phases(session)

    def select_all(groups: Sequence[Group]) -> tuple[list[Group], dict[GroupKind, int]]:
        selected, counts = phases.select(groups)
        # A group whose graders failed teaches as much as any other.
        return (selected if setup.rounds.select.keep == "informative" else list(groups)), counts

    learn = partial(train_on_teachers, run, workers, setup, state)
    update = partial(update_policy, workers, state, session.recorder, learn)
    return replace(phases, select=select_all, update=update)


def train_on_teachers(
    run: Run, workers: Workers, setup: StageSetup, state: RunState, groups: Sequence[Group]
) -> StepMetrics:
    """Do one step on all responses that a teacher reads; return the metrics. Raise NonFiniteError if refused."""
    section = setup.section_as(DistillConfig)
    teachers = stage_teachers(run, workers, setup, state)
    row_of_members, counts = distill_rows(run, section, groups, workers.context, state.policy_version)
    rows = [row for row in row_of_members if row is not None]
    rewards = [m.reward for group in groups for m in group.members if m.reward is not None]
    metrics = {**counts, **({"reward/mean": sum(rewards) / len(rewards)} if rewards else {})}
    if not rows:
        return {**metrics, "rows": 0.0}
    objective = section.objective(setup.config.rollout.temperature)
    return {
        **metrics,
        **distill_update(workers.backend, teachers, rows, objective, distill_settings(run, setup.config)),
    }


KIND = StageKind(DistillConfig, run)
