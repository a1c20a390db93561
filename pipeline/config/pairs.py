"""Stages that learn from pairs of a better and a worse response, which come from files or are sampled by the stage.

The code about preferences, from the recipe to the update:

    config/pairs.py, config/reward_model.py                         sources and pairing; the stages' sections
    data/pairs.py                                                   pairs from files, and from groups of responses
    stages/_pairs.py                                                a stage's pairs in tokens, kept in its folder
    stages/{preference, online_preference, reward_model}.py         the stages
    preferences/                                                    the losses, one a file
    train/preference.py                                             the update

Examples of sources:

{file: pairs.jsonl}                                     rows {prompt, chosen, rejected}, or {prompt, completion, label}
{hub: {id: my/pairs}, mapping: {prompt: instruction}, limit: 1000}
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from verizero.pipeline.config.choices import VerifierChoice
from verizero.pipeline.config.data import FILE_TYPES, Column, RowSource, check_ending, label_of
from verizero.pipeline.config.rates import Learns
from verizero.pipeline.config.sections import OptimizerConfig, Section
from verizero.pipeline.config.stages import MODEL, Recipe, RoundsConfig, StageSection, check_one_length
from verizero.pipeline.preferences.base import PreferenceParams, explain_preference, load_preference
from verizero.pipeline.rl.parts import Part, Parts, PolicyParams


class PairColumns(Section):
    """The column of each field of a pair. Prompt and sides may be texts or chats (lists of {role, content}).

    A side that is a chat ends with the assistant's answer; where it holds the whole conversation, or is one as a text
    of HH-RLHF, no prompt column is needed. A row has both sides, or a completion with its label, or the labelled steps
    of one response.
    """

    prompt: Column = Field(Column(column="prompt"), description="if the rows have no such column: question")
    context: tuple[Column, ...] = Field((), description="columns whose text is added after the prompt, where not empty")
    chosen: Column = Column(column="chosen")
    rejected: Column = Column(column="rejected")
    completion: Column = Field(Column(column="completion"), description="the response of a row with a label")
    label: Column = Field(Column(column="label"), description="true or 1: a good completion; false or 0: a bad one")
    steps: Column = Field(Column(column="completions"), description="the steps of a response: a list of texts")
    step_labels: Column = Field(
        Column(column="labels"), description="a label for each step: true or false, 1 or 0, + or -; null: none"
    )
    answer: Column | None = Field(
        Column(column="answer"), description="the reference that a verifier compares sides to"
    )
    verifier: Column | None = Column(column="verifier")
    id: Column | None = Field(Column(column="id"), description="if absent: the file's name and the row's number")
    system: Column | None = Column(column="system")
    domain: Column | None = Column(column="domain")


class PairSource(RowSource):
    """A source of pairs, labelled responses or labelled steps: exactly one of `file` and `hub`."""

    mapping: PairColumns = PairColumns()
    step_separator: str = Field(
        "\n", description="the text between the steps of a list, in the response that they make"
    )

    @model_validator(mode="after")
    def _one(self) -> PairSource:
        if (self.file is None) == (self.hub is None):
            raise ValueError("a source of pairs needs exactly one of file and hub")
        check_ending(self.file, FILE_TYPES)
        return self

    @property
    def label(self) -> str:
        """The source's name in messages and counts."""
        return label_of(self.file, self.hub)


class PairingConfig(Section):
    """Rules for making pairs of a better and a worse response from the graded responses to a prompt."""

    per_prompt: int = Field(1, ge=1, description="most pairs of one prompt")
    reuse: bool = Field(
        False, description="a response may be in several pairs (2203.02155 compares all answers of a prompt)"
    )
    min_gap: float = Field(0.5, gt=0, description="least difference between the rewards of a pair's sides")


RUBRIC = (
    "question: {question}\nanswer: {response}\nhow good is the answer, from 0 (wrong) to 5 (right and complete)? "
    "end with: score: <number>\n"
)


class JudgedConfig(Section):
    """For `judge: policy`: the policy grades its own responses (self-rewarding, 2401.10020)."""

    rubric: str = Field(RUBRIC, description="the question to the policy; contains {question} and {response}")
    scale: float = Field(5.0, gt=0, description="the highest score, which gives a reward of 1")
    max_tokens: int = Field(64, ge=1, description="most tokens of the judgement, which is sampled greedily")

    @model_validator(mode="after")
    def _holds_both(self) -> JudgedConfig:
        missing = [m for m in ("{question}", "{response}") if m not in self.rubric]
        if missing:
            raise ValueError(f"judged.rubric must hold {missing[0]}, got {self.rubric!r:.80}")
        return self


Judge = Literal["policy"] | VerifierChoice | None
"""Grades responses: the policy, a verifier (e.g. a reward model), or None for the prompts' own verifiers."""


JUDGE = (
    "policy, or a verifier that ranks instead of the prompts' own; a reward model of an earlier stage: {name: "
    "reward_model, params: {model: stage:NAME}}"
)


def judges_stage(field: str, judge: Judge) -> dict[str, tuple[str, str]]:
    """Return field -> (stage, file) if the judge is the reward model of an earlier stage; see `taken_from_stages`."""
    stage = judge.stage if isinstance(judge, VerifierChoice) else None
    return {} if stage is None else {field: (stage, MODEL)}


class SampledPairsConfig(Section):
    """Settings for pairs that the stage makes: the policy answers training prompts, and graders rank the answers."""

    prompts: int | None = Field(
        None, ge=1, description="prompts answered in each part; null: all training prompts, divided among the parts"
    )
    samples: int = Field(8, ge=2, description="responses a prompt")
    judge: Judge = Field(None, description=JUDGE)
    judged: JudgedConfig = JudgedConfig()
    pairing: PairingConfig = PairingConfig()
    every_part: bool = Field(
        False, description="sample again for each part, from the current policy (iterative, self-rewarding)"
    )


class PairStage(StageSection):
    """Base of stages that train on pairs, from files or sampled by the stage."""

    where: ClassVar[str]
    """The section's name in a recipe."""
    reads: ClassVar[frozenset[str]] = frozenset({"prompts", "pairs", "rollout", "scoring", "sandbox"})

    pairs: tuple[PairSource, ...] = Field(
        (), description="sources of pairs; empty: the stage samples and grades responses, see `sampled`"
    )
    on_wrong_chosen: Literal["keep", "drop"] = Field(
        "keep", description="of a pair of a file whose chosen side its verifier calls wrong; always counted"
    )
    sampled: SampledPairsConfig = SampledPairsConfig()
    steps: int | None = Field(None, ge=1, description="optimiser steps of each part; exactly one of steps and epochs")
    epochs: float | None = Field(None, gt=0, description="passes over the pairs of each part")
    batch_size: int = Field(32, ge=1, description="pairs a step")

    @model_validator(mode="after")
    def _pairs_fit(self) -> Self:
        check_one_length(self.where, self.steps, self.epochs)
        field = f"{self.where}.on_wrong_chosen={self.on_wrong_chosen}"
        if self.on_wrong_chosen != "keep" and not self.pairs:
            raise ValueError(f"{field} is about pairs of files, and there are none; set it to keep")
        for source in self.pairs if self.on_wrong_chosen != "keep" else ():
            if source.mapping.answer is None or (source.verifier is None and source.mapping.verifier is None):
                raise ValueError(
                    f"{field} needs a verifier for {source.label}; set its verifier and mapping.answer, or "
                    "on_wrong_chosen: keep"
                )
        return self

    @property
    def answers_prompts(self) -> bool:
        """True unless the pairs are given."""
        return not self.pairs

    def taken_from_stages(self) -> dict[str, tuple[str, str]]:
        """Return the stage whose reward model ranks the samples."""
        return judges_stage("sampled.judge", self.sampled.judge)


class PreferenceConfig(PairStage):
    """Training on pairs or labelled responses, from files or sampled by the stage."""

    where: ClassVar[str] = "preference"
    learns: ClassVar[Learns] = "preferences"
    in_rounds: ClassVar[bool] = True
    learns_from_responses: ClassVar[bool] = True

    loss: dict[str, Any] = Field(description="{name: dpo, …}: a loss of pipeline/preferences and its parameters")
    parts: int = Field(
        1, ge=1, description="divide the pairs into so many parts; the reference is refreshed after each (sDPO)"
    )
    optimizer: OptimizerConfig = OptimizerConfig()

    @model_validator(mode="after")
    def _fits(self) -> PreferenceConfig:
        params = check_loss("preference", self.loss)
        if self.parts > 1 and not params.needs_reference and not self.sampled.every_part:
            raise ValueError(
                f"preference.parts={self.parts} refreshes the reference after each part, and loss "
                f"{self.loss['name']!r} has none; set parts: 1, use dpo, or sample again with sampled.every_part: true"
            )
        if self.pairs and self.sampled.every_part:
            raise ValueError("preference.sampled.every_part samples again, and pairs names files; drop one of them")
        return self

    def explain(self, recipe: Recipe) -> str:
        """Return the loss that is minimised."""
        return explain_loss(self.loss)

    def steps_of_items(self) -> list[int]:
        """Return the steps of each part; 0 if they follow from the pairs, which are not known yet."""
        return [self.steps or 0] * self.parts


class OnlinePreferenceConfig(RoundsConfig):
    """Rounds in which a group is sampled and ranked, and the policy learns to prefer its best to its worst."""

    learns: ClassVar[Learns] = "preferences"

    loss: dict[str, Any] = Field(description="{name: dpo, …}: a loss of pipeline/preferences and its parameters")
    pairing: PairingConfig = PairingConfig()
    judge: Judge = Field(None, description=JUDGE)
    judged: JudgedConfig = JudgedConfig()

    @model_validator(mode="after")
    def _fits(self) -> OnlinePreferenceConfig:
        params = check_loss("online_preference", self.loss)
        if self.group_size < 2:
            raise ValueError(f"group_size must be >= 2 to form a pair, got {self.group_size}")
        if self.reference is not None and (self.reference.schedule == "none") == params.needs_reference:
            need = "needs a reference" if params.needs_reference else "has no reference"
            raise ValueError(
                f"online_preference.reference.schedule={self.reference.schedule}, and loss {self.loss['name']!r} "
                f"{need}; leave reference out, or change the loss"
            )
        return self

    def taken_from_stages(self) -> dict[str, tuple[str, str]]:
        """Return the stage whose reward model ranks."""
        return judges_stage("judge", self.judge)

    def explain(self, recipe: Recipe) -> str:
        """Return the loss that is minimised."""
        return explain_loss(self.loss)

    @property
    def has_reference(self) -> bool:
        """True if the loss compares the policy to a reference."""
        return check_loss("online_preference", self.loss).needs_reference


def check_loss(section: str, loss: dict[str, Any]) -> PreferenceParams:
    """Return the parameters of the loss. Raises: ValueError, ConfigError, UnknownName."""
    params = dict(loss)
    name = params.pop("name", None)
    if not isinstance(name, str):
        raise ValueError(f"{section}.loss needs a name, e.g. {{name: dpo}}, got {loss!r}")
    return load_preference(name, params)[0]


def explain_loss(loss: dict[str, Any]) -> str:
    """Return the page of a loss that was checked."""
    params = dict(loss)
    return explain_preference(params.pop("name"), params)


def loop_parts(groups_differ: bool = True) -> Parts:
    """Return parts for the loop of rounds, for stages without an algorithm: no critic, and which groups train."""
    return Parts(
        advantage=Part("group_mean"),
        ratio="none",
        surrogate=Part("reinforce"),
        aggregate="token_mean",
        params=PolicyParams(dynamic_sampling=groups_differ),
    )
