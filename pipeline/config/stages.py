"""The stages of a recipe, and the base of the sections that define kinds of stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self

from pydantic import Field, ValidationInfo, field_validator, model_serializer, model_validator

from verizero.pipeline.config.data import DataConfig
from verizero.pipeline.config.episodes import EpisodesConfig
from verizero.pipeline.config.guard import GuardConfig
from verizero.pipeline.config.rates import Learns
from verizero.pipeline.config.rollout import RolloutConfig
from verizero.pipeline.config.scoring import ScoringConfig
from verizero.pipeline.config.sections import ModelConfig, OptimizerConfig, Section, TrainConfig

DEMONSTRATIONS = "demonstrations.jsonl"
"""File that a stage leaves for SFT stages: rows as in a user's file, each with a demonstration."""
MODEL = "model"
"""Folder of a reward model that a stage leaves for graders."""
POLICY = "policy"
"""Stands for the policy at a stage's end, which every stage leaves."""
BASE = "base"
"""Name for the model from which the first stage starts, where otherwise a stage is named."""


def located(algorithm: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    """Return the choice of an algorithm with an absolute path, which is also right in the run's own recipe.yaml."""
    if not isinstance(path := algorithm.get("path"), str):
        return algorithm
    return algorithm | {"path": str(((info.context or {}).get("base") or Path.cwd()) / path)}


class Stage(Section):
    """A stage of the run. `sft` alone is short for {name: sft, kind: sft}: the section `sft`, unchanged."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", description="unique name, used in reports, folders and `--stages`"
    )
    kind: str = Field(description="the section that defines the stage, e.g. sft; default: the name")
    changes: dict[str, Any] = Field({}, alias="with", description="fields of the section that differ in this stage")
    start: str | None = Field(
        None,
        alias="from",
        description="the policy that the stage starts from: that of an earlier stage, or base, the model that the "
        "first stage starts from; null: that of the stage before",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        tree = {"name": value} if isinstance(value, str) else value
        return {"kind": tree["name"], **tree} if isinstance(tree, dict) and "name" in tree else tree

    @field_validator("changes")
    @classmethod
    def _file(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        algorithm = value.get("algorithm")
        return value | {"algorithm": located(algorithm, info)} if isinstance(algorithm, dict) else value

    @model_serializer
    def _brief(self) -> Any:
        if self.name == self.kind and not self.changes and self.start is None:
            return self.name
        more = {"from": self.start, "with": self.changes}
        return {"name": self.name, "kind": self.kind, **{k: v for k, v in more.items() if v}}


class Recipe(Protocol):
    """The stages of a recipe, and the sections that all of them share."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All stages, in order."""

    def section_of(self, stage: Stage) -> StageSection:
        """Return the section of a stage, with the stage's changes."""

    @property
    def model(self) -> ModelConfig:
        """The policy that the run starts from."""

    @property
    def data(self) -> DataConfig:
        """Prompts, demonstrations and the template."""

    @property
    def rollout(self) -> RolloutConfig:
        """The engine, and the sampling of responses."""

    @property
    def episodes(self) -> EpisodesConfig:
        """Limits of responses in several turns."""

    @property
    def scoring(self) -> ScoringConfig:
        """The grading of responses."""

    @property
    def train(self) -> TrainConfig:
        """The training backend."""

    @property
    def guard(self) -> GuardConfig:
        """Signs of a collapse, and the action taken."""


class StageSection(Section):
    """Base of the sections of stages. A subclass has all facts of a kind of stage, except the code that runs it.

    The code is the `StageKind` of `pipeline/stages/<kind>.py`, or of a plug-in.
    """

    learns: ClassVar[Learns] = "rewards"
    """The signal that the policy learns from; a learning rate that is null is chosen by it (`rates.py`)."""
    title: ClassVar[str] = ""
    """Name of the kind in charts; empty: the kind itself."""
    trains_policy: ClassVar[bool] = True
    """True if the stage changes the policy, so that an evaluation follows."""
    learns_from_responses: ClassVar[bool] = False
    """True if the policy learns from rewards, preferences or a teacher of responses, and not from texts.

    Gains are measured from the evaluation before the first step of such a stage.
    """
    plays_episodes: ClassVar[bool] = False
    """True if rows of the data may name an environment."""
    in_rounds: ClassVar[bool] = False
    """True if the stage's items are rounds, named by number and evaluated every `evaluation.every_rounds`."""
    reads: ClassVar[frozenset[str]] = frozenset()
    """Inputs of the stage, besides seed, model, template, trainer and its own section: sections of the recipe, and
    "prompts", "demonstrations", "text" and "pairs" of the data."""
    leaves: ClassVar[frozenset[str]] = frozenset()
    """Files that the stage leaves in its folder for later stages, e.g. "demonstrations.jsonl"."""

    def steps_of_items(self) -> list[int]:
        """Return the steps of each item. By default there is one item; 0 steps means that the data decides."""
        return [getattr(self, "steps", None) or 0]

    @classmethod
    def more_steps(cls, steps: int) -> dict[str, Any] | None:
        """Return the changes of the section for a further stage of so many steps; None if the kind has none.

        A kind has some if it trains the policy for a number of `steps`.
        """
        if not cls.trains_policy or "steps" not in cls.model_fields:
            return None
        others = {"epochs": None, "parts": 1}
        return {"steps": steps} | {name: value for name, value in others.items() if name in cls.model_fields}

    def taken_from_stages(self) -> dict[str, tuple[str, str]]:
        """Return field -> (the earlier stage that it names, the file needed from its folder or `POLICY`)."""
        return {}

    def optimizers(self) -> Iterator[tuple[str, OptimizerConfig]]:
        """Yield the fields that are optimisers, by name."""
        for name in type(self).model_fields:
            if isinstance(value := getattr(self, name), OptimizerConfig):
                yield name, value

    @property
    def needs_demonstrations(self) -> bool:
        """True if the stage trains on the data's demonstrations."""
        return "demonstrations" in self.reads

    @property
    def answers_prompts(self) -> bool:
        """True if the stage samples answers to the training prompts, which are graded."""
        return "prompts" in self.reads

    @property
    def teacher_paths(self) -> list[str]:
        """Folders and hub ids of the stage's teachers, except the policy itself."""
        return []

    def check(self, recipe: Recipe) -> None:
        """Raise ValueError, with the remedy, for settings of the recipe that do not fit this stage."""

    def explain(self, recipe: Recipe) -> str:
        """Return the text that `verizero check` shows for the stage; empty: none."""
        return ""


TEXT_TYPES = (".txt", ".jsonl", ".ndjson", ".json", ".parquet")


class TextSource(Section):
    """A file of unlabelled text: a .txt file is one text; of other files, each row is one."""

    file: str = Field(description="path of .txt, .jsonl, .json or .parquet, from the recipe's folder")
    column: str = Field("text", min_length=1, description="column of the text; a.b steps into objects")
    limit: int | None = Field(None, ge=1, description="most texts")
    on_bad_row: Literal["error", "skip"] = Field("error", description="skip: counted and reported")

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, value: Any) -> Any:
        return {"file": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _known(self) -> TextSource:
        if not self.file.lower().endswith(TEXT_TYPES):
            raise ValueError(f"a file of text must end in {', '.join(TEXT_TYPES)}, got {self.file!r}")
        return self


def check_start(index: int, stage: Stage, before: Sequence[str], train: TrainConfig) -> None:
    """Raise ValueError if the stage starts from an unknown stage's policy, or if the backend cannot load weights."""
    if stage.start is None:
        return
    field = f"stages.{index} ({stage.name}): from: {stage.start}"
    if stage.start not in (BASE, *before):
        raise ValueError(f"{field} is no stage before it; name {', '.join((BASE, *before))}, or leave it out")
    what = f"train.backend={train.backend!r}" if train.backend == "deepspeed" else "train.lora"
    if train.backend == "deepspeed" or train.lora is not None:
        raise ValueError(
            f"{field} gives the policy other weights, which {what} cannot; set train.backend: torch or fsdp without "
            "train.lora, or leave it out"
        )


def check_one_length(section: str, steps: int | None, epochs: float | None) -> None:
    """Raise ValueError unless exactly one of steps and epochs is given."""
    if (steps is None) == (epochs is None):
        raise ValueError(
            f"give exactly one of {section}.steps and {section}.epochs, got steps {steps} and epochs {epochs}"
        )


class TextStage(StageSection):
    """Base of stages that learn from texts, for a number of steps or of passes."""

    where: ClassVar[str]
    """The section's name in a recipe."""
    learns: ClassVar[Learns] = "texts"
    plays_episodes: ClassVar[bool] = True

    steps: int | None = Field(None, ge=1)
    epochs: float | None = Field(None, gt=0, description="passes over the texts or demonstrations, instead of steps")
    batch_size: int = Field(64, ge=1, description="texts or demonstrations in a step")
    evaluate_every: int | None = Field(None, ge=1, description="steps between evaluations; null: only after the stage")
    optimizer: OptimizerConfig = OptimizerConfig(schedule="cosine", warmup_steps=30)

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        check_one_length(self.where, self.steps, self.epochs)
        return self


class PretrainConfig(TextStage):
    """Next-token training on unlabelled text, of a new base model (R1-Zero) or on files of a domain."""

    where: ClassVar[str] = "pretrain"
    title: ClassVar[str] = "Pretraining"
    reads: ClassVar[frozenset[str]] = frozenset({"text"})

    text: tuple[TextSource, ...] = Field(
        (), description="files; texts longer than the context are cut into pieces; empty: lines of the generators"
    )
    num_lines: int = Field(20_000, ge=1, description="lines of text from the generators of data.train")


class SftConfig(TextStage):
    """Supervised fine-tuning on demonstrations of the data, or of an earlier stage."""

    where: ClassVar[str] = "sft"
    title: ClassVar[str] = "SFT"
    reads: ClassVar[frozenset[str]] = frozenset({"demonstrations"})

    demonstrations: str | None = Field(
        None, description="earlier stage whose demonstrations are trained on; null: those of `data`"
    )

    def taken_from_stages(self) -> dict[str, tuple[str, str]]:
        """Return the stage whose demonstrations are trained on."""
        return {} if self.demonstrations is None else {"demonstrations": (self.demonstrations, DEMONSTRATIONS)}

    @property
    def needs_demonstrations(self) -> bool:
        """True unless the demonstrations come from an earlier stage."""
        return self.demonstrations is None


class ReferenceConfig(Section):
    """When the reference policy is replaced by the current policy."""

    schedule: Literal["frozen", "every_round", "every_n_steps", "ema", "none"] = Field(
        "every_round", description="none: no reference and no KL to it"
    )
    every: int | None = Field(None, ge=1, description="every_n_steps: steps between refreshes; ema: null: 1")
    alpha: float | None = Field(None, gt=0, le=1, description="ema: weight of the policy (2404.09656)")

    @model_validator(mode="after")
    def _fits(self) -> ReferenceConfig:
        for schedule, name in (("every_n_steps", "every"), ("ema", "alpha")):
            is_set = getattr(self, name) is not None
            if is_set != (self.schedule == schedule) and not (name == "every" and self.schedule == "ema"):
                verb = "needs" if self.schedule == schedule else "has no use for"
                raise ValueError(f"reference.schedule={self.schedule} {verb} reference.{name}")
        return self


class SelectConfig(Section):
    """Dynamic sampling (2503.14476): which groups are trained on, and how the batch is filled."""

    keep: Literal["auto", "informative", "all"] = Field(
        "auto", description="informative: groups whose rewards are not all equal; auto: as the algorithm sets it"
    )
    max_refills: int = Field(3, ge=0, description="most further generations in a step, if too few groups were kept")
    carry_over: bool = Field(True, description="train on kept groups beyond the batch in the next step")


class RoundsConfig(StageSection):
    """Base of stages that train in rounds of generate, verify, select, update."""

    in_rounds: ClassVar[bool] = True
    learns_from_responses: ClassVar[bool] = True
    groups_differ: ClassVar[bool] = True
    """True if groups with equal rewards teach nothing. It is used by stages without an algorithm."""
    reads: ClassVar[frozenset[str]] = frozenset({"prompts", "rollout", "scoring", "sandbox", "guard"})

    rounds: int = Field(ge=1)
    steps_per_round: int = Field(ge=1)
    prompts_per_step: int = Field(ge=1, description="groups in a batch")
    group_size: int = Field(ge=1, description="responses to each prompt")
    optimizer: OptimizerConfig = OptimizerConfig()
    reference: ReferenceConfig | None = Field(None, description="null: as the algorithm sets it")
    select: SelectConfig = SelectConfig()
    max_tokens: int | None = Field(
        None, ge=1, description="end RL before a step that might bring the generated tokens above this; null: no limit"
    )

    @property
    def has_reference(self) -> bool:
        """True if the stage may have a reference policy; the algorithm or `reference` sets its schedule."""
        return True

    def steps_of_items(self) -> list[int]:
        """Return the steps of each round."""
        return [self.steps_per_round] * self.rounds

    @classmethod
    def more_steps(cls, steps: int) -> dict[str, Any] | None:
        """Return the changes of the section for one round of so many steps."""
        return {"rounds": 1, "steps_per_round": steps}
