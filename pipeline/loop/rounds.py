"""One round of a stage that samples what it learns from: step by step, with checkpoints and the collapse guard.

A step reads from top to bottom as: `one_step` here, `batch.fill_batch`, `phases`, and `train/step.update`.
"""

from __future__ import annotations

from verizero.pipeline.config.rl import RlConfig
from verizero.pipeline.errors import GradersFailed, NonFiniteError, RunError
from verizero.pipeline.loop.batch import fill_batch
from verizero.pipeline.loop.metrics import MEND_GRADERS, first_failure, record_step
from verizero.pipeline.loop.parity import check_parity
from verizero.pipeline.loop.phases import Phases, PhaseWrapper
from verizero.pipeline.loop.reference import move_reference, reference_config, refresh_reference
from verizero.pipeline.loop.rollback import guard_against_collapse, mark_start
from verizero.pipeline.loop.scheduling import is_out_of_tokens, start_later_batches
from verizero.pipeline.run.recorder import Recorder
from verizero.pipeline.run.sampling import sampling, temperature
from verizero.pipeline.run.saving import save
from verizero.pipeline.run.schedule import Item
from verizero.pipeline.run.session import Session, StageSetup
from verizero.pipeline.run.state import RunState
from verizero.pipeline.scoring.second_opinion import merged
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.types import Group, StepMetrics

SPENT = "the budget of {:,} tokens (max_tokens) has no room for another step"


def run_round(session: Session, item: Item, phases: Phases, wrap: PhaseWrapper) -> None:
    """Do the steps of one round, from the step that the state names."""
    run, workers, state, recorder = session.run, session.workers, session.state, session.recorder
    source, setup = workers.rollouts, session.setup
    if is_out_of_tokens(source, setup, state):
        recorder.say(f"{item.label}: no step, as {SPENT.format(setup.rounds.max_tokens)}")
        return
    mark_start(session)
    begin_round(session, item)
    if state.step == 0 and item.round == 1 and source.engine.version != state.policy_version:
        phases.publish()  # an evaluation publishes too; none came since the policy changed
    if not source.parity_checked:
        check_parity(run, workers, setup.config.rollout, recorder, sampling(setup, temperature(setup, state)))
        source.parity_checked = True
    recorder.progress.begin(item.label, state.step, item.num_steps)
    while state.step < item.num_steps and not is_out_of_tokens(source, setup, state):
        recorder.step_label = f"{item.label} step {state.step + 1}"
        metrics = wrap("step", one_step)(session, item, phases)
        guard_against_collapse(session, item, metrics)
        is_due = state.step % setup.config.checkpoint.every_steps == 0 and state.step < item.num_steps
        # Not while steps are lost: a run that stops for that does them again once the grader works.
        if is_due and not state.stage.lost_steps:
            save(session)
    if state.step < item.num_steps:
        recorder.say(
            f"{item.label} ends after {state.step} of {item.num_steps} steps: {SPENT.format(setup.rounds.max_tokens)}"
        )
    if item.round == setup.rounds.rounds or is_out_of_tokens(source, setup, state):
        stop_if_lost(state, recorder, most=1)  # the policy of a stage is not what graders left of its last steps
        source.drop()


def one_step(session: Session, item: Item, phases: Phases) -> StepMetrics:
    """Fill a batch, train on it, publish the new weights; write down and return the step's metrics."""
    workers, state, recorder, setup = session.workers, session.state, session.recorder, session.setup
    with recorder.timed("total"):
        batch = fill_batch(workers, setup, state, phases)
        batch.metrics |= start_later_batches(workers, setup, state, item, batch.groups)
        metrics = train(setup, state, recorder, phases, batch.groups)
        updates_since = state.policy_version - workers.rollouts.engine.version
        if metrics is not None and updates_since >= setup.config.rollout.publish_every:
            phases.publish()
        if workers.graders.second is not None:
            batch.opinions = merged(session.run.ranks.gather(workers.graders.second.take()))
    row = record_step(workers, setup, state, recorder, item, batch, metrics)
    state.stage.lost_steps = [*state.stage.lost_steps, first_failure(batch.sampled)] if is_lost(row) else []
    stop_if_lost(state, recorder, setup.rounds.max_bad_steps)
    state.step += 1
    state.rl_step += 1
    move_reference(workers.backend, setup, state, metrics or {})
    return row


def is_lost(row: StepMetrics) -> bool:
    """True if a step with these metrics trained nothing, and graders failed on half of its groups or more."""
    failed, sampled = row["groups/infrastructure"], row["groups/sampled"]
    return bool(row["update/skipped"]) and failed > 0 and 2 * failed >= sampled


def stop_if_lost(state: RunState, recorder: Recorder, most: int) -> None:
    """Raise GradersFailed if the last `most` steps or more trained nothing because graders failed."""
    lost = state.stage.lost_steps
    if len(lost) >= most:
        raise GradersFailed(
            f"{recorder.step_label}: graders failed and nothing trained in {len(lost)} "
            f"{'step' if len(lost) == 1 else 'steps in a row'}, at last with {lost[-1]}. {MEND_GRADERS}, and does "
            "these steps again"
        )


def train(
    setup: StageSetup, state: RunState, recorder: Recorder, phases: Phases, groups: list[Group]
) -> StepMetrics | None:
    """Return the update's metrics; None if there was too little to train on or the update was refused.

    Raise RunError after too many refused updates in a row.
    """
    rounds, stage = setup.rounds, state.stage
    is_short = len(groups) < rounds.prompts_per_step
    if len(groups) < rounds.select.min_groups or (is_short and rounds.select.fallback == "skip"):
        recorder.say(
            f"{recorder.step_label}: {len(groups)} of {rounds.prompts_per_step} groups teach something; no update. "
            "If this continues and graders did not fail, the prompts are too easy or too hard"
        )
        return None
    try:
        metrics = phases.update(groups)
    except NonFiniteError as exc:
        stage.num_bad_updates += 1
        recorder.say(f"{recorder.step_label}: {exc}")
        if stage.num_bad_updates >= rounds.max_bad_steps:
            raise RunError(
                f"{stage.num_bad_updates} updates in a row were refused ({exc}); the last checkpoint is good. Lower "
                "rl.optimizer.learning_rate and start the same command under another name"
            ) from exc
        return None
    stage.num_bad_updates = 0
    if metrics.get("updates/refused"):
        recorder.say(
            f"{recorder.step_label}: after {metrics['updates']:.0f} updates on this batch the next was not finite, and "
            "the rest of the batch was left out; lower the learning rate"
        )
    return metrics


def begin_round(session: Session, item: Item) -> None:
    """Prepare the first step of a round: fresh optimisers in round 1, and the reference as its schedule says."""
    backend, state, setup = session.workers.backend, session.state, session.setup
    reference = reference_config(setup)
    is_new = state.step == 0 and item.round == 1
    start_optimizers(backend, setup, is_new)
    if state.step == 0:
        moves_now = item.round == 1 or reference.schedule == "every_round"
        if reference.schedule != "none" and moves_now:
            refresh_reference(backend, state)


def start_optimizers(backend: Backend, setup: StageSetup, is_new: bool) -> None:
    """Start fresh optimisers, whose schedules span every update of all rounds; and the critic, if there is one.

    A stage that is not new keeps its own, with the length that the recipe has now.
    """
    rounds, parts = setup.rounds, setup.algorithm
    num_steps = rounds.rounds * rounds.steps_per_round
    updates_each = parts.updates.num_epochs * parts.updates.num_minibatches
    warmup = 0 if parts.critic is None else min(num_steps, parts.critic.warmup_steps)
    if not is_new:
        backend.set_length((num_steps - warmup) * updates_each, num_steps * updates_each)
        return
    backend.start(rounds.optimizer, (num_steps - warmup) * updates_each)
    if parts.critic is not None:
        rate = parts.critic.learning_rate or rounds.optimizer.learning_rate
        optimizer = setup.section_as(RlConfig).critic or rounds.optimizer.model_copy(update={"learning_rate": rate})
        backend.start_critic(parts.critic.shared, optimizer, num_steps * updates_each)
