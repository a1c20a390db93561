"""Opening a run: its folder and lock, the checkpoint to resume from, and the objects that a session holds.

Below are the functions that give a run or a stage its state: weights, verifier, algorithm, prompts, batches in flight.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch

from verizero.pipeline.config.auto import for_machine, is_vllm_installed, leaves_rates_open, wants_vllm, with_rates
from verizero.pipeline.config.recipes import Resume
from verizero.pipeline.config.rl import RlConfig
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.stages import BASE
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.sampler import PromptLedger, PromptSampler
from verizero.pipeline.errors import ConfigError, ResumeRefused, VerizeroError
from verizero.pipeline.host.disk import locked, require_plain
from verizero.pipeline.host.gpu import fault_of, unused_driver
from verizero.pipeline.models.load import DTYPES, create_model, load_model, load_tokenizer, stop_at
from verizero.pipeline.models.named import asks_no_hub, is_path, model_named
from verizero.pipeline.models.quantized import library
from verizero.pipeline.models.routing import num_experts
from verizero.pipeline.models.streamed import model_on_meta
from verizero.pipeline.near import did_you_mean
from verizero.pipeline.plan.choice import by_plan, choices
from verizero.pipeline.plan.devices import device_named
from verizero.pipeline.plan.memory import GIB
from verizero.pipeline.plan.shape import from_settings
from verizero.pipeline.report.ended import CONTINUES, ended_by, record_failure
from verizero.pipeline.report.measures import watch_cores
from verizero.pipeline.report.progress import Logged, Progress
from verizero.pipeline.report.store import Store
from verizero.pipeline.run import collapse
from verizero.pipeline.run.algorithm import resolve_parts, response_kinds
from verizero.pipeline.run.build import (
    build_backend,
    build_recorder,
    build_source,
    build_tokenizer,
    context_of,
    device_of,
    first_model_path,
    num_parameters_of,
    settings_of_policy,
)
from verizero.pipeline.run.choose_checkpoint import (
    changed_at,
    choose_checkpoint,
    fingerprints,
    newest_folder,
    write_stages_file,
)
from verizero.pipeline.run.data import RunData, prepare_data
from verizero.pipeline.run.episodes import build_episodes, check_template
from verizero.pipeline.run.graders import bind_grader, build_graders
from verizero.pipeline.run.recorder import Recorder
from verizero.pipeline.run.saving import write_run_info
from verizero.pipeline.run.session import Run, Session, StageSetup, Workers
from verizero.pipeline.run.state import RunState, read_state, schedule
from verizero.pipeline.run.teachers import check_domains
from verizero.pipeline.scoring.sandbox_setup import use_sandbox
from verizero.pipeline.seeds import derive
from verizero.pipeline.train import checkpoint
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.deadline import SPARE_S, WATCH
from verizero.pipeline.train.device import switched
from verizero.pipeline.train.optimizer import check_kinds
from verizero.pipeline.train.ranks import Ranks, join, leave, ranks_of_node

LOG = "run.log"
"""Name of the file in the run's folder that has every line which the run showed."""


@contextmanager
def first_of_node_first(config: RunConfig, ranks: Ranks) -> Iterator[None]:
    """Let the first rank of each node do the block before the others, which then find on this machine what it fetched.

    The hub refuses hundreds of ranks that ask for the same files at once. Where the recipe names nothing of a hub, no
    rank waits. A rank without LOCAL_RANK counts as the first. All ranks must come here.
    """
    names = [config.model.path, *config.teachers]
    asks = any(name is not None and not is_path(name) for name in names)
    if ranks.size == 1 or not (asks or any(source.hub is not None for source in config.data.sources)):
        yield
    elif os.environ.get("LOCAL_RANK", "0") != "0":
        ranks.barrier()
        with asks_no_hub():
            yield
    else:
        try:
            yield
        finally:
            ranks.barrier()


def prepare_run(config: RunConfig, base_dir: Path, folder: Path) -> RunData:
    """Load and check the data."""
    use_sandbox(config.sandbox)  # a row is refused if its tests need a package that the sandbox has not
    data = prepare_data(config, build_tokenizer(config), context_of(config), base_dir, folder)
    check_domains(config, data.train, data.renderer.tokenizer)
    return data


def surprises(config: RunConfig, device: str) -> Iterator[str]:
    """Yield what this machine does not do that its user would expect. config: with `auto` in it."""
    if config.train.device == "auto" and device == "cpu" and (driver := unused_driver()) is not None:
        why, remedy = fault_of(driver, torch.version.cuda)
        yield f"trains on the CPU: {why}; {remedy}"
    if wants_vllm(config, device) and not is_vllm_installed():
        yield "generates with the embedded engine: vLLM is faster, and is not installed; run make install-gpu"


def on_gpus(config: RunConfig, ranks: Ranks, gpu: Any) -> RunConfig:
    """Return the recipe with the plan's choice of what memory decides. gpu: torch's properties of this rank's GPU."""
    try:
        shape = from_settings(settings_of_policy(config).get_text_config())
    except AttributeError:  # an architecture that names its sizes in another way: it is trained without a plan
        return config
    smallest = min(ranks.gather(gpu.total_memory)) / GIB
    return by_plan(config, shape, ranks.size, device_named(gpu.name, smallest, ranks_of_node(ranks.size)))


@contextmanager
def open_run(config: RunConfig, base_dir: Path, folder: Path, resume: Resume, progress: Progress) -> Iterator[Session]:
    """Yield a session that holds the run's folder until the block ends.

    What is shown is written to run.log too. An exception ends the run: run.json, summary.json and run.log then have the
    reason.

    In a group of processes each has a session of its own over the same state. Rank 0 holds the folder and writes there.
    """
    if resume not in (ways := get_args(Resume)):
        raise ConfigError(f"resume={resume!r} is not known; {did_you_mean(str(resume), ways, ', '.join(ways))}")
    with ExitStack() as stack:
        device = device_of(config)
        if config.model.quantize == "nf4":
            library("model.quantize=nf4")
        sections = map(config.section_of, config.stages)
        check_kinds((optimizer.kind for section in sections for _, optimizer in section.optimizers()), device)
        stack.enter_context(switched(config.train, device))
        # With a timeout: missing ranks end the run instead of blocking it.
        ranks = join(config.launch.phase_timeout_s + SPARE_S, device)
        surprising = list(surprises(config, device))
        config = for_machine(config, ranks.size, device)
        if leaves_rates_open(config):
            config = with_rates(config, num_parameters_of(config))
        if device.startswith("cuda"):
            before, config = config, on_gpus(config, ranks, torch.cuda.get_device_properties(device))
            if words := choices(before, config):
                surprising.append(f"chosen for auto by the plan: {' '.join(words)}")
        # Undone in reverse: first the session and its threads, the group of ranks last.
        stack.callback(leave)
        stack.push(WATCH.leave)
        rank_folder = stack.enter_context(folder_of_rank(folder, ranks))
        log: Logged | None = None
        if ranks.is_first:
            progress = log = stack.enter_context(closing(Logged(progress, folder / LOG, config.name)))
            stack.enter_context(watch_cores(progress.say))
            for line in surprising:
                progress.say(line)
        session: Session | None = None
        try:
            progress.under_way("loads the data and the tokenizer")
            with first_of_node_first(config, ranks):
                data = prepare_run(config, base_dir, rank_folder)
            session = open_session(config, folder, rank_folder, data, resume, progress, base_dir, ranks)
            stack.callback(session.close)
            yield session
        except ResumeRefused:  # this start is refused; how the run in the folder ended stays as it is
            raise
        except BaseException as exc:
            if log is not None:
                where = "the start" if session is None else session.recorder.step_label
                ended = ended_by(exc, where, partial(next_try, session, config, folder))
                record_failure(folder, ended)
                log.lines.say(str(ended))
                if ended.reason == "interrupted":
                    exc.add_note(ended.message)  # for the command line
            raise


def next_try(session: Session | None, config: RunConfig, folder: Path) -> str:
    """Return in words where the same command will continue the run in `folder`, and how many steps it does again."""
    try:
        if session is not None:
            session.workers.writer.shutdown(wait=True)  # the last checkpoint gets its name
        newest = newest_folder(folder, "auto")
        state = RunState() if newest is None else read_state(newest)
        with (folder / "metrics.jsonl").open("rb") as file:
            file.seek(state.store.lengths.get("metrics.jsonl", 0))
            num = sum(b'"kind":"step"' in line for line in file)
    except (OSError, VerizeroError):  # the interrupt matters more
        return CONTINUES
    steps = f"{num} step{'' if num == 1 else 's'}"
    if newest is None:
        return (
            f"no checkpoint yet: the {steps} so far {'is' if num == 1 else 'are'} lost; the same command begins again"
        )
    item = next(iter(state.items_left(schedule(config))), None)
    place = "the report" if item is None else f"{item.label} step {state.step + 1}"
    place = f"the evaluation {item.label}" if item is not None and item.is_evaluation else place
    return f"the same command continues with {place}, from checkpoint {newest.name}, and does {steps} again"


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
    newest = ranks.decide_on_first(lambda: newest_folder(folder, resume))
    digests = checkpoint.shared_digests(newest, ranks)
    start = ranks.decide_on_first(lambda: choose_checkpoint(folder, resume, progress, prints, digests))
    graders, isolation = build_graders(config, data, base_dir, progress)
    state = RunState() if start is None else read_state(start)
    if start is not None and changed_at(folder, start):
        state.stage.carried = []  # graded by the function that was changed
    tokenizer = data.renderer.tokenizer
    progress.under_way("loads the model")
    with first_of_node_first(config, ranks):
        policy = load_policy(config, tokenizer, start)
    backend = build_backend(config, policy, ranks)
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


def next_stage(config: RunConfig, state: RunState) -> str:
    """Return the stage of the next item: the first one before all, the last one of a finished run."""
    items = schedule(config)
    item = next(iter(state.items_left(items)), items[-1])
    return config.stages[0].name if item.stage == BASE else item.stage


def load_policy(config: RunConfig, tokenizer: Any, start: Path | None) -> Any:
    """Return the policy with the weights of checkpoint `start`; None, or with LoRA: those of the recipe's model."""
    # On the device, the weights that become ones of 4 bits may have no room.
    device = device_of(config) if config.model.quantize is None else "cpu"
    for teacher in config.teachers:
        check_teacher(teacher, tokenizer)
    create = config.model.create
    if start is not None and config.train.lora is None:  # adapters are restored onto the base that they began on
        model = read_policy(config, str(start / "model"), device)
    elif create is not None:
        seed = derive(config.seed, "init")
        model = create_model(create.model_type, create.config, tokenizer, seed, config.model.dtype).to(device)
    else:
        model = read_policy(config, first_model_path(config), device, config.model.revision)
    return stop_at(model, Renderer(tokenizer, config.data.template).closing[1])


def read_policy(config: RunConfig, path: str, device: str, revision: str | None = None) -> Any:
    """Return the policy of a folder or hub id; its weights stay in the files where they will be read in parts.

    So are the rows of each rank, and the layers of a base that is put in bits.
    """
    if config.train.backend == "fsdp" or config.model.quantize is not None:
        model = model_on_meta(path, DTYPES[config.model.dtype], revision)
        if model is not None:
            return model
        device = "cpu"  # its whole weights may have no room on a GPU
    return load_model(path, config.model.dtype, device, revision, copies=config.model.quantize is None)


def check_teacher(path: str, tokenizer: Any) -> None:
    """Raise ConfigError if the teacher at `path` has another vocabulary than `tokenizer`."""
    theirs, ours = load_tokenizer(model_named(path, field="path of a teacher")).get_vocab(), tokenizer.get_vocab()
    if theirs != ours:
        # Equal sizes do not suffice: a token of another number would be scored as another word.
        odd = sorted(theirs.items() ^ ours.items())[0][0]
        raise ConfigError(
            f"distill: the teacher {path!r} has a vocabulary of {len(theirs)} tokens and the policy one of "
            f"{len(ours)}; they differ, first in {odd!r}. A teacher scores the policy's own tokens: use one of "
            "the same family, or distil through its answers (stage sample, endpoint)"
        )


def enter_stage(run: Run, workers: Workers, state: RunState, recorder: Recorder, stage: str) -> StageSetup:
    """Start or continue a stage: write that it was started, give it its policy, and return its setup."""
    if run.ranks.is_first:
        write_stages_file(run.rank_folder, run.fingerprints[: run.recipe.stage_names.index(stage) + 1])
    (start,) = (s.start for s in run.recipe.stages if s.name == stage)
    if start is not None and stage != state.stage.name and state.num_done > 0:
        take_policy_of(run, workers.backend, state, start)
        recorder.say(f"{stage} starts with the policy {'of the base' if start == BASE else f'that {start} left'}")
    state.enter(stage)
    return set_up_stage(run, workers, state)


def take_policy_of(run: Run, backend: Backend, state: RunState, start: str) -> None:
    """Give the policy the weights at the end of stage `start`, or the base's. Raise CheckpointError if damaged."""
    end = None if start == BASE else run.folder / "checkpoints" / f"{state.stage_ends[start]:08d}"
    if end is not None:
        # Checked here, as it may be much older than the one that the run resumed from.
        checkpoint.require(end, run.ranks)
    backend.replace_weights(load_policy(run.recipe, run.tokenizer, end))
    # Other weights need another version, or the engine would be trusted to have them already.
    state.policy_version += 1


def set_up_stage(run: Run, workers: Workers, state: RunState) -> StageSetup:
    """Return the setup of the stage that the state names, and let its own verifier grade, if it has one."""
    # The guard's changes are computed from the count of rollbacks, so a resume repeats them.
    config = collapse.with_lower_rate(run.recipe.of_stage(state.stage.name), state)
    model = workers.backend.model
    parts = resolve_parts(config, model)
    keeps_routing = parts is not None and parts.params.keep_routing and num_experts(model.config) is not None
    setup = StageSetup(config, parts, keeps_routing)
    reward = setup.section.reward if isinstance(setup.section, RlConfig) else None
    workers.graders.enter_stage(None if reward is None else bind_grader(run.folder, run.base_dir, reward))
    return setup


def restored_sampler(run: Run, state: RunState) -> tuple[PromptSampler, PromptLedger]:
    """Return the sampler of prompts and the ledger of those attempted, at the position of `state`."""
    ledger, how = PromptLedger(), run.recipe.data.sampling
    sampler = PromptSampler(run.data.train, run.seed, how.order, how.weights)
    if state.ledger is not None:
        ledger.load_state_dict(state.ledger)
    # While nothing was drawn, the prompts may have changed since the checkpoint: no stage so far depends on them
    if state.sampler is not None and any(state.sampler["drawn"].values()):
        sampler.load_state_dict(state.sampler)
    return sampler, ledger


def restore_in_flight(workers: Workers, setup: StageSetup, state: RunState) -> None:
    """Continue the batches that were being generated when the checkpoint was written."""
    # From now on the source has them; the next checkpoint asks it again.
    batches, state.in_flight = state.in_flight, []
    for batch in batches:
        workers.rollouts.restore(batch, response_kinds(setup))


def restore_checkpoint(run: Run, workers: Workers, state: RunState, start: Path) -> None:
    """Give state, policy, sampler and engine the values of the checkpoint `start` of the present stage."""
    workers.rollouts.drop()
    vars(state).update(vars(read_state(start)))
    if run.recipe.train.lora is None:  # with LoRA the base never changed, and the backend restores the adapters
        workers.backend.replace_weights(load_policy(run.recipe, run.tokenizer, start))
    workers.backend.load(start)
    workers.sampler, workers.ledger = restored_sampler(run, state)
    workers.rollouts.publish(workers.backend, state.policy_version)
    workers.rollouts.wait()
