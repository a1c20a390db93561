"""An evaluation suite: rows, how a model is asked for them, and what others have published on them. One file each."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, ValidationError, model_validator

from verizero.pipeline.config.data import FILE_TYPES, Source
from verizero.pipeline.config.sections import Section
from verizero.pipeline.config.suite_files import suite_file, suite_tree
from verizero.pipeline.errors import ConfigError


class Published(Section):
    """A figure that others have published."""

    model: str = Field(min_length=1, description="hub id of the model")
    value: float = Field(ge=0, le=1, description="share of right answers")
    source: str = Field(min_length=1, description="where it is published, and what was different there")


class Suite(Section):
    """A suite."""

    title: str = Field(min_length=1)
    rows: Source = Field(description="a source as in `data.evaluation` of a recipe")
    samples: int = Field(1, ge=1, description="answers to each row; pass@1 is their mean, as avg@32 is of 32")
    temperature: float = Field(0.0, ge=0, description="0: greedy")
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: int = Field(
        4096, ge=1, description="most tokens of an answer; a model with a short context writes fewer"
    )
    published: tuple[Published, ...] = ()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(f"samples={self.samples} with temperature=0, which gives one answer; set one of them")
        if self.rows.environment is not None or not self.rows.graded:
            raise ValueError("rows: a suite grades one answer a row, without an environment")
        return self

    @property
    def name(self) -> str:
        """The suite's name, which its rows have as their domain."""
        return str(self.rows.domain)


def load_suite(name: str, base: Path, data_dir: Path | None = None) -> Suite:
    """Return a shipped suite, or that of a file from `base`; `data_dir` may have its rows. Raises: ConfigError."""
    tree = suite_tree(name, base)
    if data_dir is not None and "hub" in tree["rows"]:
        rows = {key: value for key, value in tree["rows"].items() if key != "hub"}
        tree["rows"] = {**rows, "file": str(_file_in(data_dir, str(rows["domain"])))}
    try:
        return Suite.model_validate(tree, context={"base": base})
    except ValidationError as exc:
        lines = [f"{'.'.join(map(str, e['loc']))}: {e['msg'].removeprefix('Value error, ')}" for e in exc.errors()]
        raise ConfigError(f"{suite_file(name, base)}: {'; '.join(lines)}") from exc


def _file_in(folder: Path, name: str) -> Path:
    for ending in FILE_TYPES:
        if (path := folder / f"{name}{ending}").is_file():
            return path.resolve()
    raise ConfigError(f"--data-dir {folder} has no file {name} that ends in {', '.join(FILE_TYPES)}")
