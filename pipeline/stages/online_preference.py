"""Online preferences: in each step a group is sampled and ranked, and its best response trains against its worst.

The round is that of RL: the same sampling, grading, refills, budget and schedules of the reference. Two of its phases
differ: `verify` lets the recipe's judge rank, and `update` trains on pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from verizero.pipeline.config.pairs import OnlinePreferenceConfig
from verizero.pipeline.data.pairs import pairs_of
from verizero.pipeline.loop.phases import Generated, Phases, PhaseWrapper
from verizero.pipeline.loop.rounds import run_round
from verizero.pipeline.loop.sampled_groups import rewarded_by_judge
from verizero.pipeline.run.session import Run, Session, StageSetup, Workers
from verizero.pipeline.run.state import Item, RunState
from verizero.pipeline.scoring.score import GradingTally
from verizero.pipeline.seeds import stream
from verizero.pipeline.stages._pairs import loss_of, update_settings
from verizero.pipeline.stages.base import StageKind
from verizero.pipeline.stages.rl import rl_phases, update_policy
from verizero.pipeline.train.preference import PreferenceRow, ReferenceTable, preference_update
from verizero.pipeline.types import Group, Prompt, StepMetrics


def run(session: Session, item: Item, wrap: PhaseWrapper) -> None:
    """Do the steps of one round, from the step that the state names."""
    run_round(session, item, online_preference_phases(session).wrapped(wrap))


def online_preference_phases(session: Session) -> Phases:
    """Return the phases of RL, with a ranking after `verify` and an update on pairs."""
    run, workers, state = session.run, session.workers, session.state
    recorder, setup, phases = session.recorder, session.setup, rl_phases(session)
    section = setup.section_as(OnlinePreferenceConfig)

    def verify_and_rank(prompts: Sequence[Prompt], generated: Generated) -> tuple[list[Group], GradingTally]:
        groups, tally = phases.verify(prompts, generated)
        return rewarded_by_judge(run, workers, recorder, groups, section.judge, section.judged), tally

    learn = partial(train_on_pairs, run, workers, setup, state, section)
    return replace(phases, verify=verify_and_rank, update=partial(update_policy, workers, state, recorder, learn))


def train_on_pairs(
    run: Run,
    workers: Workers,
    setup: StageSetup,
    state: RunState,
    section: OnlinePreferenceConfig,
    groups: Sequence[Group],
) -> StepMetrics:
    """Do one step on each group's best against its worst response. Raise NonFiniteError if refused."""
    (params, loss), settings, backend = loss_of(setup), update_settings(run, setup), workers.backend
    pairs = [
        pair
        for number, group in enumerate(groups)
        for pair in pairs_of(group, section.pairing, stream(run.seed, "pairs", state.rl_step, number))
    ]
    rows = [
        PreferenceRow(*map(tuple, (w.rollout.prompt_ids, w.rollout.response_ids, r.rollout.response_ids)))
        for w, r in pairs
    ]
    if not rows:
        return {"pairs": 0.0}
    batch = ReferenceTable.computed(backend, params, rows, settings, "reference")
    rewards = [m.reward for group in groups for m in group.members if m.reward is not None]
    metrics = {"pairs": float(len(rows)), "reward/mean": sum(rewards) / len(rewards)}
    return {**metrics, **preference_update(backend, params, loss, batch, settings)}


KIND = StageKind(OnlinePreferenceConfig, run)
