"""Stages of distillation: the policy learns from teachers at each token of its own responses.

Examples of teachers:

{path: models/teacher}                                   a folder, or a hub id (needs network)
{stage: rl}                                              the policy that an earlier stage of this run left
{url: "http://localhost:8000/v1", model: big}            a server with vLLM's prompt_logprobs
{hint: "{question} (The answer is {answer}.)"}           the policy itself, which is shown more than the policy
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from verizero.pipeline.config.rollout import RolloutConfig, check_older_weights
from verizero.pipeline.config.sample import RequestConfig
from verizero.pipeline.config.sections import ModelPath, OptimizerConfig, TrainConfig
from verizero.pipeline.config.stages import POLICY, Recipe, RoundsConfig
from verizero.pipeline.rl.divergences import Divergence, Objective, Over, explain


class TeacherConfig(RequestConfig):
    """A teacher: exactly one of `path`, `stage`, `url`, and `hint` or `system`. The inherited fields are for `url`."""

    path: ModelPath = Field(None, description="folder or hub id of a model with the policy's vocabulary")
    stage: str | None = Field(None, description="earlier stage whose policy, as that stage left it, is the teacher")
    url: str | None = Field(
        None, description="base URL of a server with prompt_logprobs, e.g. http://localhost:8000/v1"
    )
    model: str | None = Field(None, min_length=1, description="name of the model at `url`")
    hint: str | None = Field(
        None,
        description="self-distillation: the policy, as `reference` schedules it, reads this text with {question} and, "
        "if wanted, {answer} in place of the question. Responses to prompts whose reference is neither text nor number "
        "do not train, and are counted",
    )
    system: str | None = Field(None, description="self-distillation: the policy reads this system message")

    @model_validator(mode="after")
    def _one(self) -> TeacherConfig:
        kinds = [n for n in ("path", "stage", "url") if getattr(self, n) is not None]
        kinds += ["hint or system"] if self.is_policy else []
        if len(kinds) != 1:
            raise ValueError(
                "a teacher needs exactly one of path, stage, url, and hint or system, got "
                f"{' and '.join(kinds) if kinds else 'none'}"
            )
        if (self.url is None) != (self.model is None):
            verb = "needs" if self.model is None else "has no use without url for"
            raise ValueError(f"a teacher at a url {verb} model, the name of the model there, got model={self.model!r}")
        if self.hint is not None and "{question}" not in self.hint:
            raise ValueError(f"hint must hold {{question}}, got {self.hint!r:.80}")
        return self

    @property
    def is_policy(self) -> bool:
        """True for self-distillation."""
        return self.hint is not None or self.system is not None


class DistillConfig(RoundsConfig):
    """Rounds in which the policy samples responses and learns each token from a teacher's distribution."""

    groups_differ: ClassVar[bool] = False

    teacher: TeacherConfig | None = Field(None, description="teacher of all domains that are not in `teachers`")
    teachers: dict[str, TeacherConfig] = Field({}, description="domain: its teacher")
    divergence: Divergence = Field(
        "reverse_kl",
        description="KL(policy || teacher), KL(teacher || policy), or the generalised Jensen-Shannon divergence "
        "between them (2306.13649)",
    )
    beta: float | None = Field(None, gt=0, lt=1, description="jsd: weight of the teacher in the mixture")
    over: Over = Field(
        "vocabulary",
        description="vocabulary: all tokens; top_k: the teacher's k most likely tokens, and all others as one; "
        "sampled: the sampled token alone (policy gradient with the advantage log q - log pi)",
    )
    top_k: int | None = Field(None, ge=1, description="top_k: number of tokens; servers give 20 by default")
    temperature: float | None = Field(
        None, gt=0, description="of both distributions; null: rollout.temperature, that of the sampling"
    )
    discount: float = Field(
        0.0,
        ge=0,
        le=1,
        description="weight of the divergence one token later in the credit of a token; 0: each token for its own; 1: "
        "the gradient of the divergence of whole responses (2306.08543)",
    )
    optimizer: OptimizerConfig = OptimizerConfig()

    @model_validator(mode="after")
    def _fits(self) -> DistillConfig:
        if not self.all_teachers:
            raise ValueError(
                "give distill.teacher, e.g. {path: models/teacher}, or distill.teachers by domain, got none"
            )
        for option, needed in (("beta", self.divergence == "jsd"), ("top_k", self.over == "top_k")):
            if (getattr(self, option) is not None) != needed:
                setting = f"divergence={self.divergence}" if option == "beta" else f"over={self.over}"
                verb = "needs" if needed else "has no use for"
                raise ValueError(f"distill.{setting} {verb} distill.{option}")
        if self.over == "sampled" and self.divergence != "reverse_kl":
            raise ValueError(
                f"distill.over=sampled with distill.divergence={self.divergence}: samples of the policy measure the "
                "reverse KL alone; set divergence: reverse_kl, or over: vocabulary or top_k"
            )
        if self.select.keep == "informative" and self.group_size < 2:
            raise ValueError(
                f"a group of {self.group_size} is never informative; set distill.select.keep: all, or "
                "distill.group_size >= 2"
            )
        self._reference_fits()
        return self

    def _reference_fits(self) -> None:
        """Raise ValueError if `reference` is set but no teacher uses it, or its schedule is not possible here."""
        if self.reference is None:
            return
        schedule = self.reference.schedule
        if not self.has_reference:
            raise ValueError(
                f"distill.reference.schedule={schedule}, and no teacher is the policy itself; leave reference out, or "
                "give a teacher with hint or system"
            )
        if schedule in ("none", "on_kl"):
            why = "the teacher is the reference" if schedule == "none" else "no KL to a reference is measured"
            raise ValueError(
                f"distill.reference.schedule={schedule} cannot be, because {why}; set it to frozen, every_round, "
                "every_n_steps or ema"
            )

    @property
    def has_reference(self) -> bool:
        """True if a teacher is an earlier version of the policy."""
        return any(t.is_policy for t in self.all_teachers.values())

    @property
    def all_teachers(self) -> dict[str, TeacherConfig]:
        """All teachers by their field in this section."""
        by_domain = {f"teachers.{domain}": teacher for domain, teacher in self.teachers.items()}
        return by_domain if self.teacher is None else {"teacher": self.teacher, **by_domain}

    @property
    def teacher_paths(self) -> list[str]:
        """Folders and hub ids of the teachers that have one."""
        return [t.path for t in self.all_teachers.values() if t.path is not None]

    def taken_from_stages(self) -> dict[str, tuple[str, str]]:
        """Return the stages whose policies are teachers."""
        return {f"{field}.stage": (t.stage, POLICY) for field, t in self.all_teachers.items() if t.stage is not None}

    def check(self, recipe: Recipe) -> None:
        """Raise ValueError for settings of the recipe that distillation cannot use."""
        _check_servers(self, recipe.rollout)
        _check_sampling(self, recipe.rollout)
        _check_backend(recipe.train, recipe.rollout)

    def explain(self, recipe: Recipe) -> str:
        """Return the divergence that is minimised."""
        return explain(self.objective(recipe.rollout.temperature))

    def objective(self, sampling_temperature: float) -> Objective:
        """Return the divergence that is minimised, for responses sampled at that temperature."""
        return Objective(
            self.divergence,
            self.over,
            0.5 if self.beta is None else self.beta,
            self.top_k or 0,
            sampling_temperature if self.temperature is None else self.temperature,
            self.discount,
        )


def _check_servers(distill: DistillConfig, rollout: RolloutConfig) -> None:
    """Raise ValueError for log-probs that a teacher's server cannot give."""
    for name in (name for name, teacher in distill.all_teachers.items() if teacher.url is not None):
        if distill.over == "vocabulary":
            raise ValueError(
                f"distill.{name}.url with distill.over=vocabulary: a server gives some tokens of each place; set over: "
                "top_k and top_k: 20 (or what its --max-logprobs allows), or over: sampled"
            )
        temperature = distill.objective(rollout.temperature).temperature
        if temperature != 1:
            raise ValueError(
                f"distill.{name}.url with a temperature of {temperature:g}: a server gives log-probs at temperature 1; "
                "set distill.temperature: 1"
                + (", and rollout.temperature: 1" if distill.over == "sampled" or distill.discount else "")
            )


def _check_sampling(distill: DistillConfig, rollout: RolloutConfig) -> None:
    """Raise ValueError if the gradient is estimated from samples of another distribution than it is for."""
    if distill.over != "sampled" and distill.discount == 0:
        return
    setting = "over=sampled" if distill.over == "sampled" else f"discount={distill.discount:g}"
    remedy = "or distill.over: vocabulary or top_k with distill.discount: 0"
    if distill.temperature not in (None, rollout.temperature):
        raise ValueError(
            f"distill.{setting} needs samples of the distribution that trains: distill.temperature="
            f"{distill.temperature:g} is not rollout.temperature={rollout.temperature:g}; leave it out, {remedy}"
        )
    if rollout.top_p < 1 or rollout.top_k > 0:
        raise ValueError(
            f"distill.{setting} needs samples of the whole distribution: rollout.top_p={rollout.top_p:g} and "
            f"rollout.top_k={rollout.top_k} cut it; set top_p: 1 and top_k: 0, {remedy}"
        )
    if rollout.publish_every > 1 or rollout.max_staleness > 0:
        option = "publish_every" if rollout.publish_every > 1 else "max_staleness"
        raise ValueError(
            f"distill.{setting} needs samples of the present policy, and "
            f"rollout.{option}={getattr(rollout, option)} trains "
            f"on older ones; leave it out, {remedy}"
        )


def _check_backend(train: TrainConfig, rollout: RolloutConfig) -> None:
    """Raise ValueError for training settings that distillation cannot use."""
    if train.sequence_parallel > 1:
        raise ValueError(
            f"train.sequence_parallel={train.sequence_parallel} divides each sequence, and distillation compares whole "
            "ones; set it to 1"
        )
    check_older_weights(rollout, train)
