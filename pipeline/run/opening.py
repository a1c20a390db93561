"""Opening a run: its folder and lock, the checkpoint to resume from, and the objects that a session holds."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from verizero.pipeline.config.backend import with_backend
from verizero.pipeline.config.episodes import timed_settings
from verizero.pipeline.config.load import dump
from verizero.pipeline.config.recipes import Resume
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.stages import BASE
from verizero.pipeline.data.ledger import PassRateLedger
from verizero.pipeline.data.sampler import PromptSampler
from verizero.pipeline.errors import RunError
from verizero.pipeline.files import disk_errors, locked
from verizero.pipeline.models.flops import peak_flops
from verizero.pipeline.models.gguf_file import provenance
from verizero.pipeline.models.load import DTYPES
from verizero.pipeline.models.routing import num_experts
from verizero.pipeline.report.ended import ended_by, record_end
from verizero.pipeline.report.exposition import exposed
from verizero.pipeline.report.memory import DevicePeaks, gpu_peaks
from verizero.pipeline.report.progress import Logged, Progress
from verizero.pipeline.report.store import Store
from verizero.pipeline.report.trackers import Trackers
from verizero.pipeline.run import collapse
from verizero.pipeline.run.algorithm import resolve_parts
from verizero.pipeline.run.aside import put_aside
from verizero.pipeline.run.build import (
    build_backend,
    build_policy,
    build_source,
    build_tokenizer,
    context_of,
    device_of,
    start_of,
)
from verizero.pipeline.run.data import RunData, prepare_data
from verizero.pipeline.run.episodes import build_episodes, check_template
from verizero.pipeline.run.fingerprints import Fingerprint, fingerprints, put_aside_stale, write_record
from verizero.pipeline.run.graders import bind_grader, build_graders
from verizero.pipeline.run.lengths import take_up
from verizero.pipeline.run.origin import write_origin
from verizero.pipeline.run.recorder import Recorder
from verizero.pipeline.run.sampling import asked_of
from verizero.pipeline.run.saving import TEMPLATE_FILE
from verizero.pipeline.run.schedule import position, schedule
from verizero.pipeline.run.session import Run, Session, StageSetup, Workers
from verizero.pipeline.run.state import RunState, read_state
from verizero.pipeline.run.teachers import check_domains
from verizero.pipeline.train import checkpoint
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.deadline import SPARE_S, WATCH
from verizero.pipeline.train.device import switched
from verizero.pipeline.train.prepare import Controllers
from verizero.pipeline.train.ranks import ALONE, Ranks, join, leave

LOG = "run.log"
"""Name of the file in the run's folder that has every line which the run showed."""
PACKAGES = ("torch", "transformers", "prefect", "sympy", "math-verify", "numpy")
"""Packages whose versions are written into run.json."""


def prepare_run(config: RunConfig, base_dir: Path, folder: Path) -> RunData:
    """Load and check the data. This needs no server and no policy, so it can run while those start."""
    data = prepare_data(config, build_tokenizer(config), context_of(config), base_dir, folder)
    check_domains(config, data.train)
    return data


@contextmanager
def opened(
    config: RunConfig,
    base_dir: Path,
    folder: Path,
    resume: Resume,
    progress: Progress,
    prepare: Callable[[], RunData] | None = None,
) -> Iterator[Session]:
    """Yield a session that holds the run's folder until the block ends.

    `prepare` returns the data; None: `prepare_run` does. What is shown is written to run.log too. An exception ends the
    run: run.json, summary.json and run.log then have the reason.

    In a group of processes each has a session of its own over the same state. Rank 0 holds the folder and writes there.
    """
    with ExitStack() as stack:
        device = device_of(config)
        stack.enter_context(switched(config.train, device))
        # A collective with a limit: ranks that never come end the run instead of blocking it.
        ranks = join(config.launch.phase_timeout_s + SPARE_S, device)
        config = with_backend(config, ranks.size, device)
        # Undone in reverse: first the session and its threads, the group of ranks last.
        stack.callback(leave)
        stack.push(WATCH.leave)
        own = stack.enter_context(own_folder(folder, ranks))
        log: Logged | None = None
        if ranks.is_first:
            progress = log = stack.enter_context(closing(Logged(progress, folder / LOG, config.name)))
            address = stack.enter_context(exposed(folder, config.name, config.report.metrics_port))
            if address is not None:
                progress.say(f"metrics for Prometheus at {address}")
        session: Session | None = None
        try:
            progress.under_way("loads the data")
            data = prepare_run(config, base_dir, own) if prepare is None else prepare()
            session = open_session(config, own, data, resume, progress, base_dir, ranks=ranks, shared=folder)
            stack.callback(session.close)
            yield session
        except BaseException as exc:
            if log is not None:
                ended = ended_by(exc, "the start" if session is None else session.recorder.where)
                record_end(folder, ended)
                log.lines.say(str(ended))
            raise


@contextmanager
def own_folder(folder: Path, ranks: Ranks) -> Iterator[Path]:
    """Yield the folder that this rank writes to: the locked run's folder for rank 0, a private one for the others.

    A private folder is deleted at the end of a block without an error, else when the run is resumed.
    """
    if ranks.is_first:
        with locked(folder):
            for left in (p for p in (folder / "logs").glob("rank*") if p.is_dir()):
                # Left by ranks of a launch that was killed; rank 0 holds the lock, so nobody uses them.
                shutil.rmtree(left, ignore_errors=True)
            ranks.barrier()  # a second group that wants to train here stops at the lock, before this
            yield folder
        return
    ranks.barrier()
    own = folder / "logs" / f"rank{ranks.rank}"
    own.mkdir(parents=True, exist_ok=True)
    yield own  # without `finally`: after an error the folder stays, for its logs
    shutil.rmtree(own, ignore_errors=True)


def open_session(
    config: RunConfig,
    folder: Path,
    data: RunData,
    resume: Resume,
    progress: Progress,
    base_dir: Path,
    ranks: Ranks = ALONE,
    shared: Path | None = None,
) -> Session:
    """Return a session at the start of the run, or at the newest checkpoint in its folder. Rank 0 must hold the lock.

    This process writes to `folder`; `shared` is the run's folder (None: the same).
    Raises: RunError, CheckpointError, ConfigError, DataError.
    """
    shared = shared or folder
    prints = fingerprints(config, data, base_dir) if ranks.is_first else []
    # Rank 0 decides alone: the others could see another newest checkpoint, or one that is being moved.
    start = ranks.agree(lambda: find_checkpoint(shared, resume, progress, prints))
    graders, isolation = build_graders(config, data, base_dir, progress)
    state = RunState() if start is None else read_state(start)
    take_up(config, state)
    tokenizer = data.renderer.tokenizer
    progress.under_way("loads the model")
    backend = build_backend(config, build_policy(config, tokenizer, start), ranks)
    if start is not None:
        backend.load(start)
    # the backend's ranks know which of them share sequences
    run = Run(config, folder, shared, base_dir, data, tokenizer, backend.ranks, tuple(prints), start, isolation)
    store = Store(folder)
    # Lines after the checkpoint belong to steps that are done again.
    store.cut(*((state.store.lengths, state.store.sums) if ranks.is_first else ({}, {})))
    trackers = config.report.trackers if ranks.is_first else ()
    tracked = Trackers(trackers, folder, config.name, config.model_dump(mode="json"))
    recorder = Recorder(store, tracked, progress, *gpu_of(config, backend))
    episodes = build_episodes(config, data, base_dir, getattr(backend.model.config, "max_position_embeddings", None))
    if episodes is not None and ranks.is_first and (note := check_template(config, data, base_dir, folder)):
        progress.say(note)
    progress.under_way("starts the engine")
    source = build_source(config, backend, data, folder, episodes)
    workers = Workers(backend, source, graders, *sampler_at(run, state))
    setup = enter_stage(run, workers, state, recorder, next_stage(config, state))
    # After the stage is entered, which may replace the weights; before batches in flight use the engine.
    workers.rollouts.publish_first(backend, state.policy_version, start)
    restore_in_flight(workers, setup, state)
    write_run_info(run, workers, setup)
    if start is not None:
        recorder.say(f"resuming from checkpoint {start.name}")
    return Session(run, workers, state, recorder, setup)


def gpu_of(config: RunConfig, backend: Backend) -> tuple[DevicePeaks | None, float | None]:
    """Return the meter of this rank's GPU, and the operations a second of all ranks' GPUs; None for the CPU.

    The second is None also for a GPU whose data sheet is not known here, unless the recipe has its number.
    """
    model, told = backend.model, config.train.peak_tflops
    if model.device.type != "cuda":
        return None, None
    # The recipe's type: that of divided weights is their masters'.
    size = DTYPES[config.model.dtype].itemsize
    peak = peak_flops(torch.cuda.get_device_name(model.device), size) if told is None else 1e12 * told
    return gpu_peaks(), None if peak is None else peak * backend.ranks.size


def find_checkpoint(folder: Path, resume: Resume, progress: Progress, prints: Sequence[Fingerprint]) -> Path | None:
    """Return the checkpoint to resume from, or None to start from the beginning.

    Results of stages whose fingerprints are not those of `prints` are put aside, and so is what came after a whole
    checkpoint if newer ones are damaged.
    Raise RunError if `resume` is never and there is a checkpoint, or must and there is none, or if the recipe changed
    in what the first stage depends on; CheckpointError if there are checkpoints and none can be used.
    """
    root = folder / "checkpoints"
    if resume == "never" and checkpoint.numbered(root):
        raise RunError(
            f"{folder} already holds a run, and resume is 'never'; use resume 'auto' to continue it, another name, or "
            "delete the folder"
        )
    path, damaged = checkpoint.newest(root)
    if path is None and resume == "must":
        raise RunError(f"{folder} has no checkpoint to resume from, and resume is 'must'; start it with resume 'auto'")
    if path is not None and not damaged:
        return put_aside_stale(folder, prints, path, progress)
    # Kept, not cut: nobody can tell here whether it was a try of a minute or the only trace of a week.
    where = put_aside(folder, path, ())
    if path is None:
        if where is not None:
            progress.say(
                f"no checkpoint in {root}: starts from the beginning; what an earlier try wrote is kept in {where}"
            )
        return None
    for bad in damaged:
        progress.say(f"refused checkpoint {bad}; using the one before it")
    progress.say(f"continues from the older checkpoint {path.name}; what came after it is kept in {where}")
    return put_aside_stale(folder, prints, path, progress)


def sampler_at(run: Run, state: RunState) -> tuple[PromptSampler, PassRateLedger]:
    """Return the sampler of prompts and the ledger of their pass rates, at the position of `state`."""
    ledger, how = PassRateLedger(), run.recipe.data.sampling
    sampler = PromptSampler(run.data.train, run.seed, how.order, how.weights, ledger, how.pass_rate)
    if state.ledger is not None:
        ledger.load_state_dict(state.ledger)
    # while nothing was drawn, the prompts may have changed since the checkpoint: no stage so far depends on them
    if state.sampler is not None and any(state.sampler["drawn"].values()):
        sampler.load_state_dict(state.sampler)
    return sampler, ledger


def next_stage(config: RunConfig, state: RunState) -> str:
    """Return the stage of the next item: the first one before all, the last one of a finished run."""
    items = schedule(config)
    item = items[min(position(items, state.num_done, state.is_evaluated), len(items) - 1)]
    return config.stages[0].name if item.stage == BASE else item.stage


def enter_stage(run: Run, workers: Workers, state: RunState, recorder: Recorder, stage: str) -> StageSetup:
    """Start or continue a stage: write that it was started, give it its policy, and return its setup."""
    if run.ranks.is_first:
        write_record(run.folder, run.fingerprints[: run.recipe.stage_names.index(stage) + 1])
    (start,) = (s.start for s in run.recipe.stages if s.name == stage)
    if start is not None and stage != state.stage.name and state.num_done > 0:
        take_policy_of(run, workers.backend, state, start)
        recorder.say(f"{stage} starts with the policy {'of the base' if start == BASE else f'that {start} left'}")
    state.enter(stage)
    return make_setup(run, workers, state)


def take_policy_of(run: Run, backend: Backend, state: RunState, start: str) -> None:
    """Give the policy the weights at the end of the stage `start`, or those of the base.

    Raise CheckpointError if the checkpoint at that stage's end is damaged.
    """
    end = None if start == BASE else run.shared / "checkpoints" / f"{state.stage_ends[start]:08d}"
    if end is not None:
        # Checked here, as it may be much older than the one that the run resumed from.
        checkpoint.require(end)
    load_weights(run, backend, end)
    # Other weights need another version, or the engine would be trusted to have them already.
    state.policy_version += 1


def load_weights(run: Run, backend: Backend, start: Path | None) -> None:
    """Give the policy the weights of checkpoint `start`; None: of the model that the recipe starts from."""
    backend.replace_weights(build_policy(run.recipe, run.tokenizer, start))


def make_setup(run: Run, workers: Workers, state: RunState) -> StageSetup:
    """Return the setup of the stage that the state names, and let its own verifier grade, if it has one."""
    # The guard's changes are computed from the count of rollbacks, so a resume repeats them.
    config = collapse.with_turned_knobs(run.recipe.of_stage(state.stage.name), state)
    model = workers.backend.model
    parts = resolve_parts(config, model)
    controllers = None if parts is None else Controllers(parts)
    if controllers is not None and state.stage.controllers:
        controllers.load_state_dict(state.stage.controllers)
    keeps_routing = parts is not None and parts.masks.keep_routing and num_experts(model.config) is not None
    reward = config.rl.reward if config.rl is not None and config.stages[0].kind == "rl" else None
    workers.graders.enter_stage(None if reward is None else bind_grader(run.shared, run.base_dir, reward))
    return StageSetup(config, parts, controllers, keeps_routing)


def restore_in_flight(workers: Workers, setup: StageSetup, state: RunState) -> None:
    """Continue the batches that were being generated when the checkpoint was written."""
    # From now on the source has them; the next checkpoint asks it again.
    batches, state.in_flight = state.in_flight, []
    for batch in batches:
        workers.rollouts.restore(batch, asked_of(setup, batch.temperature))


def template_of(model: str | None) -> dict[str, Any] | None:
    """Return the template that a run left in the folder of the model which it trained; None if there is none."""
    path = Path(model or "") / TEMPLATE_FILE
    if model is None or not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:  # a file of that name by somebody else
        return None
    return value if isinstance(value, dict) else None


def write_run_info(run: Run, workers: Workers, setup: StageSetup) -> None:
    """Write `recipe.yaml`, the resolved recipe, and `run.json`: versions, device and sizes, for the report.

    `origin.json` has the folder of the recipe's own files.
    """
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    model, engine = workers.backend.model, workers.rollouts.engine
    info = {
        "name": setup.config.name,
        "seed": run.seed,
        "versions": versions,
        "start": {} if run.recipe.model.path is None else provenance(Path(start_of(run.recipe))),
        "device": str(model.device),
        "num_parameters": sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters()),
        "num_ranks": run.ranks.size,
        "engine_fast_path": engine.is_fast,
        "engine_note": engine.fallback_reason,
        "num_prompts": {"train": len(run.data.train), "evaluation": len(run.data.evaluation)},
        "data_notes": list(run.data.notes),
        "isolation": run.isolation,
        "bytes_depend_on_time": []
        if workers.rollouts.generation.episodes is None
        else timed_settings(run.recipe.episodes),
        "model_template": template_of(run.recipe.model.path),
        "ended": None,
    }
    with disk_errors(f"writing into {run.folder}"):
        (run.folder / "recipe.yaml").write_text(dump(run.recipe))
        (run.folder / "run.json").write_text(json.dumps(info, indent=1))
    write_origin(run.folder, run.base_dir)
