"""What is done at a collapse: say so, stop, or go back to the last good checkpoint with one number changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import RunError
from pipeline.run import lag
from pipeline.run.collapse import Sign, good_serials, keeps_checkpoints, num_roll_backs, observe
from pipeline.run.schedule import Item
from pipeline.run.session import Session, order_of, settle
from pipeline.run.state import RunState
from pipeline.train import checkpoint
from pipeline.train.torch_backend import TorchBackend
from pipeline.types import StepMetrics


class RolledBack(Exception):
    """The run is where an earlier checkpoint was: what comes next is for its state to say."""


def mark_start(session: Session) -> None:
    """At the first step of a stage: a checkpoint to go back to, where the guard may want one."""
    if keeps_checkpoints(session.config) and not session.state.guard.get("checkpoints"):
        session.save()


def watch(session: Session, item: Item, row: StepMetrics) -> None:
    """After a step with metrics `row`: see whether RL collapses, and do what the recipe wants done then.

    Raises: RolledBack, or RunError where the run is to stop or was rolled back often enough.
    """
    config, memory = session.config.guard, session.state.guard
    if config.action == "none":
        return
    found = observe(memory, row, config)
    said, memory["said"] = memory.get("said", []), [s.setting for s in found]
    if not [s for s in found if s.setting not in said]:
        return
    if config.action == "warn":
        alarm(session, item, found, {})
        session.progress.say(f"{session.where}: RL may be collapsing: {_listed(found)}")
        return
    good = session.ranks.agree(lambda: last_good(session))
    turns = config.action == "roll_back" and item.kind == "rl"  # knobs are numbers of RL
    if not turns or num_roll_backs(session.state) >= config.max_roll_backs or good is None:
        alarm(session, item, found, {})
        again = f" again, after {n} roll-backs" if (n := num_roll_backs(session.state)) else ""
        raise RunError(
            f"{session.where}: RL is collapsing{again}: {_listed(found)}. "
            + (f"The policy before that is {good / 'model'}" if good else "No checkpoint is older than that")
            + f"; lower {item.kind}.optimizer.learning_rate, or raise the limit that is named, and start under another "
            "name"
        )
    roll_back(session, item, found, good)


def last_good(session: Session) -> Path | None:
    """The newest whole checkpoint of this stage from before the steps that showed the collapse."""
    paths = [session.shared / "checkpoints" / f"{n:08d}" for n in good_serials(session.state, session.config)]
    return next((p for p in paths if p.is_dir() and checkpoint.fault(p) is None), None)


def roll_back(session: Session, item: Item, found: Sequence[Sign], good: Path) -> None:
    """Go on from the checkpoint `good` with the knob turned once more. Raises: RolledBack.

    The files of the run stay: the line of the alarm says which steps before it no longer count. What was generated
    stays counted too. A run killed before the checkpoint that is written here finds the same collapse again.
    """
    state, step = session.state, session.state.rl_step
    spent = {n: getattr(state, n) for n in ("num_tokens", "num_responses", "num_prompts_used", "serial")}
    times = num_roll_backs(state) + 1
    rewind(session, good)
    vars(state).update(spent)
    state.guard |= {"roll_backs": times, "said": []}
    settle(session)
    assert session.config.rl is not None
    assert isinstance(session.backend, TorchBackend)  # a recipe with another one is refused
    if state.rl_step > state.stage_start:  # else the stage begins anew, and its optimiser with it
        session.backend.config = session.config.rl.optimizer
    knob = {name: _value(session, name) for name in session.config.guard.knob}
    alarm(session, item, found, {"step": step, "to_step": state.rl_step, "roll_backs": times, "knob": knob})
    changed = ", ".join(f"{name} is now {value:g}" for name, value in knob.items())
    session.progress.say(
        f"{session.where}: RL collapsed: {_listed(found)}. Rolled back to step {state.rl_step} "
        f"({times} of at most {session.config.guard.max_roll_backs}); {changed}"
    )
    session.save()
    raise RolledBack


def rewind(session: Session, start: Path) -> None:
    """Make the session what it was at the checkpoint `start` of the present stage; `settle` brings its algorithm."""
    from pipeline.run.build import put_weights

    if session.runahead is not None:
        session.runahead.forget()
    saved = RunState.from_json(json.loads((start / "state.json").read_text()))
    vars(session.state).update(vars(saved))
    if session.recipe.train.lora is None:  # else the base never changed, and the adapters come with the backend
        put_weights(session, start)
    session.backend.load(start)
    session.sampler, session.ledger = order_of(session.recipe, session.data, session.state)
    session.ahead = None
    session.backend.whole_model()
    lag.publish_first(session, start)


def alarm(session: Session, item: Item, found: Sequence[Sign], more: dict[str, object]) -> None:
    """The line of metrics.jsonl, and the event for whoever acts on it."""
    config = session.config.guard
    line = {
        "kind": "alarm",
        "alarm": "collapse",
        "stage": item.stage,
        "stage_kind": item.kind,
        "round": item.round,
        "step": session.state.rl_step,
        "action": config.action,
        "signs": [{"measure": s.measure, "value": s.value, "limit": s.limit, "said": str(s)} for s in found],
        **more,
    }
    session.store.metrics({**line, "time": {}})
    session.events("verizero.collapse.suspected", {**line, "where": session.where})


def _listed(found: Sequence[Sign]) -> str:
    return ", ".join(map(str, found))


def _value(session: Session, name: str) -> float:
    """What the knob stands at."""
    section, _, field = name.rpartition(".")
    rl = session.config.rl
    assert rl is not None
    if section == "rl.algorithm":
        return float(rl.algorithm[field])
    return float(getattr(rl.optimizer if section == "rl.optimizer" else session.config.rollout, field))
