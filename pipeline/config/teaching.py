"""Stages of distillation, and the term of RL: teachers, and the divergence from them that is minimised.

Examples of teachers:

{path: models/teacher}                                   a folder, or a hub id (needs network)
{stage: rl}                                              the policy that an earlier stage of this run left
{url: "http://localhost:8000/v1", model: big}            a server with vLLM's prompt_logprobs
{hint: "{question} (The answer is {answer}.)"}           the policy itself, with a hint in its prompt
{feedback: {}}                                           the policy itself, with the verifier's message in its prompt
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from verizero.pipeline.config.rollout import RolloutConfig, check_older_weights
from verizero.pipeline.config.sample import RequestConfig
from verizero.pipeline.config.sections import ModelPath, OptimizerConfig, Section
from verizero.pipeline.config.stages import POLICY, Recipe, RoundsConfig
from verizero.pipeline.rl.divergences import Divergence, Objective, Over, StaleWeights, explain


class FeedbackConfig(Section):
    """The texts that the policy reads with the question, as the teacher of its own response (SDPO, 2601.20802).

    The teacher's question is `template` with its three names replaced. A part without text in a batch is empty: `right`
    where no other response of the group is right, `message` where the response itself is right or its grader failed.
    """

    template: str = Field(
        "{question}{right}{message}\n\nAnswer the question above.\n",
        description="the teacher's question, from {question} and the parts {right} and {message}",
    )
    right: str | None = Field(
        "\n\nA right response:\n{right}",
        description="part with the first right response of the group, other than the response itself; null: none",
    )
    message: str | None = Field(
        "\n\nA check of an earlier response found:\n{message}",
        description="part with the verifier's message on the response, if that is not right; null: none",
    )
    max_message_tokens: int = Field(256, ge=1, description="a message is cut after so many tokens, and counted")

    @model_validator(mode="after")
    def _fits(self) -> FeedbackConfig:
        if self.right is None and self.message is None:
            raise ValueError("feedback shows nothing: right and message are both null; give one of them")
        if "{question}" not in self.template:
            raise ValueError(f"template must hold {{question}}, got {self.template!r:.80}")
        for name, part in (("right", self.right), ("message", self.message)):
            if part is not None and f"{{{name}}}" not in part:
                raise ValueError(f"{name} must hold {{{name}}}, got {part!r:.80}")
            if (part is not None) != (f"{{{name}}}" in self.template):
                verb = "lacks" if part is not None else "holds"
                raise ValueError(f"template {verb} {{{name}}}, and {name} is {part!r:.80}; give both or neither")
        return self


class TeacherConfig(RequestConfig):
    """A teacher: exactly one of `path`, `stage`, `url`, and the policy itself with `hint`, `feedback` or `system`.

    The inherited fields are for `url`.
    """

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
    feedback: FeedbackConfig | None = Field(
        None,
        description="self-distillation: the policy, as `reference` schedules it, reads a right response of the group "
        "and the verifier's message with the question. Responses with neither do not train, and are counted",
    )
    system: str | None = Field(None, description="self-distillation: the policy reads this system message")

    @model_validator(mode="after")
    def _one(self) -> TeacherConfig:
        kinds = [n for n in ("path", "stage", "url") if getattr(self, n) is not None]
        if self.hint is not None and self.feedback is not None:
            raise ValueError("a teacher reads a hint or feedback, got both; drop one of them")
        kinds += ["hint, feedback or system"] if self.is_policy else []
        if len(kinds) != 1:
            raise ValueError(
                "a teacher needs exactly one of path, stage, url, and hint, feedback or system, got "
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
        return not (self.hint is None and self.feedback is None and self.system is None)

    @property
    def texts(self) -> list[str]:
        """The texts of the recipe that the teacher reads."""
        feedback = [] if self.feedback is None else [self.feedback.template, self.feedback.right, self.feedback.message]
        return [text for text in (self.hint, self.system, *feedback) if text is not None]

    def explain(self) -> str:
        """Return in words what teaches."""
        if not self.is_policy:
            place = f"{self.model} at a server" if self.url is not None else f"the policy of stage {self.stage}"
            return self.path or place
        system = "" if self.system is None else f" with the system message {self.system!r}"
        if self.feedback is None:
            return f"the policy as `reference` has it, which reads {self.hint or '{question}'!r}{system}"
        parts = [f"{n} = {x!r}" for n in ("right", "message") if (x := getattr(self.feedback, n)) is not None]
        return f"the policy as `reference` has it, which reads {self.feedback.template!r}{system}, {', '.join(parts)}"


class DistillationConfig(Section):
    """Teachers, and the divergence of the policy from them."""

    where: ClassVar[str] = "distill"
    """The section's name in a recipe."""

    teacher: TeacherConfig | None = Field(None, description="teacher of all domains that are not in `teachers`")
    teachers: dict[str, TeacherConfig] = Field({}, description="domain: its teacher")
    divergence: Divergence = Field("reverse_kl", description="KL(policy || teacher), or KL(teacher || policy)")
    over: Over = Field(
        "vocabulary",
        description="vocabulary: all tokens; top_k: the teacher's k most likely tokens, and all others as one; "
        "sampled: the sampled token alone (policy gradient with the advantage log q - log pi)",
    )
    top_k: int | None = Field(None, ge=1, description="top_k: number of tokens; servers give 20 by default")
    stale_weights: StaleWeights | None = Field(
        None,
        description="importance weights on responses of an older policy, of the sampled token, for over: sampled; "
        "null: none",
    )

    @model_validator(mode="after")
    def _objective_fits(self) -> DistillationConfig:
        where = self.where
        if not self.all_teachers:
            raise ValueError(
                f"give {where}.teacher, e.g. {{path: models/teacher}}, or {where}.teachers by domain, got none"
            )
        if (self.top_k is not None) != (self.over == "top_k"):
            verb = "needs" if self.top_k is None else "has no use for"
            raise ValueError(f"{where}.over={self.over} {verb} {where}.top_k")
        if self.over == "sampled" and self.divergence != "reverse_kl":
            raise ValueError(
                f"{where}.over=sampled with {where}.divergence={self.divergence}: samples of the policy measure "
                "the reverse KL alone; set divergence: reverse_kl, or over: vocabulary or top_k"
            )
        if self.stale_weights and self.over != "sampled":
            raise ValueError(
                f"{where}.stale_weights=token with {where}.over={self.over}: the divergence at a token does not "
                "depend on which token was sampled there, so weights of that token change nothing in the mean and add "
                "variance; leave stale_weights out, or set over: sampled"
            )
        return self

    @property
    def has_own_teacher(self) -> bool:
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
        """Return the stages whose policies are teachers, by field of this section."""
        return {f"{field}.stage": (t.stage, POLICY) for field, t in self.all_teachers.items() if t.stage is not None}

    def objective(self, temperature: float) -> Objective:
        """Return the divergence that is minimised, for responses sampled at that temperature."""
        return Objective(self.divergence, self.over, self.top_k or 0, temperature, self.stale_weights)

    def explain(self, recipe: Recipe, coef: float | None = None) -> str:
        """Return the divergence that is minimised, as a term with that coefficient if one is given, and teachers."""
        teachers = [f"{field:<13} {teacher.explain()}" for field, teacher in self.all_teachers.items()]
        return "\n".join([explain(self.objective(recipe.rollout.temperature), coef), *teachers])

    def check(self, recipe: Recipe) -> None:
        """Raise ValueError for settings of the recipe that distillation cannot use."""
        _check_servers(self, recipe.rollout)
        _check_sampling(self, recipe.rollout)
        check_older_weights(recipe.rollout, recipe.train)


class DistillTermConfig(DistillationConfig):
    """A term of distillation in each update of RL: the loss is the algorithm's, and `coef` times the divergence."""

    where: ClassVar[str] = "rl.distill"

    coef: float = Field(gt=0, description="weight of the mean divergence of a token in the loss")


def _check_servers(distill: DistillationConfig, rollout: RolloutConfig) -> None:
    """Raise ValueError for log-probs that a teacher's server cannot give."""
    where = distill.where
    for name in (name for name, teacher in distill.all_teachers.items() if teacher.url is not None):
        if distill.over == "vocabulary":
            raise ValueError(
                f"{where}.{name}.url with {where}.over=vocabulary: a server gives some tokens of each place; set "
                "over: top_k and top_k: 20 (or what its --max-logprobs allows), or over: sampled"
            )
        if rollout.temperature != 1:
            raise ValueError(
                f"{where}.{name}.url with rollout.temperature={rollout.temperature:g}: a server gives log-probs at "
                "temperature 1; set rollout.temperature: 1"
            )


def _check_sampling(distill: DistillationConfig, rollout: RolloutConfig) -> None:
    """Raise ValueError if the gradient is estimated from samples of another distribution than it is for."""
    if distill.over != "sampled":
        return
    where = distill.where
    remedy = f"or {where}.over: vocabulary or top_k"
    if rollout.top_p < 1 or rollout.top_k > 0:
        raise ValueError(
            f"{where}.over=sampled needs samples of the whole distribution: rollout.top_p={rollout.top_p:g} and "
            f"rollout.top_k={rollout.top_k} cut it; set top_p: 1 and top_k: 0, {remedy}"
        )
    if rollout.max_staleness > 0 and distill.stale_weights is None:
        raise ValueError(
            f"{where}.over=sampled needs samples of the present policy, and rollout.max_staleness="
            f"{rollout.max_staleness} trains on older ones; leave it out, set {where}.stale_weights: token, {remedy}"
        )


class DistillConfig(DistillationConfig, RoundsConfig):
    """Rounds in which the policy samples responses and learns each token from a teacher's distribution."""

    groups_differ: ClassVar[bool] = False

    optimizer: OptimizerConfig = OptimizerConfig()

    @model_validator(mode="after")
    def _fits(self) -> DistillConfig:
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
                "give a teacher with hint, feedback or system"
            )
        if schedule == "none":
            raise ValueError(
                "distill.reference.schedule=none cannot be, because the teacher is the reference; set it to frozen, "
                "every_round, every_n_steps or ema"
            )

    @property
    def has_reference(self) -> bool:
        """True if a teacher is an earlier version of the policy."""
        return self.has_own_teacher
