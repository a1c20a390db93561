"""A whole run: every item of its schedule, each once, with a checkpoint after it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from pipeline.config.run import RunConfig
from pipeline.config.stages import BASE, RoundsConfig
from pipeline.loop.rollback import RolledBack
from pipeline.loop.steps import Steps, Wrap, plain, stage_step
from pipeline.report.exposition import exposed
from pipeline.report.page import build_page
from pipeline.report.progress import Progress, Silent
from pipeline.report.summary import build_summary
from pipeline.run.build import build_tokenizer, context_of, device_of
from pipeline.run.data import RunData, prepare_data
from pipeline.run.schedule import Item, position, schedule
from pipeline.run.session import Resume, Session, enter, locked, open_session
from pipeline.stages.evaluate import evaluate
from pipeline.train.ranks import Ranks, join, leave
from pipeline.train.watch import SPARE_S, WATCH


def run_folder(config: RunConfig, base: Path | None = None) -> Path:
    """The folder of the run, under the recipe's `output` (relative to the working folder)."""
    return (base or Path.cwd()) / config.output / config.name


def prepare_run(config: RunConfig, base_dir: Path, folder: Path) -> RunData:
    """Load and check the data; needs no server and no policy, so it can go on beside their start."""
    return prepare_data(config, build_tokenizer(config), context_of(config), base_dir, folder)


@contextmanager
def opened(
    config: RunConfig, base_dir: Path, folder: Path, resume: Resume, progress: Progress, data: RunData | None = None
) -> Iterator[Session]:
    """A session that holds the run's folder until the block ends. `data`: prepared before, else here.

    In a group of processes each has its own session over the same state; rank 0 holds the folder and writes there.
    """
    ranks = join(config.launch.phase_timeout_s + SPARE_S, device_of(config))
    with ExitStack() as held:
        held.callback(leave)
        held.push(WATCH.leave)
        own = held.enter_context(own_folder(folder, ranks))
        if ranks.is_first:
            address = held.enter_context(exposed(folder, config.name, config.report.metrics_port))
            if address is not None:
                progress.say(f"metrics for Prometheus at {address}")
        prepared = data if data is not None else prepare_run(config, base_dir, own)
        session = open_session(config, own, prepared, resume, progress, base_dir, ranks, folder)
        held.callback(session.close)
        yield session


@contextmanager
def own_folder(folder: Path, ranks: Ranks) -> Iterator[Path]:
    """Where this rank writes: the run's folder for the first, which holds it; for others one that nobody reads.

    That goes with the block where it ends well, else as the run goes on.
    """
    if ranks.is_first:
        with locked(folder):
            for left in (p for p in (folder / "logs").glob("rank*") if p.is_dir()):
                shutil.rmtree(left, ignore_errors=True)
            ranks.barrier()  # another group that would train here gets no further than the lock
            yield folder
        return
    ranks.barrier()
    own = folder / "logs" / f"rank{ranks.rank}"
    own.mkdir(parents=True, exist_ok=True)
    yield own
    shutil.rmtree(own, ignore_errors=True)


def remaining(session: Session) -> list[tuple[str, list[Item]]]:
    """What is still to be done, by stage, in order."""
    stages: list[tuple[str, list[Item]]] = []
    for item in upcoming(session, schedule(session.recipe)[-1]):
        if not stages or stages[-1][0] != item.stage:
            stages.append((item.stage, []))
        stages[-1][1].append(item)
    return stages


def run_items(session: Session, items: list[Item], steps: Steps, wrap: Wrap = plain) -> None:
    """Do the items, each from where the state says, with a checkpoint after each."""
    state, left = session.state, list(items)
    while left:
        item = left.pop(0)
        if item.stage != BASE:
            enter(session, item.stage)
        if item.kind == "evaluate":
            if state.evaluated_version == state.policy_version:
                session.progress.say(f"{item.label}: nothing was trained since the last evaluation")
            else:
                evaluate(session, item, wrap)
            state.evaluated_version, state.is_evaluated = state.policy_version, True
        else:
            try:
                run_of(item.kind)(session, item, steps, wrap)
            except RolledBack:
                left = upcoming(session, items[-1])
                continue
            state.num_done, state.step, state.is_evaluated = state.num_done + 1, 0, False
        if not left or left[0].kind != "evaluate":
            tell_round(session, item)
        session.save()


def tell_round(session: Session, item: Item) -> None:
    """Say that the round of `item` is over, its evaluation too where one follows it; not of one that took no step."""
    if item.round == 0:
        return
    state, section = session.state, getattr(session.config, session.config.stages[0].kind)
    if isinstance(section, RoundsConfig) and stage_step(session) > (item.round - 1) * section.steps_per_round:
        done = {"stage": item.stage, "round": item.round, "rounds": section.rounds}
        session.events("verizero.round.completed", {**done, "step": state.rl_step, "tokens": state.num_tokens})


def upcoming(session: Session, last: Item) -> list[Item]:
    """What is still to be done, up to the item `last`."""
    items, state = schedule(session.recipe), session.state
    return items[position(items, state.num_done, state.is_evaluated) : items.index(last) + 1]


def run_of(kind: str) -> Callable[[Session, Item, Steps, Wrap], None]:
    """What does an item of such a stage: `run` in the module of its kind."""
    run: Callable[[Session, Item, Steps, Wrap], None] = import_module(f"pipeline.stages.{kind}").run
    return run


def finish(session: Session) -> dict[str, Any]:
    """The final model, summary.json and report.html; the summary."""
    session.save_final()
    session.store.sync()
    if not session.ranks.is_first:
        return {}
    summary = build_summary(session.folder)
    build_page(session.folder)
    return summary


def train(config: RunConfig, base_dir: Path, folder: Path, resume: Resume, progress: Progress) -> dict[str, Any]:
    """Run the recipe in this process, without an orchestrator; the summary."""
    with opened(config, base_dir, folder, resume, progress) as session:
        for _, items in remaining(session):
            run_items(session, items, Steps())
        return finish(session)


def evaluate_model(config: RunConfig, base_dir: Path, progress: Progress | None = None) -> dict[str, Any]:
    """The recipe's evaluation of the model that it names, by domain; nothing is trained and nothing is kept."""
    with tempfile.TemporaryDirectory() as folder:
        with opened(config, base_dir, Path(folder), "auto", progress or Silent()) as session:
            return evaluate(session, Item("evaluate", BASE, "evaluation"), plain)
