"""All that lives while a run goes on, opened from a recipe: folder and lock, data, policy, engine, verifiers, state."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal

from pipeline.config.load import dump
from pipeline.config.run import RunConfig
from pipeline.config.stages import BASE, RoundsConfig
from pipeline.data.ledger import PassRateLedger
from pipeline.data.sampler import PromptSampler
from pipeline.errors import InUse, RunError
from pipeline.report.memory import note_peak
from pipeline.report.progress import Progress, Silent
from pipeline.report.store import Store
from pipeline.report.trackers import Trackers
from pipeline.rl.parts import Parts
from pipeline.rollout.engine import Engine
from pipeline.run import collapse as guard
from pipeline.run import lag
from pipeline.run.data import RunData
from pipeline.run.fingerprints import Fingerprint, fingerprints, put_aside_stale, write_record
from pipeline.run.opening import begin_anew
from pipeline.run.rollouts import RunAhead, run_ahead
from pipeline.run.schedule import position, schedule
from pipeline.run.state import RunState
from pipeline.scoring.ahead import Ahead
from pipeline.scoring.score import Scorer
from pipeline.scoring.second import SecondOpinions
from pipeline.stages.programs import close_sandbox
from pipeline.train import checkpoint
from pipeline.train.backend import Backend
from pipeline.train.ranks import ALONE, Ranks
from pipeline.train.step import Controllers
from pipeline.train.texts import Row
from pipeline.train.watch import WATCH

Resume = Literal["auto", "never", "must"]


def unheard(name: str, fields: dict[str, Any]) -> None:
    """Nothing: nobody listens to this run's events."""


@dataclass
class Session:
    """One run while it goes on."""

    recipe: RunConfig
    """The whole."""
    config: RunConfig
    """The recipe as the present stage sees it: of that stage alone, its section in its kind's place."""
    folder: Path
    """Where this process writes: the run's folder for rank 0, one that nobody reads for the others."""
    shared: Path
    """The run's folder, which all ranks see."""
    base_dir: Path
    """The recipe's folder, from which relative paths are taken."""
    data: RunData
    tokenizer: Any
    backend: Backend
    engine: Engine
    scorer: Scorer
    sampler: PromptSampler
    ledger: PassRateLedger
    store: Store
    state: RunState
    pad_id: int
    trackers: Trackers
    fingerprints: list[Fingerprint]
    """Of all stages, in order; for rank 0."""
    start: Path | None = None
    """The checkpoint that this process went on from."""
    beside: dict[str, Callable[[Path], None]] = field(default_factory=dict)
    """Folder of a checkpoint -> what writes there a model that the present stage trains beside the policy."""
    judge: Scorer | None = None
    """Grades the responses of the present stage, where it names a verifier of its own."""
    parts: Parts | None = None
    """Of the present stage's algorithm; None where it is not RL."""
    controllers: Controllers | None = None
    progress: Progress = field(default_factory=Silent)
    demonstrations: list[Row] | None = None
    """In tokens, made at first use."""
    has_reference: bool = False
    """A reference is held: its KL is measured even where the objective has no use for it."""
    has_parity: bool = False
    """The engine's log-probs were held against the trainer's in this process."""
    where: str = ""
    """For people: "round 1 step 7"."""
    isolation: dict[str, Any] | None = None
    """What stands around the programs of this run; None where it runs none."""
    second: SecondOpinions | None = None
    """Gives second opinions, where the recipe asks for them."""
    ahead: Ahead | None = None
    """Has begun to grade the responses generated last, where grading overlaps with generation."""
    runahead: RunAhead | None = None
    """Generates ahead of the update, where the recipe lets it."""
    published: dict[str, Any] | None = None
    """The weights that the engine took last, where it keeps them for several updates."""
    times: dict[str, float] = field(default_factory=dict)
    """Seconds of each phase since `take_times`."""
    events: Callable[[str, dict[str, Any]], None] = unheard
    """Told of what happens (`verizero.round.completed` …) with plain values, for whoever acts on it."""

    @property
    def rounds(self) -> RoundsConfig:
        """The section of the present stage, which is one in rounds."""
        section = getattr(self.config, self.config.stages[0].kind)
        assert isinstance(section, RoundsConfig)
        return section

    @property
    def grader(self) -> Scorer:
        """Grades what the present stage samples to learn from."""
        return self.scorer if self.judge is None else self.judge

    @property
    def ranks(self) -> Ranks:
        """The processes that train together."""
        return self.backend.ranks

    @property
    def is_at_end_of_stage(self) -> bool:
        """All items of the present stage are done."""
        items, state = schedule(self.recipe), self.state
        left = items[position(items, state.num_done, state.is_evaluated) :]
        return state.step == 0 and not any(i.stage in (BASE, state.stage) for i in left[:1])

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Count the block's seconds to `phase`."""
        WATCH.begins(f"{self.where}: {phase}")
        start = time.perf_counter()
        try:
            yield
        finally:
            self.count(phase, time.perf_counter() - start)

    def count(self, phase: str, seconds: float) -> None:
        """Count seconds to `phase`. Those to names that end in "graders" went by beside the phases, not after them."""
        self.times[phase] = self.times.get(phase, 0.0) + seconds

    def track(self, numbers: Mapping[str, float], step: int) -> None:
        """Hand numbers to the trackers of the recipe."""
        self.trackers.log(numbers, step)
        while self.trackers.failures:
            self.progress.say(self.trackers.failures.pop())

    def take_times(self) -> dict[str, float]:
        """Seconds of each phase since the last call."""
        times, self.times = self.times, {}
        return {k: round(v, 4) for k, v in times.items()}

    def save(self) -> None:
        """Write a checkpoint of everything that the next step depends on."""
        state = self.state
        if self.is_at_end_of_stage:
            state.ends[state.stage] = state.serial
        state.offsets = self.store.sync()
        state.sampler = self.sampler.state_dict()
        state.ledger = self.ledger.state_dict()
        state.controllers = {} if self.controllers is None else self.controllers.state_dict()
        flights = state.in_flight or ([] if self.runahead is None else self.runahead.drawn(self.ranks))
        serial, pinned = state.serial, guard.note(state, self.config)
        state.serial += 1

        root = self.shared / "checkpoints"
        WATCH.begins(f"{self.where}: checkpoint")

        def write(folder: Path) -> None:
            self.ranks.barrier()  # the folder is there
            self.backend.save(folder, self._save_model)
            if self.ranks.is_first:
                lag.save(self, folder)
                [write_beside(folder / name) for name, write_beside in self.beside.items()]
                (folder / "state.json").write_text(json.dumps(replace(state, in_flight=flights).to_json()))

        try:
            if self.ranks.is_first:
                checkpoint.save(root, serial, write, self.config.checkpoint.keep, {*state.ends.values(), *pinned})
            else:
                write(checkpoint.partial_path(root, serial))
            self.ranks.barrier()  # nobody goes on before the checkpoint is named
        except RunError:
            state.serial = serial
            raise
        with checkpoint.disk_errors(f"writing into {self.folder}"):
            note_peak(self.folder)

    def save_final(self) -> Path:
        """The policy as a Hugging Face folder `model/` in the run's folder, replaced as a whole."""
        model = self.backend.whole_model()
        if not self.ranks.is_first:
            return self.shared / "model"
        final, partial, old = self.folder / "model", self.folder / ".model-partial", self.folder / ".model-old"
        with checkpoint.disk_errors("writing the final model", partial):
            for stale in (partial, old):
                shutil.rmtree(stale, ignore_errors=True)
            self._save_model(model, partial)
            if final.exists():
                os.rename(final, old)
            os.rename(partial, final)
        shutil.rmtree(old, ignore_errors=True)
        return final

    def close(self) -> None:
        """Release threads, files and the engine."""
        if self.runahead is not None:
            self.runahead.close()
        self.engine.close()
        for grader in (self.scorer, self.judge, self.second):
            if grader is not None:
                grader.close()
        self.store.close()
        self.trackers.close()
        close_sandbox()

    def _save_model(self, model: Any, folder: Path) -> None:
        from pipeline.models.load import save_folder

        save_folder(model, self.tokenizer, folder)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the run's folder: no second process trains in it. The lock dies with its process.

    Raises: InUse naming the process that holds it.
    """
    with checkpoint.disk_errors(f"creating {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    handle: IO[str] = (folder / ".lock").open("a+")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        handle.seek(0)
        holder = handle.read().strip() or "another process"
        handle.close()
        raise InUse(f"{folder} is in use by {holder}; wait for it, or give this run another name") from exc
    try:
        handle.truncate(0)
        handle.write(f"process {os.getpid()}")
        handle.flush()
        yield
    finally:
        handle.close()


def find_checkpoint(folder: Path, resume: Resume, progress: Progress, prints: Sequence[Fingerprint]) -> Path | None:
    """The checkpoint to go on from; None to begin. What stages of other fingerprints than `prints` made is put aside.

    Raises: RunError where `resume` says never and there is one, or must and there is none; or where the recipe changed
    what the first stage is made of.
    """
    path, refused = checkpoint.newest(folder / "checkpoints")
    for bad in refused:
        progress.say(f"refused checkpoint {bad.path.name}: {bad.reason}; using the one before it")
    if path is None and resume == "must":
        raise RunError(f"{folder} has no checkpoint to go on from, and resume is 'must'; start it with resume 'auto'")
    if path is not None and resume == "never":
        raise RunError(
            f"{folder} already holds a run, and resume is 'never'; use resume 'auto' to go on, another name, or "
            "delete the folder"
        )
    return path if path is None else put_aside_stale(folder, prints, path, progress)


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
    """A session that begins, or goes on from the newest checkpoint of the run's folder. Rank 0 holds its lock.

    `folder` is where this process writes, `shared` (None: the same) the run's folder.
    Raises: RunError, CheckpointError, ConfigError, DataError.
    """
    from pipeline.run.build import build_backend, build_engine, build_graders, build_policy

    prints = fingerprints(config, data, base_dir) if ranks.is_first else []
    start = ranks.agree(lambda: find_checkpoint(shared or folder, resume, progress, prints))
    scorer, second, isolation = build_graders(config, data, base_dir, progress)
    state = RunState() if start is None else RunState.from_json(json.loads((start / "state.json").read_text()))
    tokenizer = data.renderer.tokenizer
    model = build_policy(config, tokenizer, start)
    backend = build_backend(config, model, ranks)
    if start is not None:
        backend.load(start)
    runahead = run_ahead(config, backend.whole_model())
    sampler, ledger = order_of(config, data, state)
    store = Store(folder)
    store.cut(state.offsets if ranks.is_first else {})
    session = Session(
        recipe=config,
        config=config,
        fingerprints=prints,
        folder=folder,
        shared=shared or folder,
        base_dir=base_dir,
        start=start,
        data=data,
        tokenizer=tokenizer,
        backend=backend,
        engine=build_engine(config, backend.whole_model(), tokenizer, backend, folder, runahead and runahead.held),
        scorer=scorer,
        sampler=sampler,
        ledger=ledger,
        store=store,
        state=state,
        pad_id=tokenizer.pad_token_id,
        trackers=Trackers(
            config.report.trackers if ranks.is_first else (), folder, config.name, config.model_dump(mode="json")
        ),
        progress=progress,
        second=second,
        isolation=isolation,
        runahead=runahead,
    )
    enter(session, stage_at(config, state), anew=True)
    lag.publish_first(session, start)
    _write_down(session)
    return session


def stage_at(config: RunConfig, state: RunState) -> str:
    """The stage of the next item; the first for one before all, the last for a run that is done."""
    items = schedule(config)
    next_item = items[min(position(items, state.num_done, state.is_evaluated), len(items) - 1)]
    return config.stages[0].name if next_item.stage == BASE else next_item.stage


def enter(session: Session, stage: str, anew: bool = False) -> None:
    """Make the session one of that stage: recipe, policy, algorithm, counters. `anew`: just opened, maybe within it."""
    if session.ranks.is_first:
        begun = session.recipe.stage_names.index(stage) + 1
        write_record(session.folder, session.fingerprints[:begun])
    if anew or session.config.stage_names != (stage,) or session.state.stage != stage:
        begin_anew(session, stage)
        session.state.enter(stage)
        settle(session)


def settle(session: Session) -> None:
    """Take recipe and algorithm from the stage that the state names, as far as that has come."""
    from pipeline.run.build import build_judge, resolve_parts

    session.config = guard.settled(session.recipe.of_stage(session.state.stage), session.state)
    session.parts = resolve_parts(session.config, session.backend.model)
    session.controllers = None if session.parts is None else _controllers(session.parts, session.state)
    session.demonstrations = None
    session.judge = build_judge(session)


def stage_folder(session: Session, stage: str) -> Path:
    """Where a stage leaves what later ones use; all ranks see it."""
    return session.shared / "stages" / stage


def order_of(config: RunConfig, data: RunData, state: RunState) -> tuple[PromptSampler, PassRateLedger]:
    """What draws prompts, and what it knows of their pass rates, as far as the run has come."""
    ledger, how = PassRateLedger(), config.data.sampling
    sampler = PromptSampler(data.train, config.seed, how.order, how.weights, ledger, how.pass_rate)
    if state.ledger is not None:
        ledger.load_state_dict(state.ledger)
    # where nothing was drawn yet, the prompts may have changed since: no stage so far depends on them
    if state.sampler is not None and any(state.sampler["drawn"].values()):
        sampler.load_state_dict(state.sampler)
    return sampler, ledger


def _controllers(parts: Parts, state: RunState) -> Controllers:
    """The adaptive coefficients, as far as the run has come."""
    controllers = Controllers(parts)
    if state.controllers:
        controllers.load_state_dict(state.controllers)
    return controllers


def _write_down(session: Session) -> None:
    """The resolved recipe, and what the run is made with."""
    from pipeline.run.build import write_run_info

    with checkpoint.disk_errors(f"writing into {session.folder}"):
        (session.folder / "recipe.yaml").write_text(dump(session.recipe))
        write_run_info(session)
    if session.start is not None:
        session.progress.say(f"going on from checkpoint {session.start.name}")
