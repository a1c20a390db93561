"""JSON that meets a schema, and, where the reference says so, certain values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import jsonschema
import referencing
from pydantic import Field

from verizero.pipeline.errors import DataError
from verizero.pipeline.fences import blocks_in
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers._sandbox_jobs import Job, SandboxParams, run_or_fail, runner
from verizero.verifiers.answer import Answer, after_thinking, last_tag
from verizero.verifiers.base import VerifierParams, verifier

MAX_CHARS, MAX_DEPTH = 20_000, 100
"""Characters and nesting of JSON; what has more is refused before it is parsed."""


class JsonSchemaParams(VerifierParams):
    """The worth of JSON that meets the schema with other values."""

    grading: Literal["all", "fraction"] = Field(
        "all",
        description="all: 1 or 0; fraction: where the reference has `equals`, JSON with other values is worth its "
        "share of places with the wanted value, among the places of both",
    )


@verifier
def json_schema(attempt: Attempt, params: JsonSchemaParams) -> Verdict:
    """Return 1 if the answer is one JSON value that meets the schema and has the wanted value, or values of keys.

    Reference: {"schema": {...}, "equals"?: value, "values"?: {key: value}} (one is enough), or that as text.
    Duplicate keys, NaN and infinities are no JSON. A schema's references never leave the schema. Patterns that can run
    for long are searched for in the sandbox.
    """
    schema, wanted = _reference(attempt.reference)
    answer = _json_text(attempt)
    if answer.text is None:
        return answer.no_answer()
    extracted = answer.text[:200]
    try:
        value = parse(answer.text)
    except ValueError as exc:
        return Verdict("graded", 0.0, f"not_json: {exc}"[:200], extracted)
    if schema is not None:
        try:
            error = next(iter(_validator(json.dumps(schema, sort_keys=True)).iter_errors(value)), None)
        except TooSlow as exc:
            return Verdict("timeout", 0.0, str(exc)[:200], extracted)
        except NotSearched as exc:
            return Verdict("sandbox_error", 0.0, str(exc)[:300], extracted)
        if error is not None:
            score = _share(value, wanted, params)
            return Verdict("graded", score, f"schema: {error.json_path}: {error.message}"[:200], extracted)
    if "equals" in wanted and not same(value, wanted["equals"]):
        return Verdict("graded", _share(value, wanted, params), "different_value", extracted)
    for key, item in wanted.get("values", {}).items():
        if not isinstance(value, dict) or key not in value or not same(value[key], item):
            return Verdict("graded", 0.0, f"different_value: {key}", extracted)
    return Verdict("graded", 1.0, "valid", extracted)


def _share(value: Any, wanted: Mapping[str, Any], params: JsonSchemaParams) -> float:
    """Return the score, below 1, of JSON that differs from the expected one."""
    if params.grading == "all" or "equals" not in wanted:
        return 0.0
    got, right = dict(_places(value)), dict(_places(wanted["equals"]))
    num_same = sum(place in got and same(got[place], item) for place, item in right.items())
    # below 1 also where all places agree: then it is the schema that is not met
    return min(num_same / len(got.keys() | right.keys()), 0.99)


def _places(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield the values that are no containers, each with its path of keys and indices."""
    if isinstance(value, dict | list) and value:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(item, (*place, key))
    else:
        yield place, value


def parse(text: str) -> Any:
    """Return a text's JSON value. Raises: ValueError if it is no JSON, too large, repeats a key or has NaN."""
    if len(text) > MAX_CHARS:
        raise ValueError(f"{len(text)} characters, at most {MAX_CHARS}")
    depth = 0
    in_string = escaped = False
    for c in text:
        if in_string:
            in_string, escaped = (c != '"' or escaped), (c == "\\" and not escaped)
        elif c == '"':
            in_string = True
        elif c in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise ValueError(f"nested deeper than {MAX_DEPTH}")
        elif c in "]}":
            depth -= 1
    return json.loads(text.removeprefix("\ufeff"), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)


def same(a: Any, b: Any) -> bool:
    """True for values that are equal as JSON: true is not 1, 1 is 1.0, the order of keys does not matter."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key occurs twice")
    return made


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _json_text(attempt: Attempt) -> Answer:
    part = after_thinking(attempt)
    if part.text is None:
        return part
    tagged = last_tag(part.text, "answer")
    text = tagged.text if tagged.text is not None else part.text
    if text.lstrip()[:1] in ("{", "["):
        return Answer(text, "bare")
    blocks, left_open = blocks_in(text)
    fitting = [b for b in blocks if b.language in ("", "json")]
    if len(fitting) > 1:
        return Answer(None, "several_blocks")
    if fitting:
        return Answer(fitting[0].text, "fenced")
    if left_open:
        return Answer(None, "unclosed_fence")
    return Answer(None, "truncated") if attempt.truncated else Answer(text, "bare")


@lru_cache(maxsize=256)
def _validator(schema_text: str) -> Any:
    schema = json.loads(schema_text)
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as exc:
        raise DataError(f"reference.schema: {exc.json_path}: {exc.message}"[:300]) from exc
    if '"unevaluatedProperties"' in schema_text and '"patternProperties"' in schema_text:
        raise DataError("reference.schema: unevaluatedProperties with patternProperties; use additionalProperties")
    words = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    }
    return jsonschema.validators.extend(kind, words)(schema, registry=referencing.Registry())


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    if validator.is_type(instance, "string") and not is_found(pattern, instance):
        yield jsonschema.ValidationError(f"{instance!r:.80} does not match {pattern!r:.80}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any
) -> Iterator[jsonschema.ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, inner in patterns.items():
        for key, value in instance.items():
            if is_found(pattern, key):
                yield from validator.descend(value, inner, path=key, schema_path=pattern)


def _additional_properties(
    validator: Any, allowed: Any, instance: Any, schema: Mapping[str, Any]
) -> Iterator[jsonschema.ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key, value in instance.items():
        if key not in known and not any(is_found(p, key) for p in patterns):
            if validator.is_type(allowed, "object"):
                yield from validator.descend(value, allowed, path=key)
            elif not allowed:
                yield jsonschema.ValidationError(f"additional property {key!r:.80}")


def _unique_items(validator: Any, wanted: bool, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    """Find equal items in time linear in their number; comparing all pairs takes minutes for a long list."""
    if wanted and validator.is_type(instance, "array") and len({_key(i) for i in instance}) < len(instance):
        yield jsonschema.ValidationError("has an item twice")


def _key(value: Any) -> Any:
    """Return a key that is equal, and of equal hash, for values that are `same`."""
    if isinstance(value, dict):
        return "object", frozenset((k, _key(v)) for k, v in value.items())
    if isinstance(value, list):
        return "array", tuple(map(_key, value))
    return type(value) is bool, value


def _reference(reference: Any) -> tuple[Any, Mapping[str, Any]]:
    if isinstance(reference, str):
        try:
            reference = json.loads(reference)
        except ValueError as exc:
            raise DataError(f"reference: not JSON: {exc}") from exc
    if not isinstance(reference, Mapping) or not {"schema", "equals", "values"} & set(reference):
        raise DataError(f"reference: expected an object with 'schema', 'equals' or 'values', got {reference!r:.80}")
    if not isinstance(reference.get("values", {}), Mapping):
        raise DataError(f"reference.values: expected key -> value, got {reference['values']!r:.80}")
    return reference.get("schema"), reference


INSIDE = (Path(__file__).parent / "in_sandbox" / "pattern.py").read_text()
QUICK = re.compile(
    r"\^?(?:(?:[^\\.*+?{}()\[\]|^$]|\.|\\(?:[dwsDWS]|\W)|\[(?:[^\[\]\\]|\\.)*\])(?:\{\d{1,3}\})?)*"
    r"(?:[+*?]|\{\d{1,3},\d{0,3}\})?\$?"
)
"""Patterns of single characters and classes, of which only the last repeats in several ways: no search takes long."""
MAX_HERE = 2_000
"""Maximum of characters in a text that is searched in this process."""
LIMITS = SandboxParams(wall_s=5, cpu_s=1)


class TooSlow(Exception):
    """The search did not end in time."""


class NotSearched(Exception):
    """The sandbox failed; the message says how."""


@lru_cache(maxsize=4096)
def is_found(pattern: str, text: str) -> bool:
    """True if Python's `pattern` matches in `text`. Raises: DataError if it is malformed; TooSlow; NotSearched."""
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as exc:
        raise DataError(f"reference.schema: not a pattern of Python's re: {pattern!r:.80}: {exc}") from exc
    if QUICK.fullmatch(pattern) and len(text) <= MAX_HERE:
        return compiled.search(text) is not None
    job = Job(INSIDE, ({"fn": "is_in", "args": [pattern, text], "expected": True},), "function")
    (outcome,) = run_or_fail([job], runner(LIMITS))
    if outcome.status == "sandbox_error":
        raise NotSearched(outcome.detail)
    if outcome.is_over_budget:
        raise TooSlow(f"the pattern {pattern:.80} took more than {LIMITS.cpu_s:g} CPU seconds")
    return outcome.status == "passed"
