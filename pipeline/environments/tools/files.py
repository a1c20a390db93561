"""Tools that list, read and search the files of a folder or of a task, and no others.

Names are looked up in a list that is made once; they are never used as paths.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from pydantic import Field, ValidationInfo, field_validator, model_validator

from verizero.pipeline.environments.base import BASE
from verizero.pipeline.environments.tools.base import Toolbox, ToolParams, tool
from verizero.pipeline.errors import DataError
from verizero.pipeline.near import did_you_mean
from verizero.pipeline.types import Prompt


class Params(ToolParams):
    """The files, and limits of what is shown. Without folder and files, the files of the row's answer are used."""

    folder: str | None = Field(None, description="on disk, from the recipe's folder; links are left out")
    files: dict[str, str] | None = Field(None, description="name -> text, for all tasks")
    max_files: int = Field(1000, ge=1, description="a folder with more is refused")
    max_characters: int = Field(4000, ge=1, description="of a file; the rest is cut off")
    max_hits: int = Field(20, ge=1, description="lines that a search shows")

    @field_validator("folder")
    @classmethod
    def _there(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None:
            return None
        folder = ((info.context or {}).get(BASE) or Path.cwd()) / value
        if not folder.is_dir():
            raise ValueError(f"no such folder: {folder}")
        return str(folder.resolve())

    @model_validator(mode="after")
    def _one(self) -> Params:
        if self.folder is not None and self.files is not None:
            raise ValueError("give a folder or files, not both")
        return self


def tools(params: Params, prompt: Prompt) -> Toolbox:
    """Return the tools `list`, `read` and `search` over the files."""
    return over(files_of(params, prompt.reference), params)


class Files(Protocol):
    """Named texts."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        ...

    def text(self, name: str, max_characters: int) -> str:
        """Return the beginning of a file, of at most `max_characters`."""
        ...


def over(files: Files, params: Params) -> Toolbox:
    """Return the tools over these files."""

    @tool(name="list")
    def list_names() -> str:
        """Return the names of all files."""
        return "\n".join(files.names) or "no files"

    @tool
    def read(name: str) -> str:
        """Return the text of a file."""
        _require(name, files)
        text = files.text(name, params.max_characters + 1)
        is_cut = len(text) > params.max_characters
        return text[: params.max_characters] + "\n..." if is_cut else text

    @tool
    def search(text: str) -> str:
        """Return the lines that hold a text, with the names of their files."""
        if not text.strip():
            raise ValueError("the text to search for is empty")
        hits: list[str] = []
        for name, number, line in _lines(files, params.max_characters):
            if text in line:
                if len(hits) == params.max_hits:
                    hits.append("...")
                    break
                hits.append(f"{name}:{number}: {line.strip()}")
        return "\n".join(hits) or "no hits"

    return Toolbox([list_names, read, search])


def files_of(params: Params, reference: Any) -> Files:
    """Return the files that the parameters name, or those of the task. Raises: DataError if there are none."""
    if params.folder is not None:
        return OnDisk(params.folder, params.max_files)
    if params.files is not None:
        return InMemory(params.files)
    files = reference.get("files") if isinstance(reference, Mapping) else None
    if not isinstance(files, Mapping) or not all(isinstance(v, str) for v in files.values()):
        raise DataError(
            f"answer.files: expected an object of name -> text, got {files!r:.80}; or set the parameter folder or files"
        )
    return InMemory(files)


class InMemory:
    """Files that are texts in memory."""

    def __init__(self, files: Mapping[str, str]) -> None:
        """`files` maps names to texts."""
        self._files = {str(name): text for name, text in files.items()}
        self.names = tuple(sorted(self._files))

    def text(self, name: str, max_characters: int) -> str:
        """Return the beginning of a file."""
        return self._files[name][:max_characters]


class OnDisk:
    """Files of a folder and its sub-folders, without links and special files."""

    def __init__(self, folder: str, max_files: int) -> None:
        """Raises: DataError if there are more files than `max_files`."""
        self.folder = Path(folder)
        self.names = _list_names(folder, max_files)

    def text(self, name: str, max_characters: int) -> str:
        """Return the beginning of a file. Bytes that are no text are shown as question marks."""
        # The flags are for a name that has become a link, or a pipe that would block, since the list was made.
        descriptor = os.open(self.folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise DataError(f"{name} is no longer a plain file; leave the folder as it is while a run reads it")
            # Four bytes are the most that a character takes.
            return file.read(4 * max_characters).decode("utf-8", "replace").replace("\ufffd", "?")[:max_characters]


@lru_cache(maxsize=32)
def _list_names(folder: str, max_files: int) -> tuple[str, ...]:
    names = []
    for parent, _, files in os.walk(folder, followlinks=False):
        for file in files:
            path = Path(parent, file)
            if not stat.S_ISREG(path.lstat().st_mode):
                continue
            names.append(path.relative_to(folder).as_posix())
            if len(names) > max_files:
                raise DataError(f"{folder} has more than max_files = {max_files} files; raise it, or give fewer")
    return tuple(sorted(names))


def _lines(files: Files, max_characters: int) -> Iterator[tuple[str, int, str]]:
    for name in files.names:
        for number, line in enumerate(files.text(name, max_characters).splitlines(), 1):
            yield name, number, line


def _require(name: str, files: Files) -> None:
    if name not in files.names:
        raise LookupError(f"no file is called {name[:100]}. {did_you_mean(name, files.names, most=1)}".strip())
