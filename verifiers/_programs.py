"""Code that verifiers of programs share: find the program, read its tests, run equal pairs only once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from verizero.pipeline.errors import DataError
from verizero.pipeline.fences import blocks_in, program_among
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.answer import Answer, after_thinking, last_tag, program_places

Mode = Literal["stdin", "function"]
Test = dict[str, Any]
Work = TypeVar("Work")


@dataclass(frozen=True, slots=True)
class Suite:
    """The tests of a reference, and their mode: stdin or function.

    `alternative` is a second reading of the same tests (APPS wraps each expected value in a list of one, and a
    function may itself return such a list); a program is right if it passes all tests of either reading.
    """

    mode: Mode
    tests: tuple[Test, ...]
    fn: str | None = None
    alternative: tuple[Test, ...] | None = None

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
        return Suite(self.mode, tuple(self.tests[i] for i in chosen), self.fn, other)


def program_of(attempt: Attempt, language: str = "python", names: Sequence[str] = ()) -> Answer:
    """Return the program in a response: the last closed fence of that language, else one without a tag, else all of it.

    `names` are what the tests call: the fence that defines them wins over later ones (usage examples follow solutions).
    An unclosed fence or a fence of other languages only is no answer.
    """
    part = after_thinking(attempt)
    if part.text is None:
        return part
    tagged = last_tag(part.text, "answer", program_places(part.text))
    text = tagged.text if tagged.text is not None else part.text
    blocks, left_open = blocks_in(text)
    program = program_among(blocks, language, names)
    if program is not None:
        return Answer(program, "fenced")
    if left_open:
        return Answer(None, "unclosed_fence")
    if blocks:
        others = ", ".join(dict.fromkeys(b.language for b in blocks if b.language))
        return Answer(None, f"no_{language}_block: {f'fences of {others:.80}' if others else 'empty fences'}")
    if attempt.truncated:
        return Answer(None, "truncated")
    return Answer(text.removeprefix("\ufeff"), "bare")


def suite_of(reference: Any) -> Suite:
    """Return the tests of a reference, in the sandbox's form.

    Accepted: {"tests": [...], "fn": "f"?} with function tests {"args", "expected", "fn"?} or stdin tests
    {"input", "output"}; a bare list of such tests; APPS and TACO {"inputs", "outputs", "fn_name"?}, also under
    "input_output"; each also as a JSON string.
    Raises: DataError naming the field if the reference has another form or no test.
    """
    if isinstance(reference, str):
        try:
            reference = json.loads(reference)
        except json.JSONDecodeError as exc:
            raise DataError(f"reference: not JSON ({exc}); expected an object with 'tests' or 'inputs'") from exc
    if isinstance(reference, list):
        reference = {"tests": reference}
    if not isinstance(reference, Mapping):
        raise DataError(f"reference: expected an object with 'tests' or 'inputs', got {type(reference).__name__}")
    if "input_output" in reference:
        return suite_of(reference["input_output"])
    suite = _apps(reference) if "inputs" in reference else _listed(reference)
    if not suite.tests:
        raise DataError("reference: 'tests' is empty; a program is right only against at least one test")
    return suite


def _listed(reference: Mapping[str, Any]) -> Suite:
    tests = reference.get("tests")
    if not isinstance(tests, list) or not all(isinstance(t, Mapping) for t in tests):
        raise DataError(f"reference.tests: expected a list of objects, got {tests!r:.80}")
    fn = reference.get("fn") or reference.get("fn_name")
    made: list[Test] = []
    modes: set[Mode] = set()
    for i, test in enumerate(tests):
        if "input" in test and "output" in test:
            made.append({**test, "input": _lines(test["input"]), "output": _lines(test["output"])})
            modes.add("stdin")
        elif "args" in test and "expected" in test and (test.get("fn") or fn):
            made.append({**test, "fn": test.get("fn") or fn, "args": list(test["args"])})
            modes.add("function")
        else:
            raise DataError(
                f"reference.tests[{i}]: expected 'input' and 'output', or 'args', 'expected' and 'fn'; "
                f"got the keys {', '.join(sorted(map(str, test)))}"
            )
    if len(modes) > 1:
        raise DataError("reference.tests: stdin tests and function tests are mixed; split the row in two")
    return Suite("function" if "function" in modes else "stdin", tuple(made), fn)


def _apps(reference: Mapping[str, Any]) -> Suite:
    inputs, outputs = reference["inputs"], reference.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise DataError("reference.inputs and reference.outputs: expected two lists of equal length")
    fn = reference.get("fn_name")
    if not fn:
        pairs = zip(inputs, outputs, strict=True)
        return Suite("stdin", tuple({"input": _lines(i), "output": _lines(o)} for i, o in pairs))
    calls = [_json_arguments(i) for i in inputs]
    as_given = tuple({"fn": fn, "args": a, "expected": o} for a, o in zip(calls, outputs, strict=True))
    if not all(isinstance(o, list) and len(o) == 1 for o in outputs):
        return Suite("function", as_given, fn)
    unwrapped = tuple({"fn": fn, "args": a, "expected": o[0]} for a, o in zip(calls, outputs, strict=True))
    return Suite("function", unwrapped, fn, alternative=as_given)


def _json_arguments(arguments: Any) -> list[Any]:
    if isinstance(arguments, str):
        return [json.loads(line) for line in arguments.split("\n") if line.strip()]
    return list(arguments) if isinstance(arguments, list) else [arguments]


def _lines(text: Any) -> str:
    return "\n".join(map(str, text)) if isinstance(text, list) else str(text)


def grade_distinct(
    attempts: Sequence[Attempt],
    prepare: Callable[[Attempt], Work | Verdict],
    key: Callable[[Work], str],
    run: Callable[[list[Work]], Sequence[Verdict]],
) -> list[Verdict]:
    """Return one verdict per attempt, in order. `run` grades all work together; work with equal keys runs once.

    `prepare` returns the work of an attempt, or its verdict if there is nothing to run. A broken reference is
    "verifier_error" for its own attempt only.
    """
    verdicts: list[Verdict | None] = []
    keys: list[str] = []
    distinct: dict[str, Work] = {}
    for attempt in attempts:
        try:
            work = prepare(attempt)
            name = "" if isinstance(work, Verdict) else key(work)
        except Exception as exc:  # whatever it is, it is of this row and of no other
            work = Verdict("verifier_error", reason=f"bad_reference: {exc}"[:300])
        if isinstance(work, Verdict):
            verdicts.append(work)
            continue
        keys.append(name)
        distinct.setdefault(name, work)
        verdicts.append(None)
    graded = dict(zip(distinct, run(list(distinct.values())) if distinct else [], strict=True))
    rest = iter(keys)
    return [graded[next(rest)] if verdict is None else verdict for verdict in verdicts]
