"""Rows of JSONL for verifiers: each names its verifier, and holds a response, or right and wrong responses."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from verizero.pipeline.errors import DataError, VerizeroError
from verizero.pipeline.host.disk import parse_json
from verizero.pipeline.registry import names
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.base import TIME_S, BoundVerifier, load

Choice = str | Mapping[str, Any]
"""A verifier as a row or a command names it: a name, "file.py:function", or {name | path, params?}."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row. Equal verifiers with equal parameters have equal keys."""

    line: int
    id: Any
    key: str
    reference: Any
    response: str | None = None
    prompt: str = ""
    truncated: bool = False
    label: bool | None = None
    """True if `response` is right, False if it is wrong, None if nobody labelled it."""
    accept: tuple[str, ...] = ()
    """Responses that must be accepted."""
    refuse: tuple[str, ...] = ()
    """Responses that must be refused."""
    domain: str = "default"
    columns: Mapping[str, Any] | None = None
    """The whole row, for a reward function that asks for columns by their names."""

    def attempt(self, response: str | None = None) -> Attempt:
        """Return the row's response, or another one, as the verifier sees it."""
        text = self.response if response is None else response
        is_cut = self.truncated and response is None
        return Attempt(text or "", self.reference, self.prompt, is_cut, row=self.columns)

    @property
    def verifier(self) -> BoundVerifier[Any]:
        """The verifier with its parameters."""
        return bound(self.key)


@dataclass(frozen=True, slots=True)
class BadRow:
    """An invalid line and its problem; `id` is the row's own if it could be read."""

    line: int
    id: Any
    problem: str


@dataclass(frozen=True, slots=True)
class Defaults:
    """The verifier of rows that name none, and the folders in which verifiers' files are searched, in this order."""

    verifier: Choice | None = None
    base: Path = field(default_factory=Path.cwd)
    rows_folder: Path | None = None
    """The rows' own folder."""


def read_rows(lines: Iterable[str], defaults: Defaults | None = None) -> Iterator[Row | BadRow]:
    """Yield each line as a row, in order; an invalid line becomes a `BadRow` that names line and field."""
    defaults = defaults or Defaults()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        fields: dict[str, Any] = {}
        try:
            fields = _object(line)
            yield _row(number, fields, defaults)
        except (VerizeroError, ValueError) as exc:
            identity = fields.get("id")
            yield BadRow(number, identity, f"line {number}: {exc}")


def good_rows(path: Path, defaults: Defaults | None = None) -> list[Row]:
    """Return the rows of a file, whose folder may have verifiers. Raises: DataError for an invalid row, or none."""
    defaults = replace(defaults or Defaults(), rows_folder=path.parent)
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


def key_of(choice: Choice, base: Path, rows_folder: Path | None = None) -> str:
    """Return the text that identifies a verifier with its parameters.

    A relative path, also of a part of `combine`, is searched in `base`, then in `rows_folder`. So is the file of a name
    that is not installed: `my_domain` means `my_domain.py:my_domain`.
    Raises: DataError for a choice that names no verifier.
    """
    choice = choice_of(choice)
    unknown = set(choice) - {"name", "path", "params"}
    if unknown or ("name" in choice) == ("path" in choice):
        raise DataError(f"field 'verifier': expected a name or {{name | path, params?}}, got {dict(choice)!r:.120}")
    folders = [base] if rows_folder is None else [base, rows_folder]
    name = str(choice.get("name", ""))
    if name.isidentifier() and name not in names("verifiers") and any((f / f"{name}.py").is_file() for f in folders):
        choice = {**{k: v for k, v in choice.items() if k == "params"}, "path": f"{name}.py:{name}"}
    return json.dumps(_absolute(choice, folders), sort_keys=True)


def choice_of(choice: Choice, params: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """Return a choice as {name or path, params?}; `params` are for one that has none."""
    if isinstance(choice, str):
        choice = {"path": choice} if ".py:" in choice else {"name": choice}
    return {**choice, "params": params} if params and "params" not in choice else choice


def _absolute(choice: Mapping[str, Any], folders: Sequence[Path]) -> dict[str, Any]:
    """Return the choice with absolute paths, also of its parts: in the first folder that has the file."""
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
def bound(key: str, time_s: float = TIME_S) -> BoundVerifier[Any]:
    """Return the verifier with a key of `key_of`. Raises: UnknownName, ConfigError."""
    choice = json.loads(key)
    return load(choice.get("name"), choice.get("path")).bind(choice.get("params"), time_s=time_s)


def score_all(keys: Sequence[str], attempts: Sequence[Attempt], time_s: float = TIME_S) -> list[Verdict]:
    """Return one verdict per attempt by the verifier of its key, in order; each verifier gets its attempts together."""
    places: dict[str, list[int]] = {}
    for i, key in enumerate(keys):
        places.setdefault(key, []).append(i)
    verdicts: dict[int, Verdict] = {}
    for key, some in places.items():
        verdicts.update(zip(some, bound(key, time_s).score([attempts[i] for i in some]), strict=True))
    return [verdicts[i] for i in range(len(attempts))]


def brief(verdict: Verdict) -> str:
    """Return a verdict in a few words, and what was extracted."""
    extracted = "" if verdict.extracted is None else f", extracted {verdict.extracted!r:.80}"
    return f"{verdict.status} {verdict.score:g} {verdict.reason}".strip() + extracted


def _object(line: str) -> dict[str, Any]:
    try:
        fields = parse_json(line)
    except (ValueError, RecursionError) as exc:
        raise DataError(f"not JSON: {exc}") from exc
    if not isinstance(fields, dict):
        raise DataError(f"expected an object with 'verifier', 'reference' and 'response', got {line.strip():.60}")
    return fields


def _row(number: int, fields: Mapping[str, Any], defaults: Defaults) -> Row:
    verifier = fields.get("verifier", defaults.verifier)
    if not isinstance(verifier, str | Mapping):
        raise DataError(f"field 'verifier': expected a name or {{name | path, params?}}, got {verifier!r:.80}")
    if "reference" not in fields:
        raise DataError(f"field 'reference': missing; the row has {', '.join(sorted(fields)) or 'no fields'}")
    if isinstance(fields["reference"], float) and not math.isfinite(fields["reference"]):
        raise DataError(f"field 'reference': {fields['reference']} is no answer; give one, or leave out the row")
    key = key_of(verifier, defaults.base, defaults.rows_folder)
    try:
        bound(key)
    except VerizeroError as exc:
        raise DataError(f"field 'verifier': {exc}") from exc
    label = fields.get("label")
    if label is not None and label not in (0, 1, True, False):
        raise DataError(f"field 'label': expected true or false, got {label!r:.80}")
    response = fields.get("response")
    if response is not None and not isinstance(response, str):
        raise DataError(f"field 'response': expected text, got {type(response).__name__}")
    accept, refuse = (_texts(fields, name) for name in ("accept", "refuse"))
    if response is None and not accept and not refuse:
        raise DataError(f"field 'response': missing; the row has {', '.join(sorted(fields))}")
    prompt, domain = str(fields.get("prompt", fields.get("question", ""))), str(fields.get("domain", "default"))
    is_cut, is_right = bool(fields.get("truncated", False)), None if label is None else bool(label)
    row_id, reference = fields.get("id", number), fields["reference"]
    return Row(number, row_id, key, reference, response, prompt, is_cut, is_right, accept, refuse, domain)


def _texts(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    texts = fields.get(name, [])
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not all(isinstance(t, str) for t in texts):
        raise DataError(f"field {name!r}: expected a list of responses, got {texts!r:.80}")
    return tuple(texts)
