"""SQL and regular expressions, in the sandbox."""

from __future__ import annotations

from typing import Any

import pytest

from tests.verifiers.fake_sandbox import FakeSandbox
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.base import load
from verizero.verifiers.in_sandbox.query import result_of
from verizero.verifiers.sql import SqlParams
from verizero.verifiers.sql import grade as grade_sql

STAFF = (
    "CREATE TABLE staff (name TEXT, team TEXT, pay REAL);"
    "INSERT INTO staff VALUES ('Ada', 'a', 30), ('Bo', 'b', 20), ('Cy', 'a', 10.5);"
)
OTHER_STAFF = STAFF + "INSERT INTO staff VALUES ('Di', 'b', 99);"
PAY = {"setup": [STAFF, OTHER_STAFF], "query": "SELECT team, SUM(pay) FROM staff GROUP BY team"}
TOP = {"setup": STAFF, "query": "SELECT name FROM staff ORDER BY pay DESC"}
COUNTING = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n)"
TWO_WORDS = {"match": ["ab cd", "x y"], "no_match": ["abcd", "a b c", ""]}

ROWS: list[tuple[str, dict[str, Any], Any, str, float | str]] = [
    ("sql", {}, PAY, "```sql\nSELECT team, SUM(pay) FROM staff GROUP BY team;\n```", 1),
    ("sql", {}, PAY, "SELECT team AS t, TOTAL(pay) FROM staff GROUP BY 1 ORDER BY 2", 1),
    ("sql", {}, PAY, "WITH x AS (SELECT * FROM staff) SELECT team, SUM(pay) FROM x GROUP BY team", 1),
    ("sql", {}, PAY, "<think>group</think>SELECT team, SUM(pay) FROM staff GROUP BY team", 1),
    ("sql", {}, PAY, "SELECT SUM(pay), team FROM staff GROUP BY team", 0),
    ("sql", {}, PAY, "SELECT 'a', 40.5 UNION ALL SELECT 'b', 20", 0),
    ("sql", {}, PAY, "SELECT team, SUM(pay) FROM staff", 0),
    ("sql", {}, PAY, "SELECT team, SUM(pay) FROM staff GROUP BY team UNION ALL SELECT 'a', 1", 0),
    ("sql", {}, PAY, "DELETE FROM staff", 0),
    ("sql", {}, PAY, "SELECT 1; SELECT team, SUM(pay) FROM staff GROUP BY team", 0),
    ("sql", {}, PAY, "ATTACH '/tmp/x.db' AS x", 0),
    ("sql", {}, PAY, "PRAGMA writable_schema = 1", 0),
    ("sql", {}, PAY, "SELECT load_extension('/tmp/x.so')", 0),
    ("sql", {}, PAY, "SELECT hex(zeroblob(1000000000))", 0),
    ("sql", {}, PAY, "I would group the rows by team.", 0),
    ("sql", {}, PAY, "", "no_answer"),
    ("sql", {}, PAY, "```sql\nSELECT", "no_answer"),
    ("sql", {}, TOP, "SELECT name FROM staff ORDER BY pay DESC", 1),
    ("sql", {}, TOP, "SELECT name FROM staff ORDER BY pay", 0),
    ("sql", {"ordered": False}, TOP, "SELECT name FROM staff ORDER BY pay", 1),
    ("sql", {}, {"setup": STAFF, "query": "SELECT nothing FROM staff"}, "SELECT 1", "verifier_error"),
    ("sql", {}, {"setup": "CREATE", "query": "SELECT 1"}, "SELECT 1", "verifier_error"),
    ("sql", {}, "SELECT 1", "SELECT 1", "verifier_error"),
    ("sql", {"max_rows": 100}, TOP, f"{COUNTING} SELECT i FROM n", 0),
    ("sql", {"max_steps": 100_000}, TOP, f"{COUNTING} SELECT SUM(i) FROM n", "timeout"),
    ("regex", {}, r"\d{4}-\d{2}-\d{2}", r"\boxed{2024-02-30}", 1),
    ("regex", {}, r"\d{4}-\d{2}-\d{2}", "Answer: 24-02-30", 0),
    ("regex", {}, r"\d{4}", "Answer: 12345", 0),
    ("regex", {"whole": False}, r"\d{4}", "Answer: 12345", 1),
    ("regex", {"flags": "i"}, {"pattern": "yes|no"}, "YES", 1),
    ("regex", {"where": "response", "flags": "s"}, "a.*b", "a\nb", 1),
    ("regex", {}, "yes|no", r"\boxed{yes} or \boxed{no}", 0),
    ("regex", {}, "yes|no", "", "no_answer"),
    ("regex", {"cpu_s": 0.2, "wall_s": 1.0}, "(a+)+", "a" * 40 + "b", "timeout"),
    ("regex", {}, TWO_WORDS, r"`\w+ \w+`", 1),
    ("regex", {}, TWO_WORDS, "```\n\\w+ \\w+\n```", 1),
    ("regex", {}, TWO_WORDS, ".*", 0),
    ("regex", {}, TWO_WORDS, "ab cd|x y", 1),
    ("regex", {}, TWO_WORDS, r"(\w+", 0),
    ("regex", {}, TWO_WORDS, "(?!)", 0),
    ("regex", {"grading": "fraction"}, TWO_WORDS, ".*", 0.4),
    ("regex", {"cpu_s": 0.2, "wall_s": 1.0}, {"match": ["a"], "no_match": ["a" * 40 + "b"]},
     "<answer>(a+)+</answer>", "timeout"),
    ("regex", {}, {"match": ["a"], "no_match": []}, ".*", "verifier_error"),
    ("regex", {}, "", "x", "verifier_error"),
]  # fmt: skip


def outcome(said: Verdict) -> float | str:
    return said.score if said.status == "graded" else said.status


@pytest.mark.parametrize(("name", "params", "reference", "response", "wanted"), ROWS)
def test_every_row_gets_its_label(name: str, params: Any, reference: Any, response: str, wanted: Any) -> None:
    said = load(name).bind(params).score([Attempt(response, reference)])[0]
    assert outcome(said) == (wanted if isinstance(wanted, str) else pytest.approx(wanted)), said.reason


def test_a_sandbox_that_is_down_is_no_wrong_query() -> None:
    said = grade_sql([Attempt("SELECT 1", PAY)], SqlParams(), FakeSandbox(down=True))
    assert said[0].status == "sandbox_error"


def test_results_are_equal_exactly_when_the_rows_are() -> None:
    """The comparable line against a slow double that compares the rows themselves, over pairs of queries."""
    import sqlite3
    from collections import Counter

    queries = ["SELECT 1", "SELECT 1.0", "SELECT '1'", "SELECT NULL", "SELECT 1, 2", "SELECT 2, 1", "SELECT x'31'"]
    queries += [
        "SELECT 1 UNION ALL SELECT 2",
        "SELECT 2 UNION ALL SELECT 1",
        "SELECT 1 UNION ALL SELECT 1",
        "SELECT 0.1 + 0.2",
    ]
    queries += [
        "SELECT 0.3",
        "SELECT 1 WHERE 0",
        "SELECT 9007199254740993",
        "SELECT 9007199254740992",
        "SELECT 'a' || char(10)",
    ]

    def near(cell: Any) -> Any:
        return (
            round(cell, 8)
            if isinstance(cell, float)
            else (type(cell).__name__ if not isinstance(cell, int) else "", cell)
        )

    def rows(query: str) -> Counter[Any]:
        got = sqlite3.connect(":memory:").execute(query).fetchall()
        plain = [tuple(int(c) if isinstance(c, float) and c.is_integer() else c for c in row) for row in got]
        return Counter(tuple(near(c) for c in row) for row in plain)

    for a in queries:
        for b in queries:
            equal = result_of("", a, False, 100, 10_000) == result_of("", b, False, 100, 10_000)
            assert equal == (rows(a) == rows(b)), (a, b)
