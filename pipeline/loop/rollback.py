"""The collapse guard of RL: warn, stop, or roll back to the last good checkpoint with half the learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verizero.pipeline.config.rl import RlConfig
from verizero.pipeline.errors import Collapsed
from verizero.pipeline.report.row_types import CollapseAlarm, Numbers, SignRow, to_json
from verizero.pipeline.run.collapse import Sign, good_checkpoints, keeps_checkpoints, num_roll_backs, observe
from verizero.pipeline.run.opening import restore_checkpoint, restore_in_flight, set_up_stage
from verizero.pipeline.run.saving import finish_checkpoint, save
from verizero.pipeline.run.session import Run, Session, StageSetup
from verizero.pipeline.run.state import Item, RunState
from verizero.pipeline.train import checkpoint


class RolledBack(Exception):
    """Raised after a rollback: the state is that of an earlier item or step, from which the run continues."""


def save_before_first_step(session: Session) -> None:
    """Write a checkpoint before the first step of a stage, if the guard may have to roll back to it."""
    if keeps_checkpoints(session.setup.config) and not session.state.stage.guard.get("checkpoints"):
        save(session)


def guard_against_collapse(session: Session, item: Item, metrics: Numbers) -> None:
    """Look for signs of a collapse after a step with these metrics, and do what the recipe asks for.

    Raise RolledBack after a rollback; Collapsed if the run must stop or was rolled back often enough.
    """
    run, state, recorder, setup = session.run, session.state, session.recorder, session.setup
    config, guard_state = setup.config.guard, state.stage.guard
    if config.action == "none":
        return
    signs = observe(guard_state, metrics, config)
    reported_settings = guard_state.get("said", [])
    guard_state["said"] = [s.setting for s in signs]
    if all(s.setting in reported_settings for s in signs):
        return
    if config.action == "warn":
        alarm(session, item, signs, {})
        recorder.say(f"{recorder.step_label}: RL may be collapsing: {_listed(signs)}")
        return
    finish_checkpoint(run, session.workers)
    good_checkpoint = run.ranks.decide_on_first(lambda: last_good_checkpoint(run, state, setup))
    may_roll_back = config.action == "roll_back" and isinstance(setup.section, RlConfig)
    if not may_roll_back or num_roll_backs(state) >= config.max_roll_backs or good_checkpoint is None:
        alarm(session, item, signs, {})
        again = f" again, after {n} roll-backs" if (n := num_roll_backs(state)) else ""
        before = "No checkpoint is older than that"
        if good_checkpoint is not None:  # one of adapters alone has no model
            model = good_checkpoint / "model"
            before = f"The policy before that is {model if model.is_dir() else good_checkpoint}"
        raise Collapsed(
            f"{recorder.step_label}: RL is collapsing{again}: {_listed(signs)}. {before}; "
            f"lower {item.kind}.optimizer.learning_rate, or raise the limit that is named, and start under another "
            "name"
        )
    roll_back(session, item, signs, good_checkpoint)


def last_good_checkpoint(run: Run, state: RunState, setup: StageSetup) -> Path | None:
    """Return this stage's newest undamaged checkpoint that is older than the steps that showed the collapse."""
    paths = [run.folder / "checkpoints" / f"{n:08d}" for n in good_checkpoints(state, setup.config)]
    return next((p for p in paths if p.is_dir() and checkpoint.damage_of(p) is None), None)


def roll_back(session: Session, item: Item, signs: Sequence[Sign], checkpoint_folder: Path) -> None:
    """Restore the checkpoint, halve the learning rate once more, write a new checkpoint, and raise RolledBack.

    The files of the run stay: the line of the alarm says which steps before it no longer count. Generated tokens stay
    counted too. A run that is killed before it writes the new checkpoint finds the same collapse again.
    """
    state, recorder, backend = session.state, session.recorder, session.workers.backend
    step, times, num_tokens = state.rl_step, num_roll_backs(state) + 1, state.stage.num_tokens
    num_responses, num_prompts, next_checkpoint = state.num_responses, state.num_prompts_used, state.next_checkpoint
    restore_checkpoint(session.run, session.workers, state, checkpoint_folder)
    # Not rolled back: the counts of what was sampled, and the number of the next checkpoint.
    state.num_responses, state.num_prompts_used, state.next_checkpoint = num_responses, num_prompts, next_checkpoint
    state.stage.num_tokens = num_tokens
    state.stage.guard |= {"roll_backs": times, "said": []}
    session.setup = set_up_stage(session.run, session.workers, state)
    restore_in_flight(session.workers, session.setup, state)
    config = session.setup.config
    if state.rl_step > state.stage.first_rl_step:  # else the stage starts again, and its optimiser with it
        backend.policy.change(session.setup.rounds.optimizer)
    rate = session.setup.rounds.optimizer.rate
    changes = {"rl.optimizer.learning_rate": rate}
    alarm(session, item, signs, {"step": step, "to_step": state.rl_step, "roll_backs": times, "knob": changes})
    recorder.say(
        f"{recorder.step_label}: RL collapsed: {_listed(signs)}. Rolled back to step {state.rl_step} "
        f"({times} of at most {config.guard.max_roll_backs}); rl.optimizer.learning_rate is now {rate:g}"
    )
    save(session)
    raise RolledBack


def alarm(session: Session, item: Item, signs: Sequence[Sign], more: dict[str, Any]) -> None:
    """Write the alarm to metrics.jsonl and send it to listeners. `more`: fields of a rollback's alarm."""
    config, recorder = session.setup.config.guard, session.recorder
    row = CollapseAlarm(
        stage=item.stage,
        stage_kind=item.kind,
        round=item.round,
        action=config.action,
        signs=tuple(SignRow(s.measure, s.value, s.limit, str(s)) for s in signs),
        **{"step": session.state.rl_step, **more},
    )
    recorder.store.metrics(row)
    line = {name: value for name, value in to_json(row).items() if name != "time"}
    recorder.listener("verizero.collapse.suspected", {**line, "where": recorder.step_label})


def _listed(signs: Sequence[Sign]) -> str:
    return ", ".join(map(str, signs))
