"""A session is one run in one process, in five parts; a function takes the parts that it uses.

`Run` never changes. `Workers` hold the models and threads. `RunState` is the position, which a checkpoint holds.
`StageSetup` is the present stage's recipe and algorithm. `Recorder` writes and shows what happens. `Session` only holds
the five together, for the functions that open, continue and save a run and for the entry points of the stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.stages import RoundsConfig, StageSection
from verizero.pipeline.data.sampler import PromptLedger, PromptSampler
from verizero.pipeline.rl.parts import Parts
from verizero.pipeline.run.choose_checkpoint import Fingerprint
from verizero.pipeline.run.data import RunData
from verizero.pipeline.run.graders import Graders
from verizero.pipeline.run.recorder import Recorder
from verizero.pipeline.run.rollouts import RolloutSource
from verizero.pipeline.run.state import RunState
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.distillation import Teacher
from verizero.pipeline.train.ranks import Ranks
from verizero.pipeline.train.texts import Row

S = TypeVar("S", bound=StageSection)


@dataclass(frozen=True)
class Run:
    """The parts of a run that never change while it goes."""

    recipe: RunConfig
    """The whole recipe."""
    folder: Path
    """The run's folder, which all ranks see."""
    rank_folder: Path
    """The folder that this rank writes to: the run's folder for rank 0, one that nobody reads for the others."""
    base_dir: Path
    """Folder of the recipe, from which relative paths start."""
    data: RunData
    tokenizer: Any
    ranks: Ranks
    fingerprints: tuple[Fingerprint, ...]
    """Fingerprints of all stages in order; empty on ranks other than 0."""
    resumed_from: Path | None = None
    """The checkpoint that this process resumed from."""
    isolation: dict[str, Any] | None = None
    """The walls around the programs of this run; None if it runs none."""

    @property
    def seed(self) -> int:
        """The root of all random numbers."""
        return self.recipe.seed

    @property
    def pad_id(self) -> int:
        """The token that rows are padded with."""
        pad_id: int = self.tokenizer.pad_token_id
        return pad_id

    def stage_folder(self, stage: str) -> Path:
        """Return the folder that a stage leaves files in for later stages. All ranks see it."""
        return self.folder / "stages" / stage


@dataclass
class Workers:
    """The objects that compute: they hold models, threads and processes."""

    backend: Backend
    rollouts: RolloutSource
    graders: Graders
    sampler: PromptSampler
    ledger: PromptLedger
    extra_models: dict[str, Callable[[Path], None]] = field(default_factory=dict)
    """Subfolder of a checkpoint -> what writes a model there, next to the policy. Every rank calls it."""
    writer: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1, "checkpoint"))
    """The thread that ends checkpoints in the background."""
    unfinished: Future[Any] | None = None
    """The end of the last checkpoint, if it is in the background."""

    @property
    def context(self) -> int | None:
        """The longest sequence of the policy in tokens; None if its configuration names none."""
        longest: int | None = getattr(self.backend.model.config, "max_position_embeddings", None)
        return longest

    def close(self) -> None:
        """End threads and processes."""
        # After an error the last checkpoint may not be written: the run then continues from the one before it.
        self.writer.shutdown(wait=True)
        self.rollouts.close()
        self.graders.close()


@dataclass
class StageSetup:
    """The recipe and the algorithm of the present stage."""

    config: RunConfig
    """The recipe with this stage alone, its section under its kind, at the rate that the guard has left."""
    parts: Parts | None
    """The algorithm's parts; None if the stage is not RL."""
    keeps_routing: bool
    """True if the experts that were used while sampling are recorded."""
    demonstrations: list[Row] | None = None
    """The stage's demonstrations in tokens, made at first use."""
    teachers: Mapping[str, Teacher] | None = None
    """The stage's teachers by the name of their field, made at first use."""

    @property
    def kind(self) -> str:
        """The kind of the stage, e.g. sft."""
        return self.config.stages[0].kind

    @property
    def section(self) -> Any:
        """The recipe's section of the stage."""
        return getattr(self.config, self.kind)

    def section_as(self, kind: type[S]) -> S:
        """Return the recipe's section of the stage, which is of that class."""
        assert isinstance(self.section, kind)
        return self.section

    @property
    def rounds(self) -> RoundsConfig:
        """The recipe's section of a stage in rounds."""
        return self.section_as(RoundsConfig)

    @property
    def algorithm(self) -> Parts:
        """The parts of a stage that has an algorithm."""
        assert self.parts is not None, f"a stage of kind {self.kind} has no algorithm"
        return self.parts


@dataclass
class Session:
    """One run in one process."""

    run: Run
    workers: Workers
    state: RunState
    recorder: Recorder
    setup: StageSetup

    def close(self) -> None:
        """End threads and processes, and close files."""
        self.workers.close()
        self.recorder.close()
