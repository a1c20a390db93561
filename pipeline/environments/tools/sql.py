"""Tools for an SQL database: its tables, and queries. Each episode has its own database, which can only be read.

SQLite in memory, with limits in steps of its virtual machine, never in seconds. Functions whose results differ from
call to call, such as random numbers and today's date, are refused.
"""

from __future__ import annotations

import re
import sqlite3
from typing import Any

from pydantic import Field

from verizero.pipeline.environments.tools.base import Toolbox, ToolParams, tool
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Prompt
from verizero.verifiers.in_sandbox.query import allow_reading, opened, rows_of
from verizero.verifiers.sql import setups_of

REFUSED = frozenset({"random", "randomblob", "current_time", "current_date", "current_timestamp"})
"""Functions whose results differ from one call to the next."""
NOW = re.compile(r"""['"]\s*now\s*['"]""", re.IGNORECASE)
MAX_STATEMENT, MAX_VALUE = 4_000, 16_000
"""Characters of a statement, and bytes of a value."""


class Params(ToolParams):
    """The limits of a statement."""

    max_rows: int = Field(50, ge=1, description="rows that are shown")
    max_steps: int = Field(200_000, ge=1000, description="work of a statement, in steps of SQLite's virtual machine")


def tools(params: Params, prompt: Prompt) -> Toolbox:
    """Return the tools `tables` and `query` on a new database. Raises: DataError if the row's script fails."""
    setup = setups_of(prompt.reference, "answer")[0]
    try:
        database = opened(setup)
        known = _tables(database)
    except sqlite3.Error as exc:
        raise DataError(f"answer.setup: the script fails: {exc}; script: {setup:.100}") from exc
    allow_reading(database, REFUSED, MAX_VALUE)

    @tool
    def tables() -> str:
        """Return the tables with their columns, one in a line."""
        return known

    @tool(wrong=(sqlite3.Error, sqlite3.Warning))
    def query(statement: str) -> str:
        """Return the rows of an SQL statement, one in a line, columns divided by commas."""
        rows = rows_of(database, checked(statement), params.max_rows + 1, params.max_steps)
        lines = [", ".join(_shown(value) for value in row) for row in rows[: params.max_rows]]
        return "\n".join(lines + ["..."] * (len(rows) > params.max_rows)) or "no rows"

    return Toolbox([tables, query], [database.close])


def checked(statement: str) -> str:
    """Return the statement without its semicolon. Raises: ValueError if it is too long or asks for the present time."""
    if len(statement) > MAX_STATEMENT:
        raise ValueError(f"the statement has more than {MAX_STATEMENT} characters")
    if NOW.search(statement):
        raise ValueError("the present time is not available")
    return statement.strip().rstrip(";")


def _tables(database: sqlite3.Connection) -> str:
    names = database.execute(
        "select name from sqlite_master where type in ('table', 'view') and name not like 'sqlite%' order by name"
    ).fetchall()
    columns = {n: database.execute("select name from pragma_table_info(?)", (n,)).fetchall() for (n,) in names}
    return "\n".join(f"{name}({', '.join(c for (c,) in some)})" for name, some in columns.items()) or "no tables"


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return "null" if value is None else str(value)
