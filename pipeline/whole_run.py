"""A whole run, with Prefect or without: every item of its schedule, each once, with a checkpoint after it.

After each round the run is diagnosed (`report_causes`): each cause is reported once, in the log and to listeners.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from verizero.pipeline import registry
from verizero.pipeline.checks.diagnosis import diagnose
from verizero.pipeline.checks.finding import Finding
from verizero.pipeline.checks.page import cards_of, rule_failed
from verizero.pipeline.checks.run_facts import read
from verizero.pipeline.config.recipes import Resume, without_trackers
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.stages import BASE, RoundsConfig
from verizero.pipeline.errors import Stopped
from verizero.pipeline.loop.phases import PhaseWrapper, unwrapped
from verizero.pipeline.loop.rollback import RolledBack
from verizero.pipeline.models.load import quiet
from verizero.pipeline.report.ended import Ended, ended_well, record_end
from verizero.pipeline.report.page import build_page
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.report.summary import build_summary
from verizero.pipeline.run.callbacks import Callback, load_callbacks
from verizero.pipeline.run.opening import enter_stage, open_run
from verizero.pipeline.run.recorder import Recorder
from verizero.pipeline.run.saving import save, save_final
from verizero.pipeline.run.session import Run, Session, StageSetup
from verizero.pipeline.run.state import EVALUATION, Item, RunState, schedule
from verizero.pipeline.shown import one_line
from verizero.pipeline.stages.evaluate import evaluate
from verizero.pipeline.train.ranks import ranks_of_environment


class Orchestrator(Protocol):
    """Shows a run while it goes. Each method calls the function that it is given once, within what it shows."""

    def run(self, config: RunConfig, folder: Path, function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Call the function that does the whole run, and return its summary."""
        ...

    def stage(self, session: Session, stage: str, function: Callable[[PhaseWrapper], None]) -> None:
        """Call the function that does the items of one stage. It passes each phase of them through the wrap."""
        ...

    def report(self, session: Session, function: Callable[[Session], dict[str, Any]]) -> dict[str, Any]:
        """Call the function that ends the run, and return its summary."""
        ...


class InProcess:
    """The orchestrator of `--no-prefect`, which shows nothing. That of Prefect is in `flows/train.py`."""

    def run(self, config: RunConfig, folder: Path, function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Call the function."""
        return function()

    def stage(self, session: Session, stage: str, function: Callable[[PhaseWrapper], None]) -> None:
        """Call the function, with phases as they are."""
        function(unwrapped)

    def report(self, session: Session, function: Callable[[Session], dict[str, Any]]) -> dict[str, Any]:
        """Call the function."""
        return function(session)


def train(
    config: RunConfig,
    base_dir: Path,
    folder: Path,
    resume: Resume,
    progress: Progress,
    orchestrator: Orchestrator | None = None,
    callbacks: Sequence[str | Callback] = (),
) -> dict[str, Any]:
    """Run the recipe in this process, from its newest checkpoint if there is one; return the summary.

    `orchestrator`: shows the run, its stages and their phases; None: nothing does. `callbacks`: more than the recipe's.
    """
    quiet()
    shown = InProcess() if orchestrator is None else orchestrator
    loaded = load_callbacks(config.callbacks, base_dir, callbacks, ranks_of_environment().is_first)

    def run() -> dict[str, Any]:
        with open_run(config, base_dir, folder, resume, progress) as session:
            session.recorder.callbacks = loaded
            for stage, items in items_by_stage(session.run, session.state):
                shown.stage(session, stage, partial(run_until_stopped, session, items))
                if loaded.stopped_by:
                    break
            return shown.report(session, finish)

    return shown.run(config, folder, run)


def items_by_stage(run: Run, state: RunState) -> list[tuple[str, list[Item]]]:
    """Return the items that are still to be done, those of each stage together."""
    items = state.items_left(schedule(run.recipe))
    return [(stage, list(group)) for stage, group in groupby(items, lambda item: item.stage)]


def items_until(run: Run, state: RunState, last: Item) -> list[Item]:
    """Return the items that are still to be done, up to `last`."""
    items = schedule(run.recipe)
    return state.items_left(items[: items.index(last) + 1])


def run_until_stopped(session: Session, items: list[Item], wrap: PhaseWrapper) -> None:
    """Do the items, or those before a callback ended the run."""
    with suppress(Stopped):
        run_items(session, items, wrap)


def run_items(session: Session, items: list[Item], wrap: PhaseWrapper = unwrapped) -> None:
    """Do the items, each from the step that the state names, with a checkpoint after each."""
    left = list(items)
    while left:
        item = left.pop(0)
        try:
            run_item(session, item, left, wrap)
        except RolledBack:
            left = items_until(session.run, session.state, items[-1])


def run_item(session: Session, item: Item, later: Sequence[Item], wrap: PhaseWrapper = unwrapped) -> None:
    """Do one item, from the step that the state names; `later` are those that follow it. Raise RolledBack, Stopped."""
    begin_item(session, item)
    if not item.is_evaluation:
        registry.find("stages", item.kind).KIND.run(session, item, wrap)
    elif session.state.evaluated_version == session.state.policy_version:
        session.recorder.say(f"{item.label}: nothing was trained since the last evaluation")
    else:
        evaluate(session, item, wrap)
    end_item(session, item, later)


def begin_item(session: Session, item: Item) -> None:
    """Enter the item's stage, unless the session is in it."""
    if not item.is_evaluation:  # an evaluation has woken an engine that would sit on the trainer's GPU
        session.workers.rollouts.free_memory()
    is_entered = session.setup.config.stage_names == (item.stage,) and session.state.stage.name == item.stage
    if item.stage != BASE and not is_entered:
        session.setup = enter_stage(session.run, session.workers, session.state, session.recorder, item.stage)


def end_item(session: Session, item: Item, later: Sequence[Item]) -> None:
    """Count a finished item, report its round and write a checkpoint. Raise Stopped if a callback ended the run."""
    run, state, recorder = session.run, session.state, session.recorder
    if item.is_evaluation:
        state.evaluated_version, state.is_evaluated = state.policy_version, True
    else:
        state.num_done, state.step, state.is_evaluated = state.num_done + 1, 0, False
    if not later or not later[0].is_evaluation:
        causes: list[str] = []
        if run.ranks.is_first:
            causes = report_causes(recorder, run.rank_folder, item)
        announce_round(session.setup, state, recorder, item, causes)
    save(session)
    recorder.callbacks.raise_if_stopped()


def announce_round(
    setup: StageSetup, state: RunState, recorder: Recorder, item: Item, causes: Sequence[str] = ()
) -> None:
    """Send the event that a round is over, its evaluation too; none for a round that took no step.

    `causes`: those for which the run does not learn, a line each.
    """
    if item.round == 0:
        return
    section = setup.section
    if isinstance(section, RoundsConfig) and state.step_in_stage > (item.round - 1) * section.steps_per_round:
        round_ = {"stage": item.stage, "round": item.round, "rounds": section.rounds}
        recorder.listener(
            "verizero.round.completed",
            {**round_, "step": state.rl_step, "tokens": state.stage.num_tokens, "causes": list(causes)},
        )


def finish(session: Session) -> dict[str, Any]:
    """Write the final model, summary.json and report.html; return the summary."""
    run = session.run
    session.recorder.progress.under_way("writes the final model and the report")
    save_final(run, session.workers.backend)
    session.recorder.store.sync()
    if not run.ranks.is_first:
        return {}
    budgets = {
        stage: (section.rounds * section.steps_per_round, section.max_tokens)
        for stage, section in run.recipe.sections_of(RoundsConfig).items()
        if section.max_tokens is not None
    }
    ended = ended_well(run.rank_folder, budgets)
    callbacks = session.recorder.callbacks
    if callbacks.stopped_by:
        ended = Ended("stopped", callbacks.stopped_at, callbacks.stopped_by)
    record_end(run.rank_folder, ended)
    session.recorder.say(str(ended))
    summary = build_summary(run.rank_folder)
    build_page(run.rank_folder, *cards_of(run.rank_folder, session.recorder.say))
    return summary


def evaluate_model(config: RunConfig, base_dir: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Return the recipe's evaluation of the model that it names, by domain. Nothing is trained and nothing is kept."""
    with tempfile.TemporaryDirectory() as folder:
        with open_run(without_trackers(config), base_dir, Path(folder), "auto", progress or Progress()) as session:
            return evaluate(session, Item(EVALUATION, BASE, "evaluation"), unwrapped)


EVENT = "verizero.diagnosis.finding"
MAX_BYTES = 4 * 2**20
"""Bytes of rollouts.jsonl that are read after a round, from its beginning and its end."""


def report_causes(recorder: Recorder, folder: Path, item: Item) -> list[str]:
    """Report each cause above the level of a note that the files of the run show; return one line a cause.

    A cause is reported the first time only. It reads the files and writes none. An error becomes a warning, and the
    run continues.
    """
    try:
        findings = diagnose(
            read(folder, MAX_BYTES), lambda name, exc: warn(recorder, f"{item.label}: {rule_failed(name, exc)}")
        )
        shown = [f for f in findings if f.level != "note"]
        for finding in shown:
            report_cause(recorder, item, finding)
        return [line_of(f) for f in shown]
    except Exception as exc:  # any error: advice must not end a run that trains
        warn(recorder, f"{item.label}: warning: the run could not be diagnosed: {type(exc).__name__}: {exc}")
        return []


def report_cause(recorder: Recorder, item: Item, finding: Finding) -> None:
    """Write a cause to the log and send its event, unless this process has done so for the same stage."""
    key = f"{item.stage}: {finding.cause}"
    if key in recorder.reported:
        return
    recorder.reported.add(key)
    recorder.say(one_line(f"{item.label}: {line_of(finding)}"))
    fields = {
        "cause": finding.cause,
        "level": finding.level,
        "confidence": finding.confidence,
        "sentence": one_line(finding.sentence),
        "evidence": [one_line(str(e)) for e in finding.evidence],
        "remedy": one_line(finding.remedy),
    }
    recorder.listener(EVENT, {"stage": item.stage, "round": item.round, **fields})


def warn(recorder: Recorder, text: str) -> None:
    """Write a warning to the log once: a rule that fails after one round fails after each."""
    _, _, reason = text.partition("warning: ")
    if reason not in recorder.reported:
        recorder.reported.add(reason)
        recorder.say(one_line(text))


def line_of(finding: Finding) -> str:
    """Return a finding in one line."""
    return one_line(f"{finding.level}: {finding.cause}: {finding.sentence} Remedy: {finding.remedy}")
