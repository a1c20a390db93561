"""Opening a run: its folder and lock, the checkpoint to resume from, and the objects that a session holds."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from verizero.pipeline.config.auto_rates import leaves_rates_open, with_rates
from verizero.pipeline.config.machine import for_machine
from verizero.pipeline.config.recipes import Resume
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import ResumeRefused
from verizero.pipeline.host.disk import locked, require_plain
from verizero.pipeline.models.quantized import library
from verizero.pipeline.report.ended import ended_by, record_failure
from verizero.pipeline.report.measures import watch_cores
from verizero.pipeline.report.progress import Logged, Progress
from verizero.pipeline.report.store import Store
from verizero.pipeline.run.build import (
    build_backend,
    build_recorder,
    build_source,
    build_tokenizer,
    context_of,
    device_of,
    num_parameters_of,
)
from verizero.pipeline.run.choose_checkpoint import changed_at, choose_checkpoint
from verizero.pipeline.run.data import RunData, prepare_data
from verizero.pipeline.run.episodes import build_episodes, check_template
from verizero.pipeline.run.fingerprints import fingerprints
from verizero.pipeline.run.graders import build_graders
from verizero.pipeline.run.info import write_run_info
from verizero.pipeline.run.session import Run, Session, Workers
from verizero.pipeline.run.stage_entry import enter_stage, load_policy, next_stage, restore_in_flight, restored_sampler
from verizero.pipeline.run.state import RunState, read_state
from verizero.pipeline.run.teachers import check_domains
from verizero.pipeline.scoring.sandbox_setup import use_sandbox
from verizero.pipeline.train.deadline import SPARE_S, WATCH
from verizero.pipeline.train.device import switched
from verizero.pipeline.train.optimizer import check_kinds
from verizero.pipeline.train.ranks import Ranks, join, leave

LOG = "run.log"
"""Name of the file in the run's folder that has every line which the run showed."""


def prepare_run(config: RunConfig, base_dir: Path, folder: Path) -> RunData:
    """Load and check the data."""
    use_sandbox(config.sandbox)  # a row is refused if its tests need a package that the sandbox has not
    data = prepare_data(config, build_tokenizer(config), context_of(config), base_dir, folder)
    check_domains(config, data.train, data.renderer.tokenizer)
    return data


@contextmanager
def open_run(config: RunConfig, base_dir: Path, folder: Path, resume: Resume, progress: Progress) -> Iterator[Session]:
    """Yield a session that holds the run's folder until the block ends.

    What is shown is written to run.log too. An exception ends the run: run.json, summary.json and run.log then have the
    reason.

    In a group of processes each has a session of its own over the same state. Rank 0 holds the folder and writes there.
    """
    with ExitStack() as stack:
        device = device_of(config)
        if config.model.quantize == "nf4":
            library("model.quantize=nf4")
        sections = map(config.section_of, config.stages)
        check_kinds((optimizer.kind for section in sections for _, optimizer in section.optimizers()), device)
        stack.enter_context(switched(config.train, device))
        # With a timeout: missing ranks end the run instead of blocking it.
        ranks = join(config.launch.phase_timeout_s + SPARE_S, device)
        config = for_machine(config, ranks.size, device)
        if leaves_rates_open(config):
            config = with_rates(config, num_parameters_of(config))
        # Undone in reverse: first the session and its threads, the group of ranks last.
        stack.callback(leave)
        stack.push(WATCH.leave)
        rank_folder = stack.enter_context(folder_of_rank(folder, ranks))
        log: Logged | None = None
        if ranks.is_first:
            progress = log = stack.enter_context(closing(Logged(progress, folder / LOG, config.name)))
            stack.enter_context(watch_cores(progress.say))
        session: Session | None = None
        try:
            progress.under_way("loads the data")
            data = prepare_run(config, base_dir, rank_folder)
            session = open_session(config, folder, rank_folder, data, resume, progress, base_dir, ranks)
            stack.callback(session.close)
            yield session
        except ResumeRefused:  # this start is refused; how the run in the folder ended stays as it is
            raise
        except BaseException as exc:
            if log is not None:
                ended = ended_by(exc, "the start" if session is None else session.recorder.step_label)
                record_failure(folder, ended)
                log.lines.say(str(ended))
            raise


@contextmanager
def folder_of_rank(folder: Path, ranks: Ranks) -> Iterator[Path]:
    """Yield the folder that this rank writes to: the locked run's folder for rank 0, a private one for the others.

    A private folder is deleted at the end of a block without an error, else when the run is resumed.
    """
    if ranks.is_first:
        require_plain(folder)
        with locked(folder):
            for left in (p for p in (folder / "logs").glob("rank*") if p.is_dir()):
                # Left by ranks of a launch that was killed; rank 0 holds the lock, so nobody uses them.
                shutil.rmtree(left, ignore_errors=True)
            ranks.barrier()  # a second group that wants to train here stops at the lock, before this
            yield folder
        return
    ranks.barrier()
    private = folder / "logs" / f"rank{ranks.rank}"
    private.mkdir(parents=True, exist_ok=True)
    yield private  # without `finally`: after an error the folder stays, for its logs
    shutil.rmtree(private, ignore_errors=True)


def open_session(
    config: RunConfig,
    folder: Path,
    rank_folder: Path,
    data: RunData,
    resume: Resume,
    progress: Progress,
    base_dir: Path,
    ranks: Ranks,
) -> Session:
    """Return a session at the start of the run, or at the newest checkpoint in its folder. Rank 0 must hold the lock.

    `folder` is the run's; this rank writes to `rank_folder`.
    Raises: RunError, CheckpointError, ConfigError, DataError.
    """
    prints = fingerprints(config, data, base_dir) if ranks.is_first else []
    # Rank 0 decides alone: the others could see another newest checkpoint, or one that is being moved.
    start = ranks.decide_on_first(lambda: choose_checkpoint(folder, resume, progress, prints))
    graders, isolation = build_graders(config, data, base_dir, progress)
    state = RunState() if start is None else read_state(start)
    if start is not None and changed_at(folder, start):
        state.stage.carried = []  # graded by the function that was changed
    tokenizer = data.renderer.tokenizer
    progress.under_way("loads the model")
    backend = build_backend(config, load_policy(config, tokenizer, start), ranks)
    if start is not None:
        backend.load(start)  # optimisers, reference and critic
    run = Run(config, folder, rank_folder, base_dir, data, tokenizer, ranks, tuple(prints), start, isolation)
    store = Store(rank_folder)
    # Lines of steps after the checkpoint are deleted: those steps are done again.
    store.cut(*((state.store.lengths, state.store.sums) if ranks.is_first else ({}, {})))
    recorder = build_recorder(run, store, backend, progress)
    episodes = build_episodes(config, data, base_dir, getattr(backend.model.config, "max_position_embeddings", None))
    if episodes is not None and ranks.is_first and (note := check_template(config, data, base_dir)):
        progress.say(note)
    progress.under_way("starts the engine")
    source = build_source(config, backend, data, rank_folder, episodes)
    workers = Workers(backend, source, graders, *restored_sampler(run, state))
    setup = enter_stage(run, workers, state, recorder, next_stage(config, state))
    # After the stage is entered, which may replace the weights; before batches in flight use the engine.
    workers.rollouts.publish(backend, state.policy_version)
    workers.rollouts.wait()
    restore_in_flight(workers, setup, state)
    write_run_info(run, workers, setup)
    if start is not None:
        recorder.say(f"resuming from checkpoint {start.name}")
    return Session(run, workers, state, recorder, setup)
