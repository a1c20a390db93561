"""The parts of a recipe that can be read on this machine: its data, tokenizer and sizes. No weights are loaded."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verizero.pipeline.checks import diagnosis  # noqa: F401  (fills CAUSES)
from verizero.pipeline.checks.finding import Evidence
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import ConfigError, DataError, boundary
from verizero.pipeline.models.named import is_hub_reached, is_offline, is_path
from verizero.pipeline.run.data import RunData, prepare_data
from verizero.pipeline.scoring.sandbox_setup import use_sandbox
from verizero.pipeline.types import Prompt

HUB_FAILS = "hub source"
"""Beginning of the errors of `read_hub`: there is no network, no package or no such data set."""
MOST_ROWS = 10_000
"""Rows that are read of a file or a data set of the hub: reading millions would take minutes."""


@dataclass(frozen=True)
class Model:
    """The parts of the recipe's model that are needed without its weights."""

    tokenizer: Any = None
    """None where it is not on this machine."""
    context: int | None = None
    """The longest sequence in tokens; None: unknown, or no limit."""
    stops: tuple[int, ...] = ()
    """Tokens at which generation stops, besides the tokenizer's own end token."""
    vocabulary: int | None = None
    """The number of tokens that the model has; None: unknown."""
    no_tokenizer: str = ""
    """The reason for which there is no tokenizer."""


@dataclass(frozen=True)
class LocalParts:
    """The parts of a recipe that this machine has."""

    config: RunConfig
    base_dir: Path
    model: Model
    train: list[Prompt] = field(default_factory=list)
    evaluation: list[Prompt] = field(default_factory=list)
    demonstrations: list[Prompt] = field(default_factory=list)
    pairs: dict[str, int] = field(default_factory=dict)
    """Stage that trains on pairs of files -> their number."""
    notes: tuple[str, ...] = ()
    """Sentences about rows that a run skips, drops or finds to overlap."""
    places: dict[int, str] = field(default_factory=dict)
    """Place of each prompt's row, as in "train.jsonl line 3", by the `id()` of the prompt."""
    absent: str = ""
    """The reason for which this machine does not have the data; empty if it has."""
    refused: str = ""
    """The reason for which a run refuses the data; empty if it does not."""

    @property
    def is_made_here(self) -> bool:
        """True if the recipe makes its model from nothing."""
        return self.config.model.create is not None

    @property
    def why_none(self) -> str:
        """The reason for which there are no rows."""
        return "first correct what the check data found" if self.refused else self.absent or "the recipe names no rows"

    def evidence(self, prompt: Prompt, text: str) -> Evidence:
        """Return the row that a prompt was made of, as evidence."""
        return evidence_at(self.places[id(prompt)], text)


def evidence_at(place: str, text: str) -> Evidence:
    """Return a row, named as in "train.jsonl line 3", as evidence."""
    label, _, number = place.rsplit(" ", 2)  # a label may have spaces of its own
    return Evidence(label, int(number), text)


def read_local_parts(config: RunConfig, base_dir: Path) -> LocalParts:
    """Return what this machine has of the recipe, its data prepared as in a run. Raises: ConfigError as a run."""
    asks_hub = any(s.hub is not None for s in config.data.sources) and "HF_HUB_OFFLINE" not in os.environ
    if asks_hub and not is_hub_reached():
        # The libraries of the hub would try again for half a minute, for each model and each data set.
        os.environ["HF_HUB_OFFLINE"] = "1"
    from verizero.pipeline.models.load import quiet

    quiet()
    use_sandbox(config.sandbox)
    model = _model(config)
    places: dict[int, str] = {}
    refused = ""
    try:
        data = _prepared(config, base_dir, model, places)
    except (DataError, ConfigError) as exc:
        refused = str(exc)
        try:  # rows whose prompts are too long, or cannot be written, can be read all the same
            data = _prepared(config, base_dir, Model(), places)
        except (DataError, ConfigError):
            if not refused.startswith(HUB_FAILS):
                return LocalParts(config, base_dir, model, refused=refused)
            # A hub that is out of reach is no fault of the recipe.
            name = refused.split(" needs ")[0].split(" cannot ")[0]
            return LocalParts(config, base_dir, model, absent=_not_here(name, exc))
    pairs = {stage: len(read.pairs) for stage, read in data.pairs.items()}
    rows = (data.train, data.evaluation, data.demonstrations)
    return LocalParts(config, base_dir, model, *rows, pairs, data.notes, places, refused=refused)


def _prepared(config: RunConfig, base_dir: Path, model: Model, places: dict[int, str]) -> RunData:
    """Return the data as a run prepares it, at most `MOST_ROWS` prompts a source. Raises: DataError, ConfigError."""
    config, tokenizer = with_fewer_rows(config), model.tokenizer
    if tokenizer is None:
        # Rows are read all the same, and not measured: a template is only needed for their tokens.
        from verizero.pipeline.config.template import Template
        from verizero.pipeline.data.tokenizer import character_tokenizer

        tokenizer = character_tokenizer()
        parts = {"template": Template(name="plain"), "max_prompt_tokens": None}
        config = config.model_copy(update={"data": config.data.model_copy(update=parts)})
    with tempfile.TemporaryDirectory() as folder:
        return prepare_data(config, tokenizer, model.context, base_dir, Path(folder), places)


def with_fewer_rows(config: RunConfig) -> RunConfig:
    """Return the recipe with at most `MOST_ROWS` prompts of each source."""
    data = config.data
    parts = {
        name: tuple(
            s.model_copy(update={"limit": MOST_ROWS, "shuffle": False})
            if s.generator is None and (s.limit is None or s.limit > MOST_ROWS)
            else s
            for s in getattr(data, name)
        )
        for name in ("train", "evaluation", "demonstrations")
    }
    return config.model_copy(update={"data": data.model_copy(update=parts)})


def _model(config: RunConfig) -> Model:
    """Return the tokenizer and sizes of the recipe's model, or why they are not here. Raises: ConfigError."""
    from verizero.pipeline.models.complete import check_weights
    from verizero.pipeline.models.gguf_file import PACKAGE
    from verizero.pipeline.models.load import NoEndToken
    from verizero.pipeline.run.build import build_tokenizer, context_of, first_model_path

    try:
        tokenizer = build_tokenizer(config)
        with boundary(ConfigError, f"the configuration of model.path {config.model.path!r} does not load"):
            context = context_of(config)
            stops, vocabulary = _sizes(config)
    except ConfigError as exc:
        if str(config.model.path).startswith(PACKAGE):  # the package of the model may not be installed
            return Model(no_tokenizer=str(exc))
        if config.model.create is not None or is_local(config) or isinstance(exc, NoEndToken):
            raise
        # A model of the hub that is neither on this machine nor to be had.
        return Model(no_tokenizer=_not_here(str(config.model.path), exc))
    # The check of end tokens names a tokenizer that is another model's; such a model may not be made at all.
    if config.model.path is not None and (vocabulary is None or tokenizer.eos_token_id < vocabulary):
        check_weights(first_model_path(config), config.model.revision, numbers=True)
    return Model(tokenizer, context, stops, vocabulary)


def is_local(config: RunConfig) -> bool:
    """True if the recipe's model is a folder or file of this machine."""
    return config.model.path is not None and is_path(config.model.path)


def _sizes(config: RunConfig) -> tuple[tuple[int, ...], int | None]:
    """Return the stop tokens of the model's generation config, and the number of tokens that the model has."""
    import transformers

    from verizero.pipeline.run.build import first_model_path

    if config.model.create is not None:
        return (), None
    start, revision = first_model_path(config), config.model.revision
    settings = transformers.AutoConfig.from_pretrained(start, revision=revision)
    try:
        generation = transformers.GenerationConfig.from_pretrained(start, revision=revision)
    except OSError:  # a model without such a file generates as its configuration says
        generation = transformers.GenerationConfig.from_model_config(settings)
    ends = generation.eos_token_id
    stops = () if ends is None else (ends,) if isinstance(ends, int) else tuple(ends)
    return tuple(map(int, stops)), getattr(settings, "vocab_size", None)


def _not_here(name: str, exc: Exception) -> str:
    """Return a line about a model or rows of the hub that could not be had."""
    if is_offline():
        return f"{name} is not on this machine, and the hub is not asked (no network, or HF_HUB_OFFLINE is set)"
    text = str(exc).split("\n")[0]
    return f"{name} could not be had: {text if len(text) <= 160 else f'{text[:157]}...'}"
