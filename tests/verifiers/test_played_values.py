"""What travels between a test and a program: values with their types, references, changes, exceptions, output."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.verifiers.suites import rows_of
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.unit_tests import unit_tests

RIGHT, WRONG, BROKEN = rows_of("right"), rows_of("wrong"), rows_of("broken")
ECHO = "def f(x): return x"
KIND = "def kind(x): return type(x).__module__, type(x).__qualname__"
PLAIN = [
    "None", "True", "3", "-7", "10**30", "-(10**4000)", "2.5", "float('inf')", "1e-300", "3+4j", "'a\\u00e9\\ud800'",
    "b'\\x00\\xff'", "bytearray(b'ab')", "[1, [2.0, (3,)]]", "(1, [2], {3})", "{'a': 1, 2: (3, None), (4, 5): {}}",
    "{1, 2}", "frozenset({(1, 2)})", "range(1, 9, 3)", "slice(1, None, 2)", "collections.deque([1, 2], 5)",
    "collections.Counter('aab')", "collections.OrderedDict([('b', 1), ('a', 2)])",
    "collections.defaultdict(list, {1: [2]})", "fractions.Fraction(1, 3)", "decimal.Decimal('1.10')",
    "datetime.date(2024, 2, 29)", "datetime.datetime(2024, 1, 2, 3, 4, tzinfo=datetime.timezone.utc)",
    "datetime.timedelta(days=1, seconds=2)", "datetime.time(1, 2)", "pathlib.Path('/a/b')", "re.compile('a+', re.I)",
    "int", "{'a': 1}.keys()", "{'a': 1}.items()", "{'a': 1}.values()",
]  # fmt: skip
MODULES = "import collections, fractions, decimal, datetime, pathlib, re"


def same(value: str) -> Any:
    """A test that a value comes back equal, and of the same type."""
    equal = "True" if value.endswith(".values()") else "x == y"
    return {
        "setup": MODULES,
        "tests": f"x = {value}\ny = f(x)\nassert repr(x) == repr(y) and type(x) is type(y) and {equal}",
    }


@cache
def verdicts() -> dict[str, Verdict]:
    """All rows, graded in one batch."""
    rows: dict[str, tuple[str, Any]] = {f"same {x}": (ECHO, same(x)) for x in PLAIN}
    kind = "assert kind(x) == (type(x).__module__, type(x).__qualname__)"
    rows |= {f"kind {x}": (KIND, {"setup": MODULES, "tests": f"x = {x}\n{kind}"}) for x in PLAIN}
    for name, known in (("right", RIGHT), ("wrong", WRONG), ("broken", BROKEN)):
        rows |= {f"{name} {title}": row[:2] for title, row in known.items()}
    said = unit_tests.bind({"cpu_s": 5}).score([Attempt(program, reference) for program, reference in rows.values()])
    return dict(zip(rows, said, strict=True))


@pytest.mark.run
@pytest.mark.parametrize("value", PLAIN)
def test_a_plain_value_keeps_its_type_both_ways(value: str) -> None:
    assert verdicts()[f"kind {value}"].is_correct, verdicts()[f"kind {value}"].reason
    assert verdicts()[f"same {value}"].is_correct, verdicts()[f"same {value}"].reason


@pytest.mark.run
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_passes(name: str) -> None:
    assert verdicts()[f"right {name}"].is_correct, verdicts()[f"right {name}"].reason


@pytest.mark.run
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_fails_and_the_reason_says_why(name: str) -> None:
    said = verdicts()[f"wrong {name}"]
    assert (said.status, said.score) == ("graded", 0.0)
    assert WRONG[name].reason in said.reason, said.reason


@pytest.mark.run
@pytest.mark.parametrize("name", BROKEN)
def test_a_test_that_cannot_be_played_is_no_wrong_answer(name: str) -> None:
    said = verdicts()[f"broken {name}"]
    assert said.status == "verifier_error"
    assert BROKEN[name].reason in said.reason, said.reason
