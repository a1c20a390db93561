"""The parts of a recipe that can be read on this machine: its rows, tokenizer and sizes. No weights are loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verizero.pipeline.config.data import Source
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.data.prompts import read_demonstrations, read_prompts
from verizero.pipeline.errors import ConfigError, DataError, boundary
from verizero.pipeline.models.named import is_hub_reached, is_offline, is_path
from verizero.pipeline.scoring.sandbox_setup import use_sandbox
from verizero.pipeline.types import Prompt

HUB_FAILS = "hub source"
"""Beginning of the errors of `read_hub`: there is no network, no package or no such data set."""
MOST_ROWS = 10_000
"""Rows that are read of a file or a data set of the hub: reading millions would take minutes."""


@dataclass(frozen=True)
class Rows:
    """The prompts of some sources, and the reasons for which other sources could not be read."""

    prompts: list[Prompt] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    """Id of a prompt -> place of its row."""
    absent: dict[str, str] = field(default_factory=dict)
    """Label of a source -> reason for which this machine does not have it."""
    refused: dict[str, str] = field(default_factory=dict)
    """Label of a source -> reason for which a run refuses it."""

    @property
    def why_none(self) -> str:
        """The first reason for which there are no rows."""
        if self.refused:
            return f"first mend {next(iter(self.refused))}, which the check data found"
        return next(iter(self.absent.values()), "the recipe names no rows")

    def miss(self, label: str, exc: DataError) -> None:
        """Keep the reason for which a source has no rows: a hub that is out of reach is no fault of the recipe."""
        if str(exc).startswith(HUB_FAILS):
            self.absent[label] = _not_here(label, exc)
        else:
            self.refused[label] = str(exc)


@dataclass(frozen=True)
class LocalParts:
    """The parts of a recipe that this machine has."""

    config: RunConfig
    base_dir: Path
    train: Rows
    evaluation: Rows
    demonstrations: Rows
    tokenizer: Any
    """None where it is not on this machine."""
    context: int | None
    """The model's longest sequence in tokens; None: unknown, or no limit."""
    stops: tuple[int, ...]
    """Tokens at which generation stops, besides the tokenizer's own end token."""
    vocabulary: int | None
    """The number of tokens that the model has; None: unknown."""
    no_tokenizer: str = ""
    """The reason for which there is no tokenizer."""
    lacks_end: bool = False
    """True if there is no tokenizer because the model's own has no end token."""

    @property
    def is_made_here(self) -> bool:
        """True if the recipe makes its model from nothing."""
        return self.config.model.create is not None


def read_local_parts(config: RunConfig, base_dir: Path) -> LocalParts:
    """Return what this machine has of the recipe.

    Raises: ConfigError for a model that a run would refuse too.
    """
    if any(s.hub is not None for s in config.data.sources):
        stay_offline_without_network()
    from verizero.pipeline.models.load import quiet

    quiet()
    data, seed = config.data, config.seed
    use_sandbox(config.sandbox)
    train, evaluation = (_read(sources, seed, base_dir) for sources in (data.train, data.evaluation))
    shown = _demonstrations(config, base_dir, train) if config.needs_demonstrations else Rows()
    tokenizer, reason, lacks_end = None, "", False
    context = vocabulary = None
    stops: tuple[int, ...] = ()
    try:
        from verizero.pipeline.run.build import build_tokenizer, context_of

        tokenizer = build_tokenizer(config)
        with boundary(ConfigError, f"the configuration of model.path {config.model.path!r} does not load"):
            context = context_of(config)
            stops, vocabulary = _sizes(config)
    except ConfigError as exc:
        if is_absent_package(config):
            return LocalParts(config, base_dir, train, evaluation, shown, None, None, (), None, str(exc))
        lacks_end = _lacks_end(config)
        if config.model.create is not None or (is_local(config) and not lacks_end):
            raise
        # A model of the hub that is neither on this machine nor to be had.
        tokenizer, reason = None, _not_here(str(config.model.path), exc)
        if lacks_end:
            reason = "the tokenizer has no end token"
    return LocalParts(
        config, base_dir, train, evaluation, shown, tokenizer, context, stops, vocabulary, reason, lacks_end
    )


def stay_offline_without_network() -> None:
    """Tell the libraries of the hub to look on this machine alone if the hub cannot be reached.

    They would else try again for half a minute, for each model and each data set. Call it before they are imported.
    """
    if "HF_HUB_OFFLINE" not in os.environ and not is_hub_reached():
        os.environ["HF_HUB_OFFLINE"] = "1"


def _read(sources: Sequence[Source], seed: int, base_dir: Path) -> Rows:
    rows = Rows()
    for source in sources:
        places = dict(rows.places)  # of a source that is refused half-way no id is taken
        try:
            prompts, _ = read_prompts((_bounded(source),), seed, base_dir, places)
        except DataError as exc:
            rows.miss(source.label, exc)
            continue
        rows.places.update(places)
        rows.prompts.extend(prompts)
    return rows


def _demonstrations(config: RunConfig, base_dir: Path, train: Rows) -> Rows:
    """Return the demonstrations; of training sources those that could be read, as the others are told there."""
    of_demonstrations = [_bounded(s) for s in config.data.demonstrations]
    rows = Rows(absent={} if of_demonstrations else dict(train.absent))
    missed = train.refused.keys() | train.absent.keys()
    of_train = [] if of_demonstrations else [_bounded(s) for s in config.data.train if s.label not in missed]
    sources = of_demonstrations or of_train
    if sources:
        try:
            rows.prompts.extend(
                read_demonstrations(of_demonstrations, of_train, config.seed, base_dir, rows.places).prompts
            )
        except DataError as exc:
            rows.miss(" ".join(s.label for s in sources), exc)
    return rows


def _bounded(source: Source) -> Source:
    """Return the source with a limit on its rows, where a file or a data set of the hub has none or a larger one."""
    if source.generator is not None or (source.limit is not None and source.limit <= MOST_ROWS):
        return source
    return source.model_copy(update={"limit": MOST_ROWS, "shuffle": False})


def is_local(config: RunConfig) -> bool:
    """True if the recipe's model is a folder or file of this machine."""
    return config.model.path is not None and is_path(config.model.path)


def is_absent_package(config: RunConfig) -> bool:
    """True if the recipe's model is in a package that is not installed."""
    from verizero.pipeline.models.gguf_file import PACKAGE, located

    if config.model.path is None or not config.model.path.startswith(PACKAGE):
        return False
    try:
        located(config.model.path)
    except ConfigError:
        return True
    return False


def _lacks_end(config: RunConfig) -> bool:
    """True if the tokenizer loads, and names no end token."""
    import transformers

    from verizero.pipeline.run.build import first_model_path

    if config.model.path is None:
        return False
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(first_model_path(config), revision=config.model.revision)
    except Exception:  # whatever is wrong with it, `load_tokenizer` has told
        return False
    return tokenizer.eos_token_id is None


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
