"""Rows to be verified, from JSONL: each names its verifier, and holds a response, or examples of right and wrong."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.errors import DataError, VerizeroError
from pipeline.registry import names
from pipeline.types import Attempt
from verifiers.base import BoundVerifier, load

Choice = str | Mapping[str, Any]
"""How a row or a command names a verifier: a name, "file.py:function", or {name | path, params?}."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line: who grades (`key` is equal for equal verifiers with equal parameters), against what, and what."""

    line: int
    id: Any
    key: str
    reference: Any
    response: str | None = None
    prompt: str = ""
    truncated: bool = False
    label: bool | None = None
    """Whether `response` is right, where somebody said so."""
    accept: tuple[str, ...] = ()
    """Responses that must be accepted."""
    refuse: tuple[str, ...] = ()
    """Responses that must be refused."""
    domain: str = "default"

    def attempt(self, response: str | None = None) -> Attempt:
        """What the verifier sees, with another response if one is given."""
        said = self.response if response is None else response
        return Attempt(said or "", self.reference, self.prompt, self.truncated and response is None)

    @property
    def verifier(self) -> BoundVerifier[Any]:
        """The verifier with its parameters."""
        return bound(self.key)


@dataclass(frozen=True, slots=True)
class BadRow:
    """A line that is no row, and why; `id` is the row's own where it could be read."""

    line: int
    id: Any
    problem: str


@dataclass(frozen=True, slots=True)
class Defaults:
    """What rows that do not say so use, and the folders that files of verifiers are looked for in, in this order."""

    verifier: Choice | None = None
    base: Path = field(default_factory=Path.cwd)
    beside: Path | None = None
    """The rows' own folder."""


def read_rows(lines: Iterable[str], defaults: Defaults | None = None) -> Iterator[Row | BadRow]:
    """Each line as a row, in order, as it comes; a line that is none is a `BadRow` that names line and field."""
    defaults = defaults or Defaults()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        given: Any = None
        try:
            given = _object(line)
            yield _row(number, given, defaults)
        except (VerizeroError, ValueError) as exc:
            identity = given.get("id") if isinstance(given, dict) else None
            yield BadRow(number, identity, f"line {number}: {exc}")


def good_rows(path: Path, defaults: Defaults | None = None) -> list[Row]:
    """All rows of a file. Files of verifiers may lie beside it.

    Raises: DataError naming file, line and field of the first that is none, or if there is none.
    """
    defaults = replace(defaults or Defaults(), beside=path.parent)
    try:
        with path.open(encoding="utf-8") as lines:
            rows = list(read_rows(lines, defaults))
    except OSError as exc:
        raise DataError(f"{path}: {exc.strerror or exc}; give a file of JSON lines") from exc
    bad = [r for r in rows if isinstance(r, BadRow)]
    if bad:
        raise DataError(f"{path}: {bad[0].problem}")
    if not rows:
        raise DataError(f"{path}: holds no rows")
    return [r for r in rows if isinstance(r, Row)]


def key_of(choice: Choice, base: Path, beside: Path | None = None) -> str:
    """A text that stands for a verifier with its parameters.

    A relative path is taken from `base`, else from `beside`; those of the parts of `combine` too. A name that nothing
    installed has is looked for there too: `my_domain` is then `my_domain.py:my_domain`.
    Raises: DataError if it names none.
    """
    if isinstance(choice, str):
        choice = {"path": choice} if ".py:" in choice else {"name": choice}
    unknown = set(choice) - {"name", "path", "params"}
    if unknown or ("name" in choice) == ("path" in choice):
        raise DataError(f"field 'verifier': expected a name or {{name | path, params?}}, got {dict(choice)!r:.120}")
    folders = [base] if beside is None else [base, beside]
    name = str(choice.get("name", ""))
    if name.isidentifier() and name not in names("verifiers") and any((f / f"{name}.py").is_file() for f in folders):
        choice = {**{k: v for k, v in choice.items() if k == "params"}, "path": f"{name}.py:{name}"}
    return json.dumps(_absolute(choice, folders), sort_keys=True)


def _absolute(choice: Mapping[str, Any], folders: Sequence[Path]) -> dict[str, Any]:
    """The choice with its paths, and those of its parts, absolute: in the first folder that has the file."""
    made = dict(choice)
    if "path" in made:
        file, _, function = str(made["path"]).partition(":")
        folder = next((f for f in folders if (f / file).is_file()), folders[0])
        made["path"] = f"{(folder / file).absolute()}:{function}"
    params = made.get("params")
    if isinstance(params, Mapping) and isinstance(params.get("parts"), list):
        parts = [_absolute(p, folders) if isinstance(p, Mapping) else p for p in params["parts"]]
        made["params"] = {**params, "parts": parts}
    return made


@lru_cache(maxsize=1024)
def bound(key: str) -> BoundVerifier[Any]:
    """The verifier that a key of `key_of` stands for.

    Raises: UnknownName, ConfigError.
    """
    choice = json.loads(key)
    return load(choice.get("name"), choice.get("path")).bind(choice.get("params"))


def _object(line: str) -> dict[str, Any]:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise DataError(f"not JSON: {exc}") from exc
    if not isinstance(given, dict):
        raise DataError(f"expected an object with 'verifier', 'reference' and 'response', got {line.strip():.60}")
    return given


def _row(number: int, given: Mapping[str, Any], defaults: Defaults) -> Row:
    verifier = given.get("verifier", defaults.verifier)
    if not isinstance(verifier, str | Mapping):
        raise DataError(f"field 'verifier': expected a name or {{name | path, params?}}, got {verifier!r:.80}")
    if "reference" not in given:
        raise DataError(f"field 'reference': missing; the row has {', '.join(sorted(given)) or 'no fields'}")
    key = key_of(verifier, defaults.base, defaults.beside)
    try:
        bound(key)
    except VerizeroError as exc:
        raise DataError(f"field 'verifier': {exc}") from exc
    label = given.get("label")
    if label is not None and label not in (0, 1, True, False):
        raise DataError(f"field 'label': expected true or false, got {label!r:.80}")
    response = given.get("response")
    if response is not None and not isinstance(response, str):
        raise DataError(f"field 'response': expected text, got {type(response).__name__}")
    accept, refuse = (_texts(given, name) for name in ("accept", "refuse"))
    if response is None and not accept and not refuse:
        raise DataError(f"field 'response': missing; the row has {', '.join(sorted(given))}")
    return Row(
        number,
        given.get("id", number),
        key,
        given["reference"],
        response,
        str(given.get("prompt", given.get("question", ""))),
        bool(given.get("truncated", False)),
        None if label is None else bool(label),
        accept,
        refuse,
        str(given.get("domain", "default")),
    )


def _texts(given: Mapping[str, Any], name: str) -> tuple[str, ...]:
    texts = given.get(name, [])
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not all(isinstance(t, str) for t in texts):
        raise DataError(f"field {name!r}: expected a list of responses, got {texts!r:.80}")
    return tuple(texts)
