"""The stages of a recipe, and the section of each kind: what it is made of, in how many steps, and what it goes by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, model_serializer, model_validator

from pipeline.config.data import VerifierChoice
from pipeline.config.sections import OptimizerConfig, Section, TrainConfig

DEMONSTRATIONS = "demonstrations.jsonl"
"""What a stage leaves for SFT stages: rows as in a user's own file, each with a demonstration."""
MODEL = "model"
"""What a stage leaves for graders: the folder of a reward model."""
BASE = "base"
"""In place of a stage: the model that the first one starts from."""


class Stage(Section):
    """One stage. A word alone is its name and kind, with the section of that name as it stands."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", description="in reports, folders and `--stages`; no two are alike"
    )
    kind: str = Field(description="the section that it is made of, e.g. sft; left out: as the name")
    changes: dict[str, Any] = Field({}, alias="with", description="fields of that section that differ in this stage")
    start: str | None = Field(
        None,
        alias="from",
        description="the policy it begins with: that at the end of an earlier stage, or base, the model that the first "
        "stage starts from; null: of the stage before",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        tree = {"name": value} if isinstance(value, str) else value
        return {"kind": tree["name"], **tree} if isinstance(tree, dict) and "name" in tree else tree

    @model_serializer
    def _brief(self) -> Any:
        if self.name == self.kind and not self.changes and self.start is None:
            return self.name
        more = {"from": self.start, "with": self.changes}
        return {"name": self.name, "kind": self.kind, **{k: v for k, v in more.items() if v}}


class StageSection(Section):
    """Base of the sections that stages are made of.

    A kind of stage is such a section of the recipe under the kind's name, and a module of that name in
    `pipeline/stages` whose `run(session, item, steps, wrap)` does one item.
    """

    trains_policy: ClassVar[bool] = True
    """The policy comes out changed, so an evaluation follows."""
    in_rounds: ClassVar[bool] = False
    """Its items are rounds, each named by its number and evaluated as `evaluation.every_rounds` says."""
    reads: ClassVar[frozenset[str]] = frozenset()
    """What decides its outcome besides seed, model, template, trainer and its own section: sections of the recipe, and
    "prompts", "demonstrations" and "text" of the data."""
    leaves: ClassVar[frozenset[str]] = frozenset()
    """Files that it leaves in its folder for later stages, e.g. "demonstrations.jsonl"."""

    def steps_of_items(self) -> list[int]:
        """Steps of each item of such a stage, in order: one item, of as many steps as it has; 0: as its data make."""
        return [getattr(self, "steps", None) or 0]

    def taken_from_stages(self) -> dict[str, tuple[str, str]]:
        """field -> (an earlier stage that it names, the file wanted from that stage's folder)."""
        return {}


TEXT_TYPES = (".txt", ".jsonl", ".ndjson", ".json", ".parquet")


class TextSource(Section):
    """Unlabelled text of one file: a .txt is one text, every row of the others is one."""

    file: str = Field(description="path of .txt, .jsonl, .json or .parquet, from the recipe's folder")
    column: str = Field("text", min_length=1, description="of rows; a.b steps into objects")
    limit: int | None = Field(None, ge=1, description="texts")
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
    """Raises: ValueError for a stage that begins with the policy of none before it, or cannot take other weights."""
    if stage.start is None:
        return
    said = f"stages.{index} ({stage.name}): from: {stage.start}"
    if stage.start not in (BASE, *before):
        raise ValueError(f"{said} is no stage before it; name {', '.join((BASE, *before))}, or leave it out")
    what = f"train.backend={train.backend!r}" if train.backend != "torch" else "train.lora"
    if train.backend != "torch" or train.lora is not None:
        raise ValueError(
            f"{said} gives the policy other weights, which {what} cannot; set train.backend: torch without train.lora, "
            "or leave it out"
        )


def check_one_length(name: str, steps: int | None, epochs: float | None) -> None:
    """Raises: ValueError unless exactly one says how long the stage is."""
    if (steps is None) == (epochs is None):
        raise ValueError(f"give exactly one of {name}.steps and {name}.epochs, got steps {steps} and epochs {epochs}")


class PretrainConfig(StageSection):
    """Next-token training on unlabelled text: of a base made here that skips SFT (R1-Zero), or on files of a domain."""

    reads: ClassVar[frozenset[str]] = frozenset({"text"})

    steps: int | None = Field(None, ge=1)
    epochs: float | None = Field(None, gt=0, description="through the texts, in place of steps")
    batch_size: int = Field(64, ge=1, description="texts a step")
    packing: bool = Field(False, description="compute no padding: the same loss and gradient, in less time")
    text: tuple[TextSource, ...] = Field(
        (), description="files; what is longer than the context is cut into pieces. Empty: lines of the generators"
    )
    num_lines: int = Field(20_000, ge=1, description="lines of text drawn from the generators of data.train")
    evaluate_every: int | None = Field(None, ge=1, description="steps between evaluations; null: after the stage only")
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=2e-3, schedule="cosine", warmup_steps=30)

    @model_validator(mode="after")
    def _one_length(self) -> PretrainConfig:
        check_one_length("pretrain", self.steps, self.epochs)
        return self


class SftConfig(StageSection):
    """Supervised fine-tuning on demonstrations: those of the data, or what an earlier stage left."""

    reads: ClassVar[frozenset[str]] = frozenset({"demonstrations"})

    steps: int | None = Field(None, ge=1)
    epochs: float | None = Field(None, gt=0, description="through the demonstrations, in place of steps")
    batch_size: int = Field(64, ge=1, description="demonstrations a step")
    packing: bool = Field(False, description="compute no padding: the same loss and gradient, in less time")
    evaluate_every: int | None = Field(None, ge=1, description="steps between evaluations; null: after the stage only")
    demonstrations: str | None = Field(
        None, description="an earlier stage whose demonstrations.jsonl is trained on; null: those of `data`"
    )
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=2e-3, schedule="cosine", warmup_steps=30)

    @model_validator(mode="after")
    def _one_length(self) -> SftConfig:
        check_one_length("sft", self.steps, self.epochs)
        return self

    def taken_from_stages(self) -> dict[str, tuple[str, str]]:
        """The stage whose demonstrations are trained on."""
        return {} if self.demonstrations is None else {"demonstrations": (self.demonstrations, DEMONSTRATIONS)}


class ReferenceConfig(Section):
    """When the reference becomes the present policy."""

    schedule: Literal["frozen", "every_round", "every_n_steps", "ema", "on_kl", "on_plateau", "none"] = Field(
        "every_round", description="none: no reference is held and no KL to it measured"
    )
    every: int | None = Field(None, ge=1, description="steps between refreshes, for every_n_steps")
    alpha: float | None = Field(None, gt=0, le=1, description="weight of the policy, for ema (2404.09656)")
    kl: float | None = Field(None, gt=0, description="mean k3 past which it moves, for on_kl")
    patience: int | None = Field(None, ge=1, description="steps without a better mean reward, for on_plateau")
    teacher: str | None = Field(
        None, description="a folder or hub id whose model is the reference, to distil from; null: the policy itself"
    )

    @model_validator(mode="after")
    def _fits(self) -> ReferenceConfig:
        if self.teacher is not None and self.schedule != "frozen":
            raise ValueError(
                f"reference.schedule={self.schedule} would move reference.teacher={self.teacher!r}; set it to frozen"
            )
        needs = {"every_n_steps": "every", "ema": "alpha", "on_kl": "kl", "on_plateau": "patience"}
        for schedule, name in needs.items():
            given = getattr(self, name) is not None
            if given != (self.schedule == schedule):
                verb = "needs" if self.schedule == schedule else "has no use for"
                raise ValueError(f"reference.schedule={self.schedule} {verb} reference.{name}")
        return self


class SelectConfig(Section):
    """Dynamic sampling (2503.14476): which groups train, and how the batch is filled."""

    keep: Literal["auto", "informative", "all"] = Field(
        "auto", description="informative: rewards are not all equal; auto: as the algorithm has it"
    )
    max_refills: int = Field(3, ge=0, description="further generations a step, when too few groups were kept")
    fallback: Literal["train_short", "skip"] = Field("train_short", description="when the batch is still not full")
    carry_over: bool = Field(True, description="kept groups beyond the batch train in the next step")
    min_groups: int = Field(1, ge=1, description="fewer kept groups than this skip the update")


class RoundsConfig(StageSection):
    """Base of what trains in rounds of generate, verify, select, update."""

    in_rounds: ClassVar[bool] = True
    reads: ClassVar[frozenset[str]] = frozenset({"prompts", "rollout", "scoring", "sandbox", "guard"})

    rounds: int = Field(ge=1)
    steps_per_round: int = Field(ge=1)
    prompts_per_step: int = Field(ge=1, description="groups in one batch")
    group_size: int = Field(ge=1, description="responses a prompt")
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=3e-4)
    reference: ReferenceConfig | None = Field(None, description="null: as the algorithm has it")
    select: SelectConfig = SelectConfig()
    max_tokens: int | None = Field(
        None, ge=1, description="RL ends before a step that might generate more than so many in all; null: never"
    )
    max_bad_steps: int = Field(3, ge=1, description="refused (non-finite) updates in a row that end the run")

    @property
    def has_reference(self) -> bool:
        """There may be one; the algorithm or `reference` says when it moves."""
        return True

    def steps_of_items(self) -> list[int]:
        """One item a round."""
        return [self.steps_per_round] * self.rounds


class RlConfig(RoundsConfig):
    """Rounds of generate, verify, select, update."""

    algorithm: dict[str, Any] = Field(description="{name: grpo, …}: a preset and its parameters")
    reward: VerifierChoice | None = Field(
        None,
        description="grades the responses of this stage in place of the rows' own verifiers, which evaluate; a reward "
        "model of an earlier stage: {name: reward_model, params: {model: stage:NAME}}",
    )
    ptx_batch_size: int = Field(16, ge=1, description="demonstrations in each update, where ptx_coef is above 0")
    critic: OptimizerConfig | None = Field(
        None, description="the critic's; null: `optimizer`, at the algorithm's critic_learning_rate where it has one"
    )

    def taken_from_stages(self) -> dict[str, tuple[str, str]]:
        """The stage whose reward model grades."""
        return {} if self.reward is None or self.reward.stage is None else {"reward": (self.reward.stage, MODEL)}
