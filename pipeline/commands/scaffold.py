"""Files of a new part: written together, or not at all where a name or a file is taken."""

from __future__ import annotations

import json
import keyword
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.registry import names

Rows = Sequence[Mapping[str, Any]]


def write_part(
    kind: Literal["verifier", "environment"], name: str, folder: Path, files: Mapping[str, str | Rows]
) -> list[Path]:
    """Write the files of a new part of that kind, texts or rows of JSON; return their paths.

    Raises: ConfigError if the name is not an identifier, is taken, or a file exists already.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise ConfigError(f"{kind} name must be a Python identifier such as my_domain, got {name!r}")
    if name in names("verifiers" if kind == "verifier" else "environments"):
        raise ConfigError(f"{kind} {name!r} is already installed; choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    if there := [f for f in files if (folder / f).exists()]:
        raise ConfigError(f"{folder / there[0]} is already there; choose another name or folder")
    for file, content in files.items():
        text = content if isinstance(content, str) else "".join(json.dumps(row) + "\n" for row in content)
        (folder / file).write_text(text, encoding="utf-8")
    return [folder / file for file in files]
