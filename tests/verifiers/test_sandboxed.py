"""SQL, in the sandbox."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.verifiers.fake_sandbox import FakeSandbox
from verizero.pipeline.types import Attempt
from verizero.verifiers.base import load
from verizero.verifiers.in_sandbox.query import result_of
from verizero.verifiers.sql import SqlParams
from verizero.verifiers.sql import grade as grade_sql

ROWS = list(map(json.loads, Path(__file__).with_name("sandboxed.jsonl").read_text(encoding="utf-8").splitlines()))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["response"][:40])
def test_every_row_gets_its_label(row: Any) -> None:
    said = load(row["verifier"]).bind(row.get("params")).score([Attempt(row["response"], row["reference"])])[0]
    assert (said.score if said.status == "graded" else said.status) == row["wanted"], said.reason


def test_a_sandbox_that_is_down_is_no_wrong_query() -> None:
    said = grade_sql([Attempt("SELECT 1", ROWS[0]["reference"])], SqlParams(), FakeSandbox(down=True))
    assert said[0].status == "sandbox_error"


def test_results_are_equal_exactly_when_the_rows_are() -> None:
    """The comparable line against a slow double that compares the rows themselves, over pairs of queries."""
    values = ("1", "1.0", "'1'", "NULL", "1, 2", "2, 1", "x'31'", "1 UNION ALL SELECT 2", "2 UNION ALL SELECT 1",
              "1 UNION ALL SELECT 1", "0.1 + 0.2", "0.3", "1 WHERE 0", "9007199254740993", "9007199254740992",
              "'a' || char(10)")  # fmt: skip
    queries = [f"SELECT {value}" for value in values]

    def near(cell: Any) -> Any:
        return (
            round(cell, 8) if isinstance(cell, float) else ("" if isinstance(cell, int) else type(cell).__name__, cell)
        )

    def rows(query: str) -> Counter[Any]:
        got = sqlite3.connect(":memory:").execute(query).fetchall()
        plain = [tuple(int(c) if isinstance(c, float) and c.is_integer() else c for c in row) for row in got]
        return Counter(tuple(near(c) for c in row) for row in plain)

    for a in queries:
        for b in queries:
            equal = result_of("", a, False, 100, 10_000) == result_of("", b, False, 100, 10_000)
            assert equal == (rows(a) == rows(b)), (a, b)
