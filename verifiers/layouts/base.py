"""Layouts of references of programs, and the search for the one of a reference.

Each family is a file of this folder with its LAYOUTS by name; an installed package brings others by entry points. A
reference with keys that no layout has is refused, and so is one that a layout reads only in part.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, get_args

from verizero.pipeline import registry
from verizero.pipeline.errors import DataError
from verizero.pipeline.fences import language_named
from verizero.pipeline.host.disk import parse_json
from verizero.pipeline.near import did_you_mean
from verizero.sandbox.results import MOST

Mode = Literal["stdin", "function"]
Language = Literal["python", "c", "cpp", "java", "go", "rust", "javascript", "bash"]
Test = dict[str, Any]
Reference = Mapping[str, Any]
FAMILIES = ("in_and_out", "contests", "sources")
FOR_CODE = ("checker", "language", "limits", "setup")
"""Keys that a reference of any layout of `code` may have besides."""
LIMITS = ("cpu_s", "memory_mib", "output_kib", "wall_s")


@dataclass(frozen=True, slots=True)
class Suite:
    """Tests of inputs and outputs, for `code`.

    `alternative` is a second reading of the same tests (APPS wraps each expected value in a list of one, and a
    function may itself return such a list); a program is right if it passes all tests of either reading.
    """

    mode: Mode
    tests: tuple[Test, ...]
    alternative: tuple[Test, ...] | None = None
    checker: str | None = None
    """Source of a program with check(input, output, expected), which decides in place of the expected output."""
    language: Language | None = None
    """The language of the row's programs; None: the verifier's parameter."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Limits of the row, for those that the verifier's parameters do not set."""
    setup: str = ""
    """Python source that runs before the program."""

    @property
    def names(self) -> tuple[str, ...]:
        """The functions that the tests call."""
        return tuple(dict.fromkeys(str(t["fn"]) for t in self.tests)) if self.mode == "function" else ()

    def first(self, at_most: int | None) -> Suite:
        """Return this suite with at most that many tests, spread evenly, so that large inputs are among them."""
        n = len(self.tests)
        if at_most is None or n <= at_most:
            return self
        chosen = sorted({i * (n - 1) // max(1, at_most - 1) for i in range(at_most)})
        other = None if self.alternative is None else tuple(self.alternative[i] for i in chosen)
        return replace(self, tests=tuple(self.tests[i] for i in chosen), alternative=other)


@dataclass(frozen=True, slots=True)
class Asserts:
    """Tests that are Python source, for `unit_tests`."""

    tests: str
    setup: str = ""
    """Source that runs before the tests, next to them."""
    fn: str | None = None
    """The function of the program that `check(candidate)` is called with; None: whatever the tests call."""
    prompt: str = ""
    """Source that runs before the program and before the tests: imports and helpers of the task's own text."""


Tests = Suite | Asserts


@dataclass(frozen=True, slots=True)
class Layout:
    """The way to read the references of a data set."""

    verifier: str
    """The verifier that its tests are for: code or unit_tests."""
    keys: tuple[str, ...]
    """Keys that a reference must have."""
    others: tuple[str, ...]
    """Keys that it may have."""
    read: Callable[[Reference], Tests | None]
    """Returns the tests; None if the values show another layout. Raises: DataError naming the field at fault."""


@lru_cache(maxsize=1)
def layouts() -> dict[str, Layout]:
    """Return all layouts by name: those with the most keys first, as they are the surest."""
    families = (importlib.import_module(f"{__package__}.{family}") for family in FAMILIES)
    by_name = {name: layout for family in families for name, layout in family.LAYOUTS.items()}
    by_name |= {name: registry.find("layouts", name) for name in registry.installed("layouts")}
    return dict(sorted(by_name.items(), key=lambda item: (-len(item[1].keys), item[0])))


def layout_of(reference: Any) -> tuple[str, Tests]:
    """Return the name of the reference's layout, and its tests.

    A JSON text is read as what it holds; another text is the source of tests, and a list is one of tests.
    Raises: DataError naming the field at fault, or the keys that would be understood.
    """
    keyed = _as_object(reference)
    near: DataError | None = None
    fitting = {name: layout for name, layout in layouts().items() if keyed.keys() >= set(layout.keys)}
    for name, layout in fitting.items():
        known = {*layout.keys, *layout.others, *(FOR_CODE if layout.verifier == "code" else ())}
        unknown = sorted(str(key) for key in keyed.keys() - known)
        if unknown and near is not None:
            continue
        tests = layout.read(keyed)
        if tests is None:
            continue
        if not unknown:
            return name, _with_common(tests, keyed)
        hint = did_you_mean(unknown[0], known, f"it has {', '.join(sorted(known))}")
        near = DataError(f"reference: the layout {name} has no key {unknown[0]!r}; {hint}")
    raise near or DataError(_unknown(keyed))


def _as_object(reference: Any) -> dict[str, Any]:
    if isinstance(reference, str):
        text = reference.strip()
        if text[:1] in ("{", "["):
            try:
                reference = parse_json(text)
            except (ValueError, RecursionError) as exc:
                raise DataError(f"reference: not JSON ({exc}), got {text!r:.60}") from exc
    if isinstance(reference, str | list):
        reference = {"tests": reference}
    if not isinstance(reference, Mapping):
        raise DataError(f"reference: expected an object, got {type(reference).__name__}: {reference!r:.60}")
    # A table has every column in every row: those without a value say nothing.
    keyed = {key: value for key, value in reference.items() if value is not None}
    if isinstance(tests := keyed.get("tests"), str) and tests.lstrip()[:1] == "[":
        keyed["tests"] = json_or_text(tests)
    return keyed


def json_or_text(text: str) -> Any:
    """Return the value of a JSON text; any other text as it is."""
    try:
        return parse_json(text)
    except (ValueError, RecursionError):
        return text


def _with_common(tests: Tests, reference: Reference) -> Tests:
    """Return the tests with what any reference of `code` may say besides."""
    if isinstance(tests, Asserts):
        return tests
    if not tests.tests:
        raise DataError("reference: it holds no test; a program is right only against at least one")
    own: dict[str, Any] = {}
    for key in ("checker", "setup"):
        if key in reference:
            own[key] = text_of(reference[key], f"reference.{key}")
    if "limits" in reference:
        limits = reference["limits"]
        if not isinstance(limits, Mapping) or not set(limits) <= set(LIMITS):
            known = ", ".join(LIMITS)
            raise DataError(f"reference.limits: expected an object with some of {known}, got {limits!r:.60}")
        own["limits"] = {**tests.limits, **{n: positive(v, f"reference.limits.{n}") for n, v in limits.items()}}
    for name, limit in own.get("limits", tests.limits).items():
        if limit > MOST[name]:
            raise DataError(f"reference: its limit {name} must be at most {MOST[name]}, got {limit!r:.40}")
    if "language" in reference:
        own["language"] = language_of(reference["language"])
    return replace(tests, **own)


def text_of(value: Any, field_name: str) -> str:
    """Return a text. Raises: DataError naming the field."""
    if not isinstance(value, str):
        raise DataError(f"{field_name}: expected a text, got {value!r:.60}")
    return value


def language_of(value: Any) -> Language:
    """Return our name of a language. Raises: DataError for one that `code` has not."""
    name = language_named(text_of(value, "reference.language"))
    known: dict[str, Language] = {own: own for own in get_args(Language)}
    if name not in known:
        raise DataError(f"reference.language: {value!r} cannot run here; known: {', '.join(known)}")
    return known[name]


def positive(value: Any, field_name: str) -> float:
    """Return a number above 0. Raises: DataError naming the field."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise DataError(f"{field_name}: expected a number above 0, got {value!r:.40}")
    return value


def _unknown(reference: Reference) -> str:
    known = "; ".join(f"{name}: {', '.join(layout.keys)}" for name, layout in sorted(layouts().items()))
    keys = ", ".join(sorted(map(str, reference))) or "none"
    return f"reference: no layout has its keys ({keys}) with such values; known are {known} (docs/verifiers.md)"


def suite_of(reference: Any) -> Suite:
    """Return the tests of a reference of `code`. Raises: DataError as `layout_of`, or naming the right verifier."""
    if isinstance(reference, str) and reference.strip()[:1] not in ("{", "["):
        raise DataError(f"reference: expected JSON of tests, got {reference.strip()!r:.60}")
    name, tests = layout_of(reference)
    if not isinstance(tests, Suite):
        raise DataError(f"reference: the layout {name} has tests of the verifier 'unit_tests', not 'code'; name that")
    return tests


def asserts_of(reference: Any) -> Asserts:
    """Return the tests of a reference of `unit_tests`. Raises: DataError as `suite_of`."""
    name, tests = layout_of(reference)
    if not isinstance(tests, Asserts):
        raise DataError(f"reference: the layout {name} has tests of the verifier 'code', not 'unit_tests'; name that")
    return tests
