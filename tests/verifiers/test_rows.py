"""Every labelled answer gets its verdict, in any order, from any thread, twice; queries in the sandbox."""

import json
import random
import sqlite3
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

import pytest

from tests.verifiers.rows import WITHOUT_SANDBOX
from verizero.pipeline.types import Attempt
from verizero.verifiers.base import load
from verizero.verifiers.in_sandbox.query import result_of

SANDBOXED = [
    (row["verifier"], row.get("params", {}), row["reference"], row["response"], row["wanted"])
    for row in map(json.loads, Path(__file__).with_name("sandboxed.jsonl").read_text(encoding="utf-8").splitlines())
]


def graded(rows):
    """Return a verdict for each row; rows of one verifier and the same parameters are graded as one batch."""
    verdicts = {}
    for _, same in groupby(sorted(range(len(rows)), key=lambda i: repr(rows[i][:2])), key=lambda i: repr(rows[i][:2])):
        places = list(same)
        name, params = rows[places[0]][:2]
        attempts = [Attempt(rows[i][3], rows[i][2]) for i in places]
        verdicts |= dict(zip(places, load(name).bind(params).score(attempts), strict=True))
    return [verdicts[i] for i in range(len(rows))]


@pytest.mark.parametrize("rows", [WITHOUT_SANDBOX, SANDBOXED], ids=["here", "in the sandbox"])
def test_every_row_gets_its_label(rows):
    for verdict, row in zip(graded(rows), rows, strict=True):
        assert (verdict.score if verdict.status == "graded" else verdict.status) == row[4], (row, verdict.reason)


def test_threads_and_order_change_nothing():
    together = [(v.status, v.score, v.reason) for v in graded(WITHOUT_SANDBOX)] * 3
    order = list(range(len(together)))
    random.Random(7).shuffle(order)
    with ThreadPoolExecutor(8) as threads:
        alone = threads.map(lambda i: graded([WITHOUT_SANDBOX[i % len(WITHOUT_SANDBOX)]])[0], order)
        assert [(v.status, v.score, v.reason) for v in alone] == [together[i] for i in order]


def test_results_of_queries_are_equal_exactly_when_the_rows_are():
    """The comparable line against a slow double that compares the rows themselves, over pairs of queries."""
    values = ("1", "1.0", "'1'", "NULL", "1, 2", "2, 1", "x'31'", "1 UNION ALL SELECT 2", "2 UNION ALL SELECT 1",
              "1 UNION ALL SELECT 1", "0.1 + 0.2", "0.3", "1 WHERE 0", "9007199254740993", "9007199254740992",
              "'a' || char(10)")  # fmt: skip
    queries = [f"SELECT {value}" for value in values]

    def near(cell):
        if isinstance(cell, float):
            return round(cell, 8)
        return "" if isinstance(cell, int) else type(cell).__name__, cell

    def rows(query):
        got = sqlite3.connect(":memory:").execute(query).fetchall()
        plain = [tuple(int(c) if isinstance(c, float) and c.is_integer() else c for c in row) for row in got]
        return Counter(tuple(near(c) for c in row) for row in plain)

    results = {q: (result_of("", q, False, 100, 10_000), rows(q)) for q in queries}
    for a, (line, of_a) in results.items():
        for b, (other, of_b) in results.items():
            assert (line == other) == (of_a == of_b), (a, b)
