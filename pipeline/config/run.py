"""A whole recipe, and the rules between its sections."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cache
from typing import Any, TypeVar, get_args

from pydantic import Field, ValidationError, create_model, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from verizero.pipeline import registry
from verizero.pipeline.config.choices import VerifierChoice
from verizero.pipeline.config.data import DataConfig
from verizero.pipeline.config.episodes import EpisodesConfig, check_episodes
from verizero.pipeline.config.guard import GuardConfig
from verizero.pipeline.config.pairs import OnlinePreferenceConfig, PairStage, PreferenceConfig
from verizero.pipeline.config.reward_model import RewardModelConfig
from verizero.pipeline.config.rl import RlConfig, parts_of
from verizero.pipeline.config.rollout import RolloutConfig, check_launch
from verizero.pipeline.config.sample import SampleConfig
from verizero.pipeline.config.sandbox import SandboxConfig
from verizero.pipeline.config.scoring import ScoringConfig
from verizero.pipeline.config.sections import (
    CheckpointConfig,
    EvaluationConfig,
    LaunchConfig,
    ModelConfig,
    ReportConfig,
    Section,
    TrainConfig,
    check_optimizer,
)
from verizero.pipeline.config.stages import POLICY, PretrainConfig, Recipe, SftConfig, Stage, StageSection, check_start
from verizero.pipeline.config.teaching import DistillConfig
from verizero.pipeline.config.yaml_reader import merge
from verizero.pipeline.errors import ConfigError

S = TypeVar("S", bound=StageSection)
RECORDING_ENGINES = ("torch", "vllm", "vllm_server")
"""Engines that can record the tokens that top-p and top-k kept, and the experts used."""
RESERVED_NAMES = frozenset(
    {"base", "evaluate", "generate", "verify", "select", "update", "publish", "other", "graders"}
)
"""Names that no stage may have: in a run's files they mean the first model and the phases of a step."""


class RunConfig(Section):
    """A recipe: everything that determines a run. Equal recipes and seeds give the same bytes."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="the run's folder under `output`")
    output: str = "runs"
    seed: int = Field(0, ge=0)
    stages: tuple[Stage, ...] = Field(
        (Stage.model_validate("sft"), Stage.model_validate("rl")), description="stages in order, each done once"
    )
    model: ModelConfig
    data: DataConfig
    pretrain: PretrainConfig | None = None
    sft: SftConfig | None = None
    rl: RlConfig | None = None
    preference: PreferenceConfig | None = None
    sample: SampleConfig | None = None
    online_preference: OnlinePreferenceConfig | None = None
    distill: DistillConfig | None = None
    reward_model: RewardModelConfig | None = None
    rollout: RolloutConfig
    episodes: EpisodesConfig = EpisodesConfig()
    scoring: ScoringConfig = ScoringConfig()
    sandbox: SandboxConfig = SandboxConfig()
    train: TrainConfig = TrainConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    guard: GuardConfig = GuardConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    report: ReportConfig = ReportConfig()
    callbacks: tuple[str, ...] = Field(
        (), description="file.py:function, each called after every step and evaluation (docs/python.md)"
    )
    launch: LaunchConfig = LaunchConfig()

    @model_validator(mode="after")
    def _stages_fit(self) -> RunConfig:
        if not self.stages:
            raise ValueError("stages: a run has at least one, e.g. [sft, rl], got []")
        names = [s.name for s in self.stages]
        for i, stage in enumerate(self.stages):
            check_name(i, stage, names, self.kinds())
            check_start(i, stage, names[:i], self.train)
            try:
                section = self.section_of(stage)
            except ValidationError as exc:
                raise _of_stage(exc, i, stage) from exc
            for field, (name, file) in section.taken_from_stages().items():
                before = {s.name: self.kinds()[s.kind].leaves | {POLICY} for s in self.stages[:i]}
                possible = ", ".join(n for n, leaves in before.items() if file in leaves)
                if file not in before.get(name, ()):
                    what = "is no stage before it" if name not in before else f"leaves no {file}"
                    raise ValueError(
                        f"stages.{i} ({stage.name}): {stage.kind}.{field} names {name!r}, which {what}; "
                        + (f"name {possible}" if possible else f"put a stage that leaves {file} before it")
                    )
        return self

    @field_validator("callbacks")
    @classmethod
    def _are_paths(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for path in value:
            if not all(path.rpartition(":")):
                raise ValueError(f"a callback is file.py:function, from the recipe's folder, got {path!r}")
        return value

    @model_validator(mode="after")
    def _graders_are_there(self) -> RunConfig:
        for choice in [*self.data.verifiers.values(), *(c.verifier for c in self.scoring.components)]:
            if (name := choice.stage) is not None:
                raise ValueError(
                    f"a verifier is the reward model of stage {name!r}, and it would grade before that stage has run; "
                    "name it in rl.reward or as the judge of pairs, or give the model's folder"
                )
        return self

    @model_validator(mode="after")
    def _prompts_fit(self) -> RunConfig:
        ungraded = next((s.label for s in self.data.train if not s.graded), None)
        for stage in self.stages:
            section = self.section_of(stage)
            if section.answers_prompts and ungraded is not None:
                raise ValueError(
                    f"stage {stage.name!r} grades answers to the prompts of data.train, and {ungraded} has graded: "
                    "false; give it a verifier and answers, or move it to data.demonstrations"
                )
            imitates = section.needs_demonstrations and not self.data.demonstrations
            if not self.data.train and (section.answers_prompts or imitates):
                raise ValueError(f"data.train is empty, and stage {stage.name!r} needs its rows; name a source")
        return self

    @model_validator(mode="after")
    def _sections_fit(self) -> RunConfig:
        self.check()
        return self

    def check(self) -> None:
        """Raise ValueError for values of sections that do not fit each other."""
        for stage in self.stages:
            try:
                self.section_of(stage).check(self)
            except ValueError as exc:
                raise exc if stage.name == stage.kind else ValueError(f"stage {stage.name!r}: {exc}") from exc
            for field, optimizer in self.section_of(stage).optimizers():
                check_optimizer(f"{stage.kind}.{field}", optimizer.kind, self.train)
        if self.model.quantize is not None and (reason := next(_against(self), None)) is not None:
            raise ValueError(f"model.quantize={self.model.quantize}{reason}")
        self._check_references()
        check_launch(self.launch, self.train, self.rollout)
        check_episodes(self.launch, self.episodes)

    def _check_references(self) -> None:
        for stage in self.stages if self.model.dtype == "bfloat16" else ():
            reference = getattr(self.section_of(stage), "reference", None)
            if reference is not None and reference.schedule == "ema":
                raise ValueError(
                    f"{stage.kind}.reference.schedule=ema in stage {stage.name!r} with model.dtype=bfloat16: steps of "
                    f"reference.alpha={reference.alpha:g} are mostly smaller than the rounding of bfloat16, so the "
                    "reference would hardly move; set another reference.schedule, or model.dtype: float32"
                )

    @property
    def stage_names(self) -> tuple[str, ...]:
        """Names of the stages, in order."""
        return tuple(s.name for s in self.stages)

    @classmethod
    @cache
    def kinds(cls) -> dict[str, type[StageSection]]:
        """Return kind -> section class, for all kinds of stages of this class of recipes."""
        return {
            name: section
            for name, field in cls.model_fields.items()
            for section in get_args(field.annotation)
            if isinstance(section, type) and issubclass(section, StageSection)
        }

    def sections_of(self, what: type[S]) -> dict[str, S]:
        """Return stage name -> section, for the stages whose section is of that class."""
        return {s.name: section for s in self.stages if isinstance(section := self.section_of(s), what)}

    @property
    def begins_with_texts(self) -> bool:
        """True if the first stage trains on texts, before any stage samples from the model."""
        first = self.section_of(self.stages[0])
        return first.trains_policy and not first.learns_from_responses

    @property
    def sections_on_pairs(self) -> dict[str, PairStage]:
        """The sections of stages that train on pairs."""
        return self.sections_of(PairStage)

    @property
    def teachers(self) -> list[str]:
        """Folders and hub ids of all teachers of the stages, except the policy itself."""
        return sorted({path for section in map(self.section_of, self.stages) for path in section.teacher_paths})

    def section_of(self, stage: Stage) -> StageSection:
        """Return the section of the stage's kind, with the stage's changes. Raises: ValueError if it is missing."""
        base: StageSection | None = getattr(self, stage.kind)
        if stage.changes:
            tree = {} if base is None else base.model_dump(mode="json", exclude_unset=True)
            return self.kinds()[stage.kind].model_validate(merge(tree, stage.changes))
        if base is None:
            raise ValueError(f"stages name {stage.kind!r} but the recipe has no such section; add it or drop the stage")
        return base

    def of_stage(self, name: str) -> RunConfig:
        """Return the recipe with only that stage; its changes are already in its section."""
        (stage,) = (s for s in self.stages if s.name == name)
        unchanged = stage.model_copy(update={"changes": {}})
        return self.model_copy(update={stage.kind: self.section_of(stage), "stages": (unchanged,)})

    @property
    def verifiers(self) -> dict[str, VerifierChoice]:
        """The verifiers that sources of prompts and of pairs choose, by `Prompt.verifier`."""
        sources = (source for section in self.sections_on_pairs.values() for source in section.pairs)
        return self.data.verifiers | {s.verifier.key: s.verifier for s in sources if s.verifier is not None}

    @property
    def needs_demonstrations(self) -> bool:
        """True if a stage trains on the data's demonstrations."""
        return any(self.section_of(s).needs_demonstrations for s in self.stages)


def check_name(index: int, stage: Stage, names: list[str], kinds: Collection[str]) -> None:
    """Raise ValueError for an unknown kind, or a name that is not unique."""
    location = f"stages.{index}"
    if stage.kind not in kinds:
        known = dict.fromkeys([*kinds, *registry.installed("stages")])
        raise ValueError(
            f"{location}: a stage's kind is one of {', '.join(known)}, and a stage of another name says its kind, e.g. "
            f"{{name: {stage.name}, kind: sft}}, got {stage.kind!r}"
        )
    if names.count(stage.name) > 1:
        raise ValueError(
            f"stages name a stage twice: {', '.join(names)}; give the second another name, e.g. "
            f"{{name: {stage.name}_again, kind: {stage.kind}}}"
        )
    if stage.name in RESERVED_NAMES or (stage.name in kinds and stage.name != stage.kind):
        what = "a kind of its own" if stage.name in kinds else "something else in a run's files"
        raise ValueError(f"{location}: {stage.name!r} means {what}; give the stage another name")


def _of_stage(exc: ValidationError, index: int, stage: Stage) -> ValidationError:
    """Return errors of a stage's section with their full path in the recipe."""
    location: tuple[Any, ...] = ("stages", index, "with") if stage.changes else (stage.kind,)
    errors = [
        InitErrorDetails(
            type=PydanticCustomError(e["type"], e["msg"], {"stage_kind": stage.kind}),
            loc=(*location, *e["loc"]),
            input=e["input"],
        )
        for e in exc.errors()
    ]
    return ValidationError.from_exception_data("stages", errors)


def section_class_of(kind: str) -> type[StageSection]:
    """Return the section class of a kind; StageSection if the kind is not installed here."""
    return with_plugins([kind]).kinds().get(kind, StageSection)


def with_plugins(names: Iterable[str]) -> type[RunConfig]:
    """Return the class of recipes with sections for known plug-ins of `names` too. Raises: ConfigError."""
    plugins = sorted((set(names) - RunConfig.model_fields.keys()) & set(registry.installed("stages")))
    return _recipe_class(tuple((name, _plugin_section(name)) for name in plugins)) if plugins else RunConfig


def _plugin_section(name: str) -> type[StageSection]:
    section = getattr(getattr(registry.find("stages", name), "KIND", None), "section", None)
    if not (isinstance(section, type) and issubclass(section, StageSection)):
        raise ConfigError(
            f"the entry point {name!r} of verizero.stages must name a module with KIND = StageKind(section, run), and "
            f"the section must be a subclass of StageSection, got {section!r}"
        )
    return section


@cache
def _recipe_class(plugins: tuple[tuple[str, type[StageSection]], ...]) -> type[RunConfig]:
    fields: dict[str, Any] = {name: (section | None, None) for name, section in plugins}
    return create_model("RunConfig", __base__=RunConfig, __doc__=RunConfig.__doc__, **fields)


def _against(recipe: Recipe) -> Iterator[str]:
    """Yield what follows the field and its value in messages."""
    train = recipe.train
    if train.lora is None:
        yield " freezes the weights, so that nothing would learn; set train.lora: {rank: 16}, or drop model.quantize"
    if train.backend == "deepspeed":
        yield " with train.backend=deepspeed, which divides numbers and no bits; set train.backend: fsdp or torch"
    if recipe.rollout.engine not in ("auto", "torch") and not recipe.rollout.takes_adapters:
        yield (
            f" with rollout.engine={recipe.rollout.engine}, which takes weights with the adapters merged; set "
            "rollout.engine: torch, vllm or vllm_server"
        )
    for stage in recipe.stages:
        section = recipe.section_of(stage)
        where = f" with stage {stage.name!r}"
        if section.learns == "ranks" and train.backend == "fsdp":
            yield f"{where}, whose model train.backend=fsdp divides as numbers; set train.backend: torch"
        if isinstance(section, RlConfig) and (critic := parts_of(section).critic) is not None and not critic.shared:
            yield (
                f"{where}, whose critic trains all weights of a copy; set rl.algorithm.critic_shared: true, or take an "
                "algorithm without a critic"
            )
        if any(file == POLICY for _, file in section.taken_from_stages().values()):
            yield f"{where}, whose teacher is an earlier stage's policy, of which the adapters alone are kept"
