"""One round of a stage that trains on its own samples: step by step, with checkpoints and the collapse guard.

A step reads from top to bottom as: `one_step` here, `batch.fill_batch`, `phases`, and `train/step.update`.
Then what begins a round, and what moves the reference.

The parity check is at the end: engine and trainer must give the same tokens the same log-probs. Before the first step
it scores responses of its own. Some faults show only later: adapters that are merged into a base in 4 bits, which is
then rounded again, change nothing while they are zero. So it also reads each step's own difference.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from verizero.pipeline.config.rollout import RolloutConfig
from verizero.pipeline.errors import GradersFailed, NonFiniteError, RunError
from verizero.pipeline.loop.batch import Batch, fill_batch, is_out_of_tokens, start_later_batches
from verizero.pipeline.loop.metrics import HOW_TO_FIX_GRADERS, first_failure, record_step
from verizero.pipeline.loop.phases import Phases
from verizero.pipeline.loop.rollback import guard_against_collapse, save_before_first_step
from verizero.pipeline.report.row_types import Numbers, StepRow
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.rollout.generate import generate_rollouts
from verizero.pipeline.rows import TrainedRow, trained_rows
from verizero.pipeline.run.algorithm import reference_config, sampling
from verizero.pipeline.run.recorder import Recorder
from verizero.pipeline.run.saving import is_first_step, save
from verizero.pipeline.run.session import Run, Session, StageSetup, Workers
from verizero.pipeline.run.state import Item, RunState
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.collate import collate_records, replay_at
from verizero.pipeline.types import Group, Rollout, StepMetrics

OUT_OF_TOKENS = "the budget of {:,} tokens (max_tokens) has no room for another step"
MAX_BAD_STEPS = 3
"""Steps in a row that end the run: their updates were refused, or nothing trained because graders failed."""


def run_round(session: Session, item: Item, phases: Phases) -> None:
    """Do the steps of one round that are not done yet: the state has their number."""
    if not open_round(session, item, phases):
        return
    while begin_step(session, item):
        row, groups = one_step(session, item, phases)
        after_step(session, item, row, groups)
    close_round(session, item)


def open_round(session: Session, item: Item, phases: Phases) -> bool:
    """Prepare the policy, the engine and the reference for the next step; return False if the tokens are used up."""
    workers, state, recorder, setup = session.workers, session.state, session.recorder, session.setup
    rollouts = workers.rollouts
    if is_out_of_tokens(rollouts, setup, state):
        recorder.say(f"{item.label}: no step, as {OUT_OF_TOKENS.format(setup.rounds.max_tokens)}")
        return False
    save_before_first_step(session)
    begin_round(session, item)
    if state.step == 0 and item.round == 1 and rollouts.engine.version != state.policy_version:
        phases.publish()  # else an evaluation has published this policy
    if rollouts.parity == "unchecked":
        check_parity(session.run, workers, setup.config.rollout, recorder, sampling(setup))
    recorder.progress.begin(item.label, state.step, item.num_steps)
    return True


def begin_step(session: Session, item: Item) -> bool:
    """Give the recorder the label of the next step; return False if no step of the round is left."""
    state, setup = session.state, session.setup
    if state.step >= item.num_steps or is_out_of_tokens(session.workers.rollouts, setup, state):
        return False
    session.recorder.step_label = f"{item.label} step {state.step + 1}"
    return True


def one_step(session: Session, item: Item, phases: Phases) -> tuple[StepRow, list[Group]]:
    """Fill a batch, train on it, publish the new weights, write metrics; return their row and the sampled groups."""
    with session.recorder.timed("total"):
        batch = fill_batch(session.workers, session.setup, session.state, phases)
        start_later(session, item, batch)
        train_on(session, phases, batch, batch.groups)
        publish_if_due(session, phases, batch)
    return end_step(session, item, batch), batch.sampled


def start_later(session: Session, item: Item, batch: Batch) -> None:
    """Start generating batches of later steps, if the recipe lets them be generated ahead."""
    batch.metrics |= start_later_batches(session.workers, session.setup, session.state, item, batch.groups)


def train_on(session: Session, phases: Phases, batch: Batch, groups: list[Group]) -> StepMetrics | None:
    """Update the policy on the groups, which become part of the batch's updates; return the metrics, None if none."""
    metrics = update_if_enough_groups(session.setup, session.state, session.recorder, phases, groups)
    if metrics is not None:
        batch.updates.append((groups, metrics))
    return metrics


def publish_if_due(session: Session, phases: Phases, batch: Batch) -> None:
    """Give the engine the policy's weights if the batch has changed them."""
    if batch.updates and session.workers.rollouts.engine.version != session.state.policy_version:
        phases.publish()


def end_step(session: Session, item: Item, batch: Batch) -> StepRow:
    """Write the step's metrics and samples, count it, and move the reference; return the row of metrics.

    Raise GradersFailed if graders failed in too many steps in a row; RunError if engine and trainer differ now, and the
    recipe says stop.
    """
    workers, state, recorder, setup = session.workers, session.state, session.recorder, session.setup
    row = record_step(workers, setup, state, recorder, item, batch)
    watch_parity(session.run, workers, setup.config.rollout, recorder, row.metrics)
    is_lost = failed_to_grade(row.metrics)
    state.stage.lost_steps = [*state.stage.lost_steps, first_failure(batch.sampled)] if is_lost else []
    stop_if_grading_fails(state, recorder, MAX_BAD_STEPS)
    state.step += 1
    state.rl_step += 1
    move_reference(workers.backend, setup, state)
    return row


def after_step(session: Session, item: Item, row: StepRow, groups: list[Group]) -> None:
    """Look for a collapse, call the callbacks, and write a checkpoint where one is due.

    Raise RolledBack, Collapsed; Stopped if a callback ended the run.
    """
    state, recorder, setup = session.state, session.recorder, session.setup
    guard_against_collapse(session, item, row.metrics)
    recorder.callbacks.call(session.run.ranks, row, groups)  # before the checkpoint: a kill between would leave it out
    is_due = state.step % setup.config.checkpoint.every_steps == 0 or is_first_step(state)
    # No checkpoint after steps whose graders failed: a run that stops for that repeats them.
    if ((is_due and state.step < item.num_steps) or recorder.callbacks.stopped_by) and not state.stage.lost_steps:
        save(session)
    recorder.callbacks.raise_if_stopped()


def close_round(session: Session, item: Item) -> None:
    """End a round of which no step is left. Raise GradersFailed if graders failed in the last step of the stage."""
    workers, state, recorder, setup = session.workers, session.state, session.recorder, session.setup
    if state.step < item.num_steps:
        recorder.say(
            f"{item.label} ends after {state.step} of {item.num_steps} steps: "
            + OUT_OF_TOKENS.format(setup.rounds.max_tokens)
        )
    if item.round == setup.rounds.rounds or is_out_of_tokens(workers.rollouts, setup, state):
        stop_if_grading_fails(state, recorder, num_steps=1)  # a stage must not end on a step whose graders failed
        workers.rollouts.drop()


def failed_to_grade(row: Numbers) -> bool:
    """True if a step with these metrics trained nothing, and graders failed on half of its groups or more."""
    num_failed, num_sampled = row["groups/infrastructure"], row["groups/sampled"]
    return bool(row["update/skipped"]) and num_failed > 0 and 2 * num_failed >= num_sampled


def stop_if_grading_fails(state: RunState, recorder: Recorder, num_steps: int) -> None:
    """Raise GradersFailed if the last `num_steps` steps or more trained nothing because graders failed."""
    failures = state.stage.lost_steps
    if len(failures) >= num_steps:
        raise GradersFailed(
            f"{recorder.step_label}: graders failed and nothing trained in {len(failures)} "
            f"{'step' if len(failures) == 1 else 'steps in a row'}, at last with {failures[-1]}. "
            f"{HOW_TO_FIX_GRADERS}, and does these steps again"
        )


def update_if_enough_groups(
    setup: StageSetup, state: RunState, recorder: Recorder, phases: Phases, groups: list[Group]
) -> StepMetrics | None:
    """Update the policy; return metrics, None if there was no update. Raise RunError if too many were refused."""
    rounds, stage_state = setup.rounds, state.stage
    if not groups:
        recorder.say(
            f"{recorder.step_label}: none of {rounds.prompts_per_step} groups teaches something; no update. "
            "If this continues and graders did not fail, the prompts are too easy or too hard"
        )
        return None
    try:
        metrics = phases.update(groups)
    except NonFiniteError as exc:
        stage_state.num_bad_updates += 1
        recorder.say(f"{recorder.step_label}: {exc}")
        if stage_state.num_bad_updates >= MAX_BAD_STEPS:
            raise RunError(
                f"{stage_state.num_bad_updates} updates in a row were refused ({exc}); the last checkpoint is good. "
                "Lower rl.optimizer.learning_rate and start the same command under another name"
            ) from exc
        return None
    stage_state.num_bad_updates = 0
    if metrics.get("updates/refused"):
        recorder.say(
            f"{recorder.step_label}: after {metrics['updates']:.0f} updates on this batch the next was not finite, and "
            "the rest of the batch was left out; lower the learning rate"
        )
    return metrics


def begin_round(session: Session, item: Item) -> None:
    """Prepare a round: fresh optimisers in round 1, and a new reference where its schedule says so."""
    backend, state, setup = session.workers.backend, session.state, session.setup
    reference = reference_config(setup)
    is_new = state.step == 0 and item.round == 1
    start_optimizers(backend, setup, is_new)
    if state.step == 0:
        moves_now = item.round == 1 or reference.schedule == "every_round"
        if reference.schedule != "none" and moves_now:
            refresh_reference(backend, state)


def start_optimizers(backend: Backend, setup: StageSetup, is_new: bool) -> None:
    """Start fresh optimisers for the updates of all rounds. A stage that is not new keeps its own."""
    if not is_new:
        return
    rounds, parts = setup.rounds, setup.algorithm
    num_steps = rounds.rounds * rounds.steps_per_round
    updates_per_step = parts.params.num_updates
    warmup_steps = 0 if parts.critic is None else min(num_steps, parts.critic.warmup_steps)
    policy_updates, critic_updates = (num_steps - warmup_steps) * updates_per_step, num_steps * updates_per_step
    backend.start(rounds.optimizer, policy_updates)
    if parts.critic is not None:
        rate = parts.critic.learning_rate or rounds.optimizer.learning_rate
        optimizer = rounds.optimizer.model_copy(update={"learning_rate": rate})
        backend.start_critic(parts.critic.shared, optimizer, critic_updates)


def move_reference(backend: Backend, setup: StageSetup, state: RunState) -> None:
    """Move the reference after a step, if its schedule says so.

    `begin_round` makes the first copy, and moves the reference for the schedule `every_round`.
    """
    config = reference_config(setup)
    match config.schedule:
        case "every_n_steps":
            assert config.every is not None
            if state.step_in_stage % config.every == 0:
                refresh_reference(backend, state)
        case "ema":
            assert config.alpha is not None
            if state.step_in_stage % (config.every or 1) == 0:
                refresh_reference(backend, state, config.alpha)


def refresh_reference(backend: Backend, state: RunState, alpha: float = 1.0) -> None:
    """Set the reference to alpha * policy + (1 - alpha) * reference, and count its version."""
    backend.refresh_reference(alpha)
    state.reference_version += 1


QUANTILES = (0.5, 0.99)
PARITY_FILE = "parity.json"
NUM_PROMPTS = 8
"""Prompts that the check answers, each once."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Absolute difference between the engine's and the trainer's log-probs of some tokens, in nats."""

    mean: float
    p50: float
    p99: float
    largest: float
    num_tokens: int

    def __str__(self) -> str:
        return f"mean {self.mean:.2e}, p99 {self.p99:.2e}, largest {self.largest:.2e} over {self.num_tokens} tokens"


def check_parity(
    run: Run, workers: Workers, config: RolloutConfig, recorder: Recorder, sampling: Sampling
) -> Gap | None:
    """Sample some responses, compare their log-probs by engine and trainer, and write the gap to parity.json.

    Return None if the check is off. Raise RunError if the gap is above the tolerance and the recipe says stop.
    """
    dtype = run.recipe.model.dtype
    action, tolerance = config.parity_action(dtype), config.parity_tolerance(dtype)
    workers.rollouts.parity = "equal"
    if action == "off":
        return None
    prompts = run.data.train[:NUM_PROMPTS]
    with recorder.timed("parity"):
        rollouts = generate_rollouts(workers.rollouts.generation, prompts, 1, sampling, "parity")
        gap = logprob_gap(workers.backend, rollouts, sampling.temperature)
    differs = not gap.mean <= tolerance  # true for NaN too
    (run.rank_folder / PARITY_FILE).write_text(
        json.dumps({**asdict(gap), "action": action, "differs": differs}, indent=1)
    )
    if differs:
        _report(workers, config, dtype, recorder, f"engine and trainer differ in log-probs of the same tokens: {gap}")
    return gap


def watch_parity(run: Run, workers: Workers, config: RolloutConfig, recorder: Recorder, metrics: Numbers) -> None:
    """Hold `mismatch/abs` of a step, the mean difference on tokens of the present weights, to the check's tolerance.

    Do nothing if the check is off, no token was fresh, or a difference was reported before. Raise RunError as it does.
    """
    dtype, gap = run.recipe.model.dtype, metrics.get("mismatch/abs", 0.0)
    if config.parity_action(dtype) == "off" or workers.rollouts.parity == "differs":
        return
    if not gap <= config.parity_tolerance(dtype):
        finding = (
            f"{recorder.step_label}: engine and trainer differ by {gap:.2e} nats a token, and did not at the start; "
            "the engine computes with other weights than the trainer's"
        )
        _report(workers, config, dtype, recorder, finding)


def _report(workers: Workers, config: RolloutConfig, dtype: str, recorder: Recorder, finding: str) -> None:
    """Say what was found, once; raise RunError if the recipe says stop."""
    workers.rollouts.parity = "differs"
    action, tolerance = config.parity_action(dtype), config.parity_tolerance(dtype)
    remedy = (
        "compute both in the same type (model.dtype), look for an option that only one of them has, or choose "
        "rollout.parity.action: correct"
    )
    if action == "stop":
        raise RunError(f"{finding}; rollout.parity.tolerance is {tolerance:g}. {remedy}")
    recorder.say(f"{finding}; " + ("truncated importance sampling is on" if action == "correct" else remedy))


def logprob_gap(backend: Backend, rollouts: Sequence[Rollout], temperature: float) -> Gap:
    """Return the gap between the engine's and the trainer's log-probs of the sampled tokens of these rollouts."""
    rows = [row for rollout in rollouts for row in trained_rows(rollout)]
    gaps = torch.cat([_absolute_differences(backend, row, temperature) for row in rows])
    p50, p99 = (float(q) for q in torch.quantile(gaps, torch.tensor(QUANTILES, dtype=gaps.dtype)))
    return Gap(float(gaps.mean()), p50, p99, float(gaps.max()), gaps.numel())


@torch.no_grad()
def _absolute_differences(backend: Backend, row: TrainedRow, temperature: float) -> torch.Tensor:
    """Return [N]: |log-prob by the trainer - log-prob by the engine| of the N sampled tokens of a row."""
    device = backend.model.device
    ids_1_T = torch.tensor([row.ids], device=device)
    mask_1_T = torch.zeros(ids_1_T.shape, dtype=torch.bool, device=device)
    for span in row.spans:
        mask_1_T[0, span.start : span.stop] = True
    replay = replay_at(collate_records([row], ids_1_T.shape[1]), mask_1_T)
    logprobs_1_T, _ = backend.logprobs(ids_1_T, mask_1_T, temperature, "policy", False, replay)
    engine_logprobs_N = torch.tensor([x for span in row.spans for x in span.turn.logprobs], dtype=torch.float64)
    return (logprobs_1_T[mask_1_T].double().cpu() - engine_logprobs_N).abs()
