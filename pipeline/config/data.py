"""The `data` section of a recipe: sources of prompts, how their columns are read, the template, the order of prompts.

Examples of sources:

    {generator: {name: arithmetic, params: {digits: 2}, split: train}}
    {file: train.jsonl, mapping: gsm8k, limit: 1000, shuffle: true}
    {hub: {id: openai/gsm8k, config: main, split: train}, mapping: gsm8k}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator, model_serializer, model_validator

from verizero.pipeline import registry
from verizero.pipeline.config.choices import ENVIRONMENT, REWARDS, EnvironmentChoice, VerifierChoice
from verizero.pipeline.config.sections import Section
from verizero.pipeline.config.suite_files import with_suites
from verizero.pipeline.config.template import Template
from verizero.pipeline.config.yaml_reader import read_mapping
from verizero.pipeline.environments.base import validated
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.near import did_you_mean


class Column(Section):
    """Instructions for reading a value from a row: a column, then the steps below, in this order.

    Or several columns that become one object, as a reference with tests and a function's name is.
    """

    column: str = Field("", description="name of the column; a.b.0 steps into objects and lists")
    columns: dict[str, Column] = Field(
        default_factory=dict,
        description="several columns as one object, by key, or a list of their names; absent ones are left out",
    )
    then: tuple[str, ...] = Field((), description="columns whose texts are added directly behind the column's own text")
    parse: Literal["json"] | None = Field(None, description="json: the text is JSON, which a key steps into")
    key: str | None = Field(None, description="path such as a.b.0 within the parsed value")
    after: str | None = Field(None, min_length=1, description="keep only the text after the last occurrence of this")
    before: str | None = Field(None, min_length=1, description="keep only the text before the first occurrence of this")
    boxed: bool = Field(False, description=r"keep only the content of the last \boxed{...}")
    replace: tuple[tuple[str, str], ...] = Field(
        (), description="pairs [regular expression, replacement], applied in order"
    )

    @model_validator(mode="before")
    @classmethod
    def _from_names(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"column": value}
        if isinstance(value, list):
            value = {"columns": value}
        if isinstance(value, Mapping) and isinstance(value.get("columns"), list):
            return {**value, "columns": {str(name): name for name in value["columns"]}}
        return value

    @model_serializer
    def _brief(self) -> Any:
        fields = {name: value for name in type(self).model_fields if (value := getattr(self, name))}
        return fields["column"] if list(fields) == ["column"] else fields

    @field_validator("replace")
    @classmethod
    def _compiles(cls, value: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        for pattern, _ in value:
            try:
                re.compile(pattern)
            except re.error as exc:
                raise ValueError(f"{pattern!r} is no regular expression: {exc}") from exc
        return value

    @model_validator(mode="after")
    def _one_or_several(self) -> Column:
        if bool(self.column) == bool(self.columns):
            raise ValueError("give either column, the name of one, or columns, the names of several")
        if self.columns and (steps := [name for name in self.model_fields_set - {"columns"} if getattr(self, name)]):
            raise ValueError(
                f"{', '.join(sorted(steps))} applies to one column, and is given for several; move it to its column: "
                f"columns: {{KEY: {{column: NAME, {sorted(steps)[0]}: …}}}}"
            )
        if any(each.columns for each in self.columns.values()):
            raise ValueError("columns within columns cannot be; give each of them as one column")
        return self


MAPPINGS = Path(__file__).resolve().parents[2] / "configs" / "data"
"""Shipped layouts, one YAML file each: a column mapping, and under RECOGNISE the columns by which it is guessed."""
RECOGNISE = "recognise"

FILE_TYPES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")


class ColumnMapping(Section):
    """The column of each field of a prompt. The defaults are the format of the built-in generators.

    A question may be a text or a chat (a list of {role, content}: a system message, if any, then the user's). The
    columns of `optional` may be absent or empty in a row; question and answer may not.
    """

    question: Column = Column(column="question")
    context: tuple[Column, ...] = Field(
        (), description="columns whose text is added after the question, where not empty"
    )
    answer: Column | None = Field(
        Column(column="answer"),
        description="the reference that a verifier compares a response to; null: none, for reward functions that ask "
        "for none",
    )
    id: Column | None = Field(Column(column="id"), description="if absent: the file's name and the row's number")
    demonstration: Column | None = Column(column="demonstration")
    conversation: Column | None = Field(
        None, description="instead of question and demonstration: a conversation, OpenAI's messages or ShareGPT's turns"
    )
    tools: Column | None = Field(
        None,
        description="the tools that a demonstration may call: OpenAI's list, or JSON of it; shown by chat templates",
    )
    wrong_answers: tuple[Column, ...] = Field(
        (),
        description="columns of wrong answers: the message shows them with the right one, each after a letter, in an "
        "order by a hash of their texts, and the reference is the letter, for the verifier choice",
    )
    asked: Column | None = Field(
        Column(column="asked"), description="the user's message, where it is more than the question"
    )
    system: Column | None = Column(column="system")
    domain: Column | None = Column(column="domain")
    verifier: Column | None = Column(column="verifier")
    environment: Column | None = Column(column="environment")
    default_verifier: str | None = Field(
        None, description="verifier of rows that name none, if the source names none either"
    )


class GeneratorSource(Section):
    """Rows that a generator makes when the data is loaded."""

    name: str
    params: dict[str, Any] = Field(default_factory=dict, validate_default=True)
    split: Literal["train", "evaluation", "demonstrations"] = "train"

    @field_validator("params")
    @classmethod
    def _known(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        name = info.data.get("name")
        return validated_params(name, value).model_dump(mode="json") if isinstance(name, str) else value


class HubSource(Section):
    """Rows of a data set on the hub, or of a local folder in its format (works offline)."""

    id: str = Field(min_length=1)
    config: str | None = None
    split: str = "train"
    revision: str | None = Field(None, description="a commit or tag; set it to always get the same rows")


class RowSource(Section):
    """Base of sources of rows."""

    file: str | None = Field(
        None,
        description="path of .jsonl, .json, .csv, .tsv or .parquet, also packed as .gz, from the recipe's folder; with "
        "* the path of several, in order of their names",
    )
    hub: HubSource | None = None
    domain: str | None = Field(None, min_length=1, description="for all rows, instead of a column")
    verifier: VerifierChoice | None = Field(None, description="for all rows, instead of a column")
    shuffle: bool = Field(False, description="shuffle rows by the run's seed, before the limit")
    limit: int | None = Field(None, ge=1)
    on_bad_row: Literal["error", "skip"] = Field(
        "error", description="skip: bad rows are left out, counted and reported"
    )


class Source(RowSource):
    """A source of prompts: exactly one of `generator`, `file` and `hub`."""

    generator: GeneratorSource | None = None
    mapping: ColumnMapping = Field(ColumnMapping(), description="name of a shipped mapping, or columns")
    name: str | None = Field(
        None, min_length=1, description="of the source in counts and in ids of rows without one; null: its path"
    )
    graded: bool = Field(
        True, description="false: rows that are only imitated, by sft; they have no verifier and need no answer"
    )
    environment: EnvironmentChoice | None = Field(
        None, description="answers the policy's turns, for all rows, instead of a column"
    )
    prompt: str | None = Field(
        None, description="the user's message around each question, which it holds as {question}; null: it alone"
    )
    part: Literal["train", "evaluation"] | None = Field(
        None, description="of one file for both: a tenth of the questions, by a hash of each, is for evaluation"
    )
    on_duplicate_id: Literal["error", "skip"] = Field(
        "error", description="skip: later rows with the id are left out and counted"
    )

    @field_validator("mapping", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return shipped_mapping(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one(self) -> Source:
        kinds = [n for n in ("generator", "file", "hub") if getattr(self, n) is not None]
        if len(kinds) != 1:
            raise ValueError(
                f"a source needs exactly one of generator, file and hub, got {' and '.join(kinds) or 'none'}"
            )
        check_ending(self.file, FILE_TYPES)
        if not self.graded and self.verifier is not None:
            raise ValueError(f"graded: false has no verifier, got {self.verifier.key!r}; drop one of them")
        if self.graded and self.mapping.answer is None and not self._needs_no_answer:
            named = "the verifiers of rows compare" if self.verifier is None else f"{self.verifier.key!r} compares"
            raise ValueError(
                f"mapping.answer is null, and {named} responses to an answer; map one, name a reward function "
                "(verifier: {path: file.py:function}), or set graded: false for rows that are only imitated"
            )
        if self.prompt is not None and "{question}" not in self.prompt:
            raise ValueError(f"prompt must hold {{question}}, got {self.prompt!r:.80}")
        return self

    @property
    def _needs_no_answer(self) -> bool:
        choice = self.verifier
        return choice is not None and (choice.path is not None or choice.name in (REWARDS, ENVIRONMENT))

    @property
    def label(self) -> str:
        """The source's name in counts and ids."""
        if self.name is not None:
            return self.name
        if self.generator is not None:
            return f"{self.generator.name}:{self.generator.split}"
        return label_of(self.file, self.hub)


class SamplingConfig(Section):
    """Order in which prompts are sampled."""

    order: Literal["shuffle", "sequential"] = Field(
        "shuffle", description="order within an epoch, in which each prompt comes once"
    )
    weights: dict[str, float] | None = Field(
        None, description="share of each domain in the draws; null: in proportion to its rows"
    )

    @field_validator("weights")
    @classmethod
    def _positive(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        if value is not None and (not value or any(w < 0 for w in value.values()) or sum(value.values()) <= 0):
            raise ValueError(f"sampling.weights must be >= 0 and not all zero, got {value}")
        return value


class DataConfig(Section):
    """The prompts of a run."""

    train: tuple[Source, ...] = Field((), description="may be empty where no stage needs prompts")
    evaluation: tuple[Source, ...] = Field((), description="sources, or names of suites (docs/suites.md)")
    demonstrations: tuple[Source, ...] = Field(
        (), description="for SFT; empty: the demonstrations of the training sources"
    )
    template: Template = Template()
    max_prompt_tokens: int | None = Field(
        None, ge=1, description="null: what the model's context leaves besides the response"
    )
    on_long_prompt: Literal["error", "drop"] = Field(
        "error", description="drop: long prompts are left out, counted and reported"
    )
    sampling: SamplingConfig = SamplingConfig()
    on_overlap: Literal["error", "drop", "report"] = Field(
        "error",
        description="evaluation prompts that occur in training; drop: those of training are removed; report: they are "
        "only counted",
    )

    @field_validator("evaluation", mode="before")
    @classmethod
    def _suites(cls, value: Any, info: ValidationInfo) -> Any:
        return with_suites(value, (info.context or {}).get("base") or Path.cwd())

    @model_validator(mode="after")
    def _graded(self) -> DataConfig:
        if (ungraded := next((s for s in self.evaluation if not s.graded), None)) is not None:
            raise ValueError(
                f"data.evaluation: {ungraded.label} has graded: false, and an evaluation grades responses; give it a "
                "verifier, or drop the source"
            )
        return self

    @property
    def sources(self) -> tuple[Source, ...]:
        """All sources of prompts."""
        return (*self.train, *self.evaluation, *self.demonstrations)

    @property
    def verifiers(self) -> dict[str, VerifierChoice]:
        """Verifiers that sources choose, by `Prompt.verifier`. Any other key is the name of a verifier."""
        return {s.verifier.key: s.verifier for s in self.sources if s.verifier is not None}

    @property
    def environments(self) -> dict[str, EnvironmentChoice]:
        """Environments that sources choose, by `Prompt.environment`. Any other key is the name of an environment."""
        return {s.environment.key: s.environment for s in self.sources if s.environment is not None}


def check_ending(file: str | None, endings: tuple[str, ...]) -> None:
    """Raise ValueError if the file's type is not among `endings`, packed by gzip or not."""
    if file is not None and ending_of(file) not in endings:
        raise ValueError(f"file must end in {', '.join(endings)}, or one of those and .gz, got {file!r}")


def ending_of(file: str) -> str:
    """Return the ending of a file's name, in small letters and without .gz."""
    return Path(file.lower().removesuffix(".gz")).suffix


def label_of(file: str | None, hub: HubSource | None) -> str:
    """Return the name of a source in messages and counts."""
    return file if file is not None else f"{hub.id}:{hub.split}" if hub else ""


def shipped_mapping(name: str) -> dict[str, Any]:
    """Return the fields of a shipped mapping. Raises: ConfigError with near names."""
    known = sorted(p.stem for p in MAPPINGS.glob("*.yaml"))
    if name not in known:
        hint = did_you_mean(name, known, f"shipped: {', '.join(known)}.")
        raise ConfigError(f"no mapping is called {name!r}; {hint} Or give columns: mapping: {{question: …, answer: …}}")
    return {key: value for key, value in read_mapping(MAPPINGS / f"{name}.yaml").items() if key != RECOGNISE}


def recognised_layouts() -> dict[str, tuple[list[str], dict[str, Any]]]:
    """Return name -> (the columns by which it is recognised, the fields of its mapping) of layouts that have some.

    Raises: ConfigError if such a layout names no question or no verifier.
    """
    known = {}
    for path in sorted(MAPPINGS.glob("*.yaml")):
        columns = read_mapping(path).get(RECOGNISE)
        if columns is None:
            continue
        fields = shipped_mapping(path.stem)
        lacking = [field for field in ("question", "default_verifier") if not fields.get(field)]
        if lacking:
            raise ConfigError(
                f"{path} says {RECOGNISE}, and not {' and '.join(lacking)}: add what rows like these have"
            )
        known[path.stem] = (columns, fields)
    return known


def validated_params(name: str, params: Mapping[str, Any]) -> BaseModel:
    """Return the checked parameters of a generator. Raises: UnknownName; ConfigError naming the parameter."""
    generator = registry.find("generators", name)
    model = getattr(generator, "Params", None)
    if not (isinstance(model, type) and issubclass(model, BaseModel) and callable(getattr(generator, "rows", None))):
        raise ConfigError(f"generator {name!r} lacks a Params class or a rows(params, seed) function")
    return validated(model, params, None, f"generator {name!r}")
