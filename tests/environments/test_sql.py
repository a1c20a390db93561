"""Databases of episodes: what a query may do, its limits, and the comparison with the reference's rows."""

from __future__ import annotations

import sqlite3
import time

import pytest

from tests.environments.talk import made, played, texts
from verizero.pipeline.environments.tools import sql
from verizero.pipeline.environments.tools.base import WrongCall
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Prompt

SETUP = "create table pets(kind, age); insert into pets values (3, 4), (3, 5), (1, null); create view old as select 1 x"
OTHER = "create table pets(kind, age); insert into pets values (3, 40), (1, 5)"
REFERENCE = {"setup": [SETUP, OTHER], "query": "select sum(age) from pets where kind=3"}


def query(statement: str, **params: object) -> str:
    """The answer to a query on a new database."""
    box = sql.tools(sql.Params(setup=SETUP, **params), Prompt("p", "q", "environment", None))
    try:
        return box.tools["query"].answer({"statement": statement})
    finally:
        box.close()


@pytest.mark.parametrize(
    ("statement", "answer"),
    [
        ("select kind, age from pets order by age", "1, null\n3, 4\n3, 5"),
        ("select * from pets where kind = 9;", "no rows"),
        ("select x'00ff'", "2 bytes"),
        ("with recursive c(n) as (select 1 union all select n + 1 from c limit 3) select sum(n) from c", "6"),
        ("select date('2024-02-01', '+1 day')", "2024-02-02"),
    ],
)
def test_queries(statement: str, answer: str) -> None:
    assert query(statement) == answer


@pytest.mark.parametrize(
    "statement",
    ["insert into pets values (1, 1)", "delete from pets", "drop table pets", "create table t(a)",
     "pragma user_version", "attach ':memory:' as other", "vacuum", "select random()", "select hex(randomblob(4))",
     "select current_timestamp",
     "select date('now')", "select load_extension('x')", "select 1; select 2", "selec", "select nothing from pets",
     "select ?", "\x00", "a\ud800", "select '" + "a" * 5000 + "'", "begin"],
)  # fmt: skip
def test_what_a_reader_may_not_do_is_a_mistake(statement: str) -> None:
    with pytest.raises(WrongCall):
        query(statement)


def test_limits_are_counted_and_not_timed() -> None:
    endless = "with recursive c(n) as (select 1 union all select n + 1 from c) select count(*) from c"
    begun = time.perf_counter()
    with pytest.raises(WrongCall, match="interrupted"):
        query(endless)
    with pytest.raises(WrongCall, match="too big"):
        query("select zeroblob(1000000)")
    assert time.perf_counter() - begun < 30
    many = "with recursive c(n) as (select 1 union all select n + 1 from c limit 9) select n from c"
    assert query(many, max_rows=2) == "1\n2\n..."
    assert query(many, max_rows=9).endswith("9")


def test_each_statement_has_the_whole_of_its_steps() -> None:
    box = sql.tools(sql.Params(setup=SETUP, max_steps=20_000), Prompt("p", "q", "environment", None))
    half = "with recursive c(n) as (select 1 union all select n + 1 from c limit 1000) select count(*) from c"
    assert [box.tools["query"].answer({"statement": half}) for _ in range(5)] == ["1000"] * 5
    box.close()


def test_a_writer_changes_its_own_database_only() -> None:
    prompt = Prompt("p", "q", "environment", None)
    first, second = (sql.tools(sql.Params(setup=SETUP, writes=True), prompt) for _ in range(2))
    assert first.tools["query"].answer({"statement": "create table t(a, b)"}) == "no rows"
    assert first.tools["tables"].answer({}) == "old(x)\npets(kind, age)\nt(a, b)"
    assert second.tools["tables"].answer({}) == "old(x)\npets(kind, age)"
    for statement in ("attach ':memory:' as other", "pragma max_page_count = 100000000", "select random()"):
        with pytest.raises(WrongCall):
            first.tools["query"].answer({"statement": statement})
    first.close()
    with pytest.raises(sqlite3.ProgrammingError):
        first.tools["query"].function("select 1")
    second.close()
    second.close()


def test_a_writer_cannot_fill_the_memory() -> None:
    box = sql.tools(sql.Params(setup=SETUP, writes=True, max_steps=100_000_000), Prompt("p", "q", "environment", None))
    box.tools["query"].answer({"statement": "create table t(a)"})
    many = "with recursive c(n) as (select 1 union all select n+1 from c limit 9999)"
    grow = f"insert into t {many} select zeroblob(9000) from c"
    with pytest.raises(WrongCall, match="full"):
        box.tools["query"].answer({"statement": grow})
    box.close()


def test_asking_and_then_the_query_that_counts() -> None:
    environment = made("sql", REFERENCE)
    replies = played(environment, [("tables", {}), ("query", {"statement": "select 1"}), REFERENCE["query"] + ";"])
    assert texts(replies) == ["old(x)\npets(kind, age)", "1"]
    assert replies[-1].outcome.reason == "same_rows"
    assert replies[-1].outcome.is_correct


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("select 9", "other_rows"),  # right on the first database alone
        ("select sum(age) from pets where kind=1", "other_rows"),
        ("select sum(age), 1 from pets where kind=3", "other_rows"),
        ("select sum(age) from dogs", "error: no such table: dogs"),
        ("delete from pets", "error: not authorized"),
        ("", "empty"),
    ],
)
def test_wrong_queries(query: str, reason: str) -> None:
    outcome = played(made("sql", REFERENCE), [query])[-1].outcome
    assert (outcome.score, outcome.reason) == (0.0, reason)


def test_order_counts_where_the_reference_has_one() -> None:
    plain = {"setup": SETUP, "query": "select age from pets"}
    ordered = {"setup": SETUP, "query": "select age from pets order by age desc"}
    moves = ["```sql\nselect age from pets order by age\n```\nIt gives\n```\n3\n```"]
    assert played(made("sql", plain), moves)[-1].outcome.is_correct
    assert not played(made("sql", ordered), moves)[-1].outcome.is_correct
    assert played(made("sql", {**ordered, "ordered": False}), moves)[-1].outcome.is_correct
    duplicates = {"setup": SETUP, "query": "select kind from pets"}
    assert not played(made("sql", duplicates), ["select distinct kind from pets"])[-1].outcome.is_correct


def test_without_exploring_there_is_the_schema_alone() -> None:
    environment = made("sql", REFERENCE, explore=False)
    assert [t.name for t in environment.start().tools] == ["tables"]
    environment.close()


@pytest.mark.parametrize(
    ("reference", "words"),
    [("x", "answer.setup"), ({"setup": []}, "answer.setup"), ({"setup": SETUP}, "answer.query"),
     ({"setup": "creat", "query": "select 1"}, "the script fails"), ({"setup": SETUP, "query": "x"}, "answer.query")],
)  # fmt: skip
def test_a_malformed_row_is_not_the_policys_fault(reference: object, words: str) -> None:
    with pytest.raises(DataError, match=words):
        made("sql", reference)
