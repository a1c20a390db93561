"""Environments with known ends: databases that are asked, and numbers that are guessed."""

import pytest

from tests.environments.talk import halving, made, played, texts
from verizero.pipeline.environments.base import load
from verizero.pipeline.environments.tools import sql
from verizero.pipeline.environments.tools.base import WrongCall
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Prompt

SETUP = "create table pets(kind, age); insert into pets values (3, 4), (3, 5), (1, null); create view old as select 1 x"
OTHER = "create table pets(kind, age); insert into pets values (3, 40), (1, 5)"
REFERENCE = {"setup": [SETUP, OTHER], "query": "select sum(age) from pets where kind=3"}


def query(statement: str, **params: object) -> str:
    """The answer to a query on a new database."""
    box = sql.tools(sql.Params(**params), Prompt("p", "q", "environment", {"setup": SETUP}))
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
def test_queries(statement, answer):
    assert query(statement) == answer


@pytest.mark.parametrize(
    "statement",
    ["insert into pets values (1, 1)", "delete from pets", "drop table pets", "create table t(a)",
     "pragma user_version", "attach ':memory:' as other", "vacuum", "select random()", "select hex(randomblob(4))",
     "select current_timestamp",
     "select date('now')", "select load_extension('x')", "select 1; select 2", "selec", "select nothing from pets",
     "select ?", "\x00", "a\ud800", "select '" + "a" * 5000 + "'", "begin"],
)  # fmt: skip
def test_what_a_reader_may_not_do_is_a_mistake(statement):
    with pytest.raises(WrongCall):
        query(statement)


def test_limits_are_counted_and_not_timed():
    endless = "with recursive c(n) as (select 1 union all select n + 1 from c) select count(*) from c"
    with pytest.raises(WrongCall, match="interrupted"):
        query(endless)
    with pytest.raises(WrongCall, match="too big"):
        query("select zeroblob(1000000)")
    many = "with recursive c(n) as (select 1 union all select n + 1 from c limit 9) select n from c"
    assert query(many, max_rows=2) == "1\n2\n..."
    assert query(many, max_rows=9).endswith("9")


def test_asking_and_then_the_query_that_counts():
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
def test_wrong_queries(query, reason):
    outcome = played(made("sql", REFERENCE), [query])[-1].outcome
    assert (outcome.score, outcome.reason) == (0.0, reason)


def test_order_counts_where_the_reference_has_one():
    plain = {"setup": SETUP, "query": "select age from pets"}
    ordered = {"setup": SETUP, "query": "select age from pets order by age desc"}
    moves = ["```sql\nselect age from pets order by age\n```\nIt gives\n```\n3\n```"]
    assert played(made("sql", plain), moves)[-1].outcome.is_correct
    assert not played(made("sql", ordered), moves)[-1].outcome.is_correct
    assert played(made("sql", {**ordered, "ordered": False}), moves)[-1].outcome.is_correct
    duplicates = {"setup": SETUP, "query": "select kind from pets"}
    assert not played(made("sql", duplicates), ["select distinct kind from pets"])[-1].outcome.is_correct


@pytest.mark.parametrize(
    ("reference", "words"),
    [("x", "answer: "), ({"setup": [], "query": "x"}, "answer.setup"), ({"setup": SETUP}, "answer: "),
     ({"setup": "creat", "query": "select 1"}, "answer.setup"), ({"setup": SETUP, "query": "x"}, "answer.query"),
     ({"setup": SETUP, "query": " ; "}, "answer.query: expected an SQL query"),
     ({"setup": "create view v as select * from absent", "query": "select 1"}, "answer.setup")],
)  # fmt: skip
def test_a_malformed_row_is_not_the_policys_fault(reference, words):
    with pytest.raises(DataError, match=words):
        made("sql", reference)


def test_halving_finds_31_of_32_numbers():
    games = [halving(made("guess", number)) for number in range(1, 33)]
    assert sum(last.outcome.is_correct for *_, last in games) == 31
    assert {text for game in games for text in texts(game[1:])} == {"higher", "lower"}
    assert max(map(len, games)) == 1 + 5


@pytest.mark.parametrize("word", ["", "33", "0", "-4", "16.0", "16 17", "sixteen", "٣", "9" * 400, "<think>16"])
def test_what_is_no_number_of_the_range_uses_up_a_try(word):
    replies = played(made("guess", 16, tries=2), [word, word])
    assert texts(replies) == ["a number from 1 to 32"]
    assert (replies[-1].done, replies[-1].outcome.score, replies[-1].outcome.reason) == (True, 0.0, "out_of_tries")


def test_a_row_without_a_number_gets_one_by_its_task_seed():
    bound = load("guess").bind({"high": 1000})
    numbers = [
        bound.make(Prompt("p", "q", "environment", None), seed, sample).number
        for seed in range(50)
        for sample in (1, 2)
    ]
    assert numbers[::2] == numbers[1::2], "one task for all members of a group"
    assert len(set(numbers)) > 40
    assert all(1 <= n <= 1000 for n in numbers)


@pytest.mark.parametrize("reference", [0, 33, "x", {"a": 1}, 1.5, True])
def test_a_number_outside_is_refused(reference):
    with pytest.raises(DataError, match="expected a number from 1 to 32"):
        made("guess", reference)
