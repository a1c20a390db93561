"""A query to write for a database; the policy must call a tool to see its schema.

Calls of `tables` and `query` are answered; the first message without a call is the query that counts. It is right if
its rows are those of the reference's query, on every database of the row: {"setup": script | [scripts], "query": query,
"ordered"?: bool}. The tools see the first database; others, with other data, tell a query from a constant result.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pydantic import Field

from verizero.pipeline.environments._answers import answer_of
from verizero.pipeline.environments.base import EnvironmentParams
from verizero.pipeline.environments.tool_use import ToolEpisode
from verizero.pipeline.environments.tools import sql
from verizero.pipeline.environments.tools.base import Toolbox
from verizero.pipeline.errors import DataError
from verizero.pipeline.fences import blocks_in, program_among
from verizero.pipeline.types import Message, Prompt, Verdict

EXAMPLE = Prompt(
    "sql/1",
    "sum age where kind = 3",
    "environment",
    {
        "setup": "create table pets(kind, age); insert into pets values (3, 4), (3, 5), (1, 7)",
        "query": "select sum(age) from pets where kind=3",
    },
)
Rows = list[tuple[Any, ...]]


class Params(EnvironmentParams, sql.Params):
    """The limits of a statement, and what the policy may do before its query."""

    explore: bool = Field(True, description="false: the tool `tables` alone, so that the query is written unseen")
    compared_rows: int = Field(10_000, ge=1, description="a query with more rows is wrong")


def environment(params: Params, prompt: Prompt, task_seed: int, sample_seed: int) -> ToolEpisode:
    """Return an episode on a new database. Raises: DataError for a malformed reference, or a query of it that fails."""
    setups, gold, ordered = _reference(prompt.reference)
    expected = [_expected_rows(setup, gold, params) for setup in setups]
    box = sql.tools(params.model_copy(update={"setup": setups[0]}), prompt)
    if not params.explore:
        box = Toolbox([box.tools["tables"]], [box.close])

    def grade(message: Message) -> Verdict:
        query = _query(answer_of(message))
        if not query:
            return Verdict("no_answer", reason="empty")
        for setup, rows in zip(setups, expected, strict=True):
            try:
                got = rows if query == gold else _rows(setup, query, params)  # the same query has the same rows
            except (sqlite3.Error, sqlite3.Warning, ValueError) as exc:
                return Verdict("graded", 0.0, f"error: {exc}"[:200], query[:1000])
            if got != rows if ordered else _bag(got) != _bag(rows):
                return Verdict("graded", 0.0, "other_rows", query[:1000])
        return Verdict("graded", 1.0, "same_rows", query[:1000])

    return ToolEpisode(box, grade)


@lru_cache(maxsize=16_384)  # two databases of each of the generator's 4,000 tasks, and room
def _expected_rows(setup: str, query: str, params: Params) -> Rows:
    try:
        return _rows(setup, query, params)
    except (sqlite3.Error, ValueError) as exc:
        raise DataError(f"answer.query: {exc}; query: {query:.100}") from exc


def _rows(setup: str, query: str, params: Params) -> Rows:
    """Return the result of a query on a new database. Raises: ValueError if it is too long; sqlite3.Error."""
    database = sql.Database(setup, params.model_copy(update={"writes": False}))
    try:
        rows = database.rows(query, params.compared_rows + 1)
    finally:
        database.close()
    if len(rows) > params.compared_rows:
        raise ValueError(f"more than {params.compared_rows} rows")
    return rows


def _bag(rows: Rows) -> Counter[tuple[Any, ...]]:
    return Counter(rows)


def _query(answer: str) -> str:
    """Return the query in the answer's fences, or all of it."""
    return (program_among(blocks_in(answer)[0], "sql") or answer).strip()


def _reference(reference: Any) -> tuple[list[str], str, bool]:
    setups = sql.setups_of(reference)
    query = reference.get("query") if isinstance(reference, Mapping) else None
    if not isinstance(query, str) or not query.strip():
        raise DataError(f"answer.query: expected an SQL query, got {query!r:.80}")
    ordered = reference.get("ordered")
    if ordered is None:
        ordered = "order by" in " ".join(query.lower().rsplit(")", 1)[-1].split())
    return setups, query, bool(ordered)
