"""A whole recipe, and the rules between its sections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from pydantic import Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from verizero.pipeline.config.choices import VerifierChoice
from verizero.pipeline.config.data import DataConfig
from verizero.pipeline.config.distill import DistillConfig, check_distill, check_teacher_stages
from verizero.pipeline.config.episodes import EpisodesConfig, check_episodes, most_sampled, names_episodes
from verizero.pipeline.config.guard import GuardConfig, turned
from verizero.pipeline.config.merge import merge
from verizero.pipeline.config.preference import OnlinePreferenceConfig, PreferenceConfig
from verizero.pipeline.config.reward_model import RewardModelConfig
from verizero.pipeline.config.rollout import RolloutConfig, check_launch, check_older_weights, check_quantized
from verizero.pipeline.config.sample import SampleConfig
from verizero.pipeline.config.sandbox import SandboxConfig
from verizero.pipeline.config.scoring import ScoringConfig
from verizero.pipeline.config.sections import (
    CheckpointConfig,
    EvaluationConfig,
    LaunchConfig,
    ModelConfig,
    PrefectConfig,
    ReportConfig,
    Section,
    TrainConfig,
    check_backend,
)
from verizero.pipeline.config.stages import (
    PretrainConfig,
    RlConfig,
    RoundsConfig,
    SftConfig,
    Stage,
    StageSection,
    check_start,
)
from verizero.pipeline.rl.rules import UNUSUAL

if TYPE_CHECKING:
    from verizero.pipeline.rl.parts import Parts

RECORDING_ENGINES = ("torch", "vllm", "vllm_server")
"""Engines that record the sets of tokens that were sampled from, and the experts used."""
NO_NAMES = frozenset({"base", "evaluate", "generate", "verify", "select", "update", "publish", "other", "graders"})
"""Names refused for stages: in a run's files they mean the model before training and the phases of a step."""


class RunConfig(Section):
    """Everything that determines a run. Two runs of equal recipes and seeds give the same bytes."""

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
    prefect: PrefectConfig = PrefectConfig()
    launch: LaunchConfig = LaunchConfig()

    @model_validator(mode="after")
    def _stages_fit(self) -> RunConfig:
        if not self.stages:
            raise ValueError("stages: a run has at least one, e.g. [sft, rl], got []")
        names = [s.name for s in self.stages]
        for i, stage in enumerate(self.stages):
            check_name(i, stage, names)
            check_start(i, stage, names[:i], self.train)
            try:
                section = self.section_of(stage)
            except ValidationError as exc:
                raise _of_stage(exc, i, stage) from exc
            check_teacher_stages(i, stage.name, section, names[:i])
            for field, (name, file) in section.taken_from_stages().items():
                before = {s.name: kinds()[s.kind] for s in self.stages[:i]}
                able = ", ".join(n for n, kind in before.items() if file in kind.leaves)
                if name not in before or file not in before[name].leaves:
                    what = "is no stage before it" if name not in before else f"leaves no {file}"
                    raise ValueError(
                        f"stages.{i} ({stage.name}): {stage.kind}.{field} names {name!r}, which {what}; "
                        + (f"name {able}" if able else f"put a stage that leaves {file} before it")
                    )
        return self

    @model_validator(mode="after")
    def _graders_are_there(self) -> RunConfig:
        others = [c.verifier for c in self.scoring.components]
        others += [self.scoring.second_opinion.verifier] if self.scoring.second_opinion is not None else []
        for choice in [*self.data.verifiers.values(), *others]:
            if (name := choice.stage) is not None:
                raise ValueError(
                    f"a verifier is the reward model of stage {name!r}, and it would grade before that stage has run; "
                    "name it in rl.reward or as the judge of pairs, or give the model's folder"
                )
        return self

    @model_validator(mode="after")
    def _stages_in_rounds_fit(self) -> RunConfig:
        checks = {"rl": _check_rl_stage, "distill": _check_distill_stage}
        for stage in (s for s in self.stages if s.kind in checks):
            try:
                checks[stage.kind](self.of_stage(stage.name))
            except ValueError as exc:
                raise exc if stage.name == stage.kind else ValueError(f"stage {stage.name!r}: {exc}") from exc
        return self

    @model_validator(mode="after")
    def _references_move(self) -> RunConfig:
        for stage in self.stages if self.model.dtype == "bfloat16" else ():
            reference = getattr(self.section_of(stage), "reference", None)
            if reference is not None and reference.schedule == "ema":
                raise ValueError(
                    f"{stage.kind}.reference.schedule=ema in stage {stage.name!r} with model.dtype=bfloat16: steps of "
                    f"reference.alpha={reference.alpha:g} are mostly smaller than the rounding of bfloat16, so the "
                    "reference would hardly move; set another reference.schedule, or model.dtype: float32"
                )
        return self

    @model_validator(mode="after")
    def _ranks_can(self) -> RunConfig:
        check_backend(self.train, self.model, self.checkpoint)
        check_launch(self.launch, self.train, self.rollout)
        check_episodes(self.launch, self.episodes, [s.kind for s in self.stages])
        together = self.train.sequence_parallel
        for stage in self.stages if together > 1 else ():
            if getattr(self.section_of(stage), "packing", False):
                raise ValueError(
                    f"{stage.kind}.packing=true in stage {stage.name!r} with train.sequence_parallel={together}, which "
                    f"shares out rows with their padding; set {stage.kind}.packing: false, or "
                    "train.sequence_parallel: 1"
                )
        return self

    @property
    def stage_names(self) -> tuple[str, ...]:
        """Names of the stages, in order."""
        return tuple(s.name for s in self.stages)

    def stages_of(self, kind: str) -> list[Stage]:
        """The stages of one kind, in order."""
        return [s for s in self.stages if s.kind == kind]

    @property
    def teachers(self) -> list[str]:
        """Folders and hub ids of models besides the policy that stages distil from."""
        sections = [self.section_of(s) for s in self.stages_of("distill")]
        teachers = [t for s in sections if isinstance(s, DistillConfig) for t in s.all_teachers.values()]
        return sorted({t.path for t in teachers if t.path is not None})

    def section_of(self, stage: Stage) -> StageSection:
        """Return the section of the stage's kind with the stage's changes. Raises: ValueError without a section."""
        base: StageSection | None = getattr(self, stage.kind)
        if stage.changes:
            tree = {} if base is None else base.model_dump(mode="json", exclude_unset=True)
            return kinds()[stage.kind].model_validate(merge(tree, stage.changes))
        if base is None:
            raise ValueError(f"stages name {stage.kind!r} but the recipe has no such section; add it or drop the stage")
        return base

    def of_stage(self, name: str) -> RunConfig:
        """Return the recipe of that stage alone, with the stage's section in place of its kind's."""
        (stage,) = (s for s in self.stages if s.name == name)
        return self.model_copy(update={stage.kind: self.section_of(stage), "stages": (stage,)})

    @property
    def verifiers(self) -> dict[str, VerifierChoice]:
        """The verifiers that sources of prompts and of pairs name, by `Prompt.verifier`."""
        sections = [self.section_of(s) for s in self.stages]
        learners = [s for s in sections if isinstance(s, PreferenceConfig | RewardModelConfig)]
        sources = (source for section in learners for source in section.pairs)
        return self.data.verifiers | {s.verifier.key: s.verifier for s in sources if s.verifier is not None}

    @property
    def needs_demonstrations(self) -> bool:
        """True if a stage trains on the data's demonstrations: SFT, or RL with ptx_coef above 0."""
        sft = (self.of_stage(s.name).sft for s in self.stages_of("sft"))
        rl = (self.of_stage(s.name).rl for s in self.stages_of("rl"))
        return any(s is not None and s.demonstrations is None for s in sft) or any(
            r is not None and parts_of(r).terms.ptx_coef > 0 for r in rl
        )


def kinds() -> dict[str, type[StageSection]]:
    """Return the sections that define kinds of stages, by kind."""
    return {
        name: section
        for name, field in RunConfig.model_fields.items()
        for section in get_args(field.annotation)
        if isinstance(section, type) and issubclass(section, StageSection)
    }


def check_name(index: int, stage: Stage, names: list[str]) -> None:
    """Raise ValueError for an unknown kind, or a name that is not unique."""
    where = f"stages.{index}"
    if stage.kind not in kinds():
        raise ValueError(
            f"{where}: a stage's kind is one of {', '.join(kinds())}, and a stage of another name says its kind, e.g. "
            f"{{name: {stage.name}, kind: sft}}, got {stage.kind!r}"
        )
    if names.count(stage.name) > 1:
        raise ValueError(
            f"stages name a stage twice: {', '.join(names)}; give the second another name, e.g. "
            f"{{name: {stage.name}_again, kind: {stage.kind}}}"
        )
    if stage.name in NO_NAMES or (stage.name in kinds() and stage.name != stage.kind):
        what = "a kind of its own" if stage.name in kinds() else "something else in a run's files"
        raise ValueError(f"{where}: {stage.name!r} means {what}; give the stage another name")


def _of_stage(exc: ValidationError, index: int, stage: Stage) -> ValidationError:
    """Return the errors of a stage's fields with their places in the recipe."""
    place: tuple[Any, ...] = ("stages", index, "with") if stage.changes else (stage.kind,)
    errors = [
        InitErrorDetails(
            type=PydanticCustomError(e["type"], e["msg"], {"stage_kind": stage.kind}),
            loc=(*place, *e["loc"]),
            input=e["input"],
        )
        for e in exc.errors()
    ]
    return ValidationError.from_exception_data("stages", errors)


def _check_rl_stage(config: RunConfig) -> None:
    """Refuse what does not fit in a recipe of one RL stage. Raises: ValueError."""
    rl = config.rl
    assert rl is not None
    check_rl(rl, config.scoring)
    check_sampling(rl, config.rollout)
    check_budget(config, rl)
    check_lag(rl, config.rollout, config.train)
    check_quantized(config.rollout, config.model.dtype, parts_of(rl).mismatch.needs_rollout_logprobs)
    check_guard(config)


def _check_distill_stage(config: RunConfig) -> None:
    """Refuse what does not fit in a recipe of one stage of distillation. Raises: ValueError."""
    assert config.distill is not None
    check_distill(config.distill, config.rollout, config.train)


def check_guard(config: RunConfig) -> None:
    """Refuse a roll-back that cannot be done, or a knob with nothing to turn. Raises: ValueError, ConfigError."""
    rl, guard = config.rl, config.guard
    assert rl is not None
    if guard.action == "roll_back" and config.train.backend == "deepspeed":
        raise ValueError(
            f"guard.action=roll_back cannot go back within a run of train.backend={config.train.backend!r}; set "
            "guard.action: stop, or train.backend: torch or fsdp"
        )
    for times in range(1, guard.max_roll_backs + 1 if guard.knob else 1):
        check_rl(turned(rl, config.rollout, guard, times)[0], config.scoring)


def parts_of(rl: RlConfig) -> Parts:
    """The parts of the recipe's algorithm. Raises: UnknownName, ConfigError."""
    from verizero.pipeline.algorithms.base import chosen, load_algorithm

    return load_algorithm(*chosen(rl.algorithm))[1]


def check_rl(rl: RlConfig, scoring: ScoringConfig) -> None:
    """Refuse what makes no sense for the algorithm chosen.

    Raises: ValueError naming field, value and remedy; ConfigError for an algorithm that does not exist.
    """
    from verizero.pipeline.algorithms.base import chosen, load_algorithm

    name, params = chosen(rl.algorithm)
    _, parts = load_algorithm(name, params)
    weights, num = parts.advantage.options.get("weights"), 1 + len(scoring.components)
    if parts.needs_components and num < 2:
        raise ValueError(
            f"algorithm {name!r} takes several rewards one by one and the recipe has one; add others under "
            "scoring.components, e.g. {verifier: {name: format}}, or use grpo"
        )
    if parts.needs_no_negative:
        scoring.require_no_negative(name)
    if isinstance(weights, tuple) and len(weights) != num:
        raise ValueError(
            f"rl.algorithm.weights has {len(weights)} numbers for {num} rewards (the row's own, then "
            "scoring.components); give one for each, or none to take scoring.components' weights"
        )
    if rl.reference is not None and rl.reference.schedule == "none" and parts.needs_reference:
        raise ValueError(
            f"rl.reference.schedule is 'none' and the kl in the {parts.kl.where} of algorithm {name!r} needs a "
            "reference; set rl.algorithm.kl_coef: 0, or another schedule"
        )
    if rl.critic is not None and parts.critic is None:
        raise ValueError(f"rl.critic is given but algorithm {name!r} has no critic; drop rl.critic, or use ppo")
    if rl.critic is not None and parts.critic is not None and parts.critic.learning_rate is not None:
        raise ValueError(
            f"rl.critic.learning_rate={rl.critic.learning_rate:g} and critic_learning_rate="
            f"{parts.critic.learning_rate:g} of rl.algorithm both set the critic's learning rate; drop one of them"
        )
    if rl.group_size < 2 and parts.needs_group:
        raise ValueError(f"group_size must be >= 2 to form a baseline, got {rl.group_size}; set rl.group_size")
    if rl.select.keep == "informative" and rl.group_size < 2:
        raise ValueError(
            f"a group of {rl.group_size} is never informative; set rl.select.keep: all, or rl.group_size >= 2"
        )
    if parts.updates.num_minibatches > rl.prompts_per_step:
        raise ValueError(
            f"num_minibatches={parts.updates.num_minibatches} is more than rl.prompts_per_step={rl.prompts_per_step}; "
            "lower rl.algorithm.num_minibatches or raise rl.prompts_per_step"
        )


def check_sampling(rl: RlConfig, rollout: RolloutConfig) -> None:
    """Refuse a cut of the sampled distribution that training would not know of.

    Raises: ValueError naming field, value and remedy.
    """
    parts = parts_of(rl)
    if rollout.top_p == 1 and rollout.top_k == 0:
        return
    cut = f"rollout.top_p={rollout.top_p:g} and rollout.top_k={rollout.top_k}"
    if not parts.masks.keep_sampling:
        if "cut_sampling" not in parts.allow:
            raise ValueError(
                f"{cut} cut off tokens that training would not: {UNUSUAL['cut_sampling']}. Set "
                "rl.algorithm.keep_sampling: true, or top_p: 1 and top_k: 0, or ask for it with "
                "rl.algorithm.allow: [cut_sampling]"
            )
        return
    if rollout.top_k > rollout.max_kept:
        raise ValueError(
            f"rollout.top_k={rollout.top_k} leaves more tokens than rollout.max_kept={rollout.max_kept} records; raise "
            "max_kept or lower top_k"
        )
    if rollout.engine != "torch" and rollout.top_k == 0:
        raise ValueError(
            f"rl.algorithm.keep_sampling with rollout.engine={rollout.engine!r} and {cut}: vLLM records sets only "
            "where top_k bounds them; set rollout.top_k, to rollout.max_kept at most, or rollout.engine: torch"
        )


def check_lag(rl: RlConfig, rollout: RolloutConfig, train: TrainConfig) -> None:
    """Refuse old responses where nothing corrects for them, or their policy cannot be kept. Raises: ValueError."""
    if rollout.publish_every == 1 and rollout.max_staleness == 0:
        return
    parts = parts_of(rl)
    asked = "publish_every" if rollout.publish_every > 1 else "max_staleness"
    asked = f"rollout.{asked}={getattr(rollout, asked)}"
    bypassed = parts.mismatch.stale == "bypass"
    if bypassed and parts.ratio_entry.is_one and "stale_without_ratio" not in parts.allow:
        raise ValueError(
            f"{asked} trains on old responses and the algorithm has no ratio: {UNUSUAL['stale_without_ratio']}. Set "
            "rl.algorithm.mismatch_stale: decoupled, or ask for it with rl.algorithm.allow: [stale_without_ratio]"
        )
    check_older_weights(rollout, train)


def most_tokens(config: RunConfig, rl: RoundsConfig, greedy: bool, are_played: bool | None = None) -> int:
    """The tokens of one group whose responses are all as long as they may be, its greedy baseline included.

    are_played: True if prompts have environments; None: if the recipe says so.
    """
    if are_played is None:
        are_played = names_episodes(config.data, config.episodes)
    return (rl.group_size + greedy) * most_sampled(config.rollout, config.episodes, are_played)


def check_budget(config: RunConfig, rl: RlConfig) -> None:
    """Refuse a budget of tokens that one step might pass. Raises: ValueError with the least that will do."""
    least = rl.prompts_per_step * most_tokens(config, rl, parts_of(rl).needs_greedy)
    if rl.max_tokens is not None and rl.max_tokens < least:
        raise ValueError(
            f"rl.max_tokens={rl.max_tokens} is less than one step may generate, {least} (prompts_per_step x "
            "group_size x max_response_tokens, or the most of an episode); raise it, or set it to null"
        )
