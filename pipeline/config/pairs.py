"""Where pairs of better and worse responses come from: files, or responses sampled here and graded.

{file: pairs.jsonl}                                     rows {prompt, chosen, rejected}, or {prompt, completion, label}
{hub: {id: my/pairs}, mapping: {prompt: instruction}, limit: 1000}
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from pipeline.config.data import FILE_TYPES, Column, HubSource, VerifierChoice
from pipeline.config.sections import Section
from pipeline.config.stages import MODEL


class PairColumns(Section):
    """Which column is what. Prompt and sides may be texts or chats (lists of {role, content}).

    A side that is a chat ends with the assistant's answer; where it holds the whole conversation, no prompt column is
    needed. A row has both sides, or a completion with its label.
    """

    prompt: Column = Field(Column(column="prompt"), description="or question, where there is no such column")
    chosen: Column = Column(column="chosen")
    rejected: Column = Column(column="rejected")
    completion: Column = Field(Column(column="completion"), description="of a row with a label")
    label: Column = Field(Column(column="label"), description="true: a good completion, false: a bad one; also 1 and 0")
    answer: Column | None = Field(Column(column="answer"), description="the reference that a verifier holds sides to")
    verifier: Column | None = Column(column="verifier")
    id: Column | None = Field(Column(column="id"), description="where absent: the file's name and the row's number")
    system: Column | None = Column(column="system")
    domain: Column | None = Column(column="domain")


class PairSource(Section):
    """Pairs or labelled responses from one place: exactly one of `file` and `hub`."""

    file: str | None = Field(None, description="path of .jsonl, .json or .parquet, from the recipe's folder")
    hub: HubSource | None = None
    mapping: PairColumns = PairColumns()
    domain: str | None = Field(None, min_length=1, description="of all rows; overrides a column")
    verifier: VerifierChoice | None = Field(None, description="of all rows; overrides a column")
    shuffle: bool = Field(False, description="before the limit, by the run's seed")
    limit: int | None = Field(None, ge=1)
    on_bad_row: Literal["error", "skip"] = Field("error", description="skip: counted and reported")

    @model_validator(mode="after")
    def _one(self) -> PairSource:
        if (self.file is None) == (self.hub is None):
            raise ValueError("a source of pairs needs exactly one of file and hub")
        if self.file is not None and not self.file.lower().endswith(FILE_TYPES):
            raise ValueError(f"file must end in {', '.join(FILE_TYPES)}, got {self.file!r}")
        return self

    @property
    def label(self) -> str:
        """What messages and counts call this source."""
        return self.file if self.file is not None else f"{self.hub.id}:{self.hub.split}" if self.hub else ""

    @property
    def can_grade(self) -> bool:
        """Its rows may name a verifier and a reference."""
        return self.mapping.answer is not None and (self.verifier is not None or self.mapping.verifier is not None)


class PairingConfig(Section):
    """How graded responses to one prompt become pairs: a better one against a worse one."""

    choose: Literal["random", "hardest", "length_matched"] = Field(
        "random",
        description="hardest: the better ones that the policy is least sure of against the worse ones that it is most "
        "sure of (where an unlikely answer may be right by luck, that teaches luck); length_matched: those of most "
        "equal lengths",
    )
    per_prompt: int = Field(1, ge=1, description="pairs of one prompt at most")
    reuse: bool = Field(
        False,
        description="a response may be in several pairs, as where all answers of a prompt are compared (2203.02155)",
    )
    min_gap: float = Field(0.5, gt=0, description="between the rewards of a pair's sides, at least")
    max_length_ratio: float | None = Field(
        None, ge=1, description="between the lengths of a pair's sides, at most; null: any"
    )


RUBRIC = (
    "question: {question}\nanswer: {response}\nhow good is the answer, from 0 (wrong) to 5 (right and complete)? "
    "end with: score: <number>\n"
)


class JudgedConfig(Section):
    """How the policy itself judges responses, where `judge` is policy (self-rewarding, 2401.10020)."""

    rubric: str = Field(RUBRIC, description="what the policy is asked, with {question} and {response}")
    scale: float = Field(5.0, gt=0, description="the full score, worth a reward of 1")
    max_tokens: int = Field(64, ge=1, description="of the judgement, drawn greedily")

    @model_validator(mode="after")
    def _holds_both(self) -> JudgedConfig:
        missing = [m for m in ("{question}", "{response}") if m not in self.rubric]
        if missing:
            raise ValueError(f"judged.rubric must hold {missing[0]}, got {self.rubric!r:.80}")
        return self


Judge = Literal["policy"] | VerifierChoice | None
"""Who ranks responses: the policy, a verifier (e.g. judge or reward_model), or None: the prompts' own verifiers."""


def judges_stage(field: str, judge: Judge) -> dict[str, tuple[str, str]]:
    """field -> (stage, file), where the judge is the reward model of an earlier stage; see `taken_from_stages`."""
    stage = judge.stage if isinstance(judge, VerifierChoice) else None
    return {} if stage is None else {field: (stage, MODEL)}


class SampledPairsConfig(Section):
    """Pairs made here: the present policy answers training prompts, graders rank what it said."""

    prompts: int | None = Field(None, ge=1, description="answered in each part; null: all training prompts, shared out")
    samples: int = Field(8, ge=2, description="responses a prompt")
    judge: Judge = Field(
        None,
        description="policy, or a verifier that ranks instead of the prompts' own; a reward model of an earlier stage: "
        "{name: reward_model, params: {model: stage:NAME}}",
    )
    judged: JudgedConfig = JudgedConfig()
    pairing: PairingConfig = PairingConfig()
    every_part: bool = Field(
        False, description="sample anew for each part, from the policy of that time (iterative, self-rewarding)"
    )
