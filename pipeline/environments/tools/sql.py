"""Tools for an SQL database: its tables, and queries. Each episode has its own database.

SQLite in memory, with limits in steps of its virtual machine, never in seconds. Functions whose results differ from
call to call, such as random numbers and today's date, are refused.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from verizero.pipeline.environments.tools.base import Toolbox, ToolParams, tool
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Prompt

READING = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, getattr(sqlite3, "SQLITE_RECURSIVE", 33)}
)
WRITING = READING | {
    sqlite3.SQLITE_INSERT,
    sqlite3.SQLITE_UPDATE,
    sqlite3.SQLITE_DELETE,
    sqlite3.SQLITE_TRANSACTION,
    sqlite3.SQLITE_CREATE_TABLE,
    sqlite3.SQLITE_CREATE_VIEW,
    sqlite3.SQLITE_CREATE_INDEX,
    sqlite3.SQLITE_DROP_TABLE,
    sqlite3.SQLITE_DROP_VIEW,
    sqlite3.SQLITE_DROP_INDEX,
    sqlite3.SQLITE_ALTER_TABLE,
}
REFUSED_FUNCTIONS = frozenset(
    {"random", "randomblob", "current_time", "current_date", "current_timestamp", "load_extension"}
)
"""Functions whose results differ from one call to the next, or that load code."""
NOW = re.compile(r"""['"]\s*now\s*['"]""", re.IGNORECASE)
STEPS_A_CHECK = 1000
MAX_PAGES = 4096
"""Pages of 4 KiB of the largest database: 16 MiB."""


class Params(ToolParams):
    """The database, and the limits of a statement. Without a setup, that of the row's answer is used."""

    setup: str | None = Field(None, description="script that fills the database of every task")
    writes: bool = Field(False, description="statements may change the database, which lives as long as the episode")
    max_rows: int = Field(50, ge=1, description="rows that are shown")
    max_steps: int = Field(200_000, ge=1000, description="work of a statement, in steps of SQLite's virtual machine")
    max_statement: int = Field(4000, ge=1, description="characters of a statement")
    max_text: int = Field(10_000, ge=100, description="bytes of a value")


def tools(params: Params, prompt: Prompt) -> Toolbox:
    """Return the tools `tables` and `query` on a new database."""
    database = Database(params.setup if params.setup is not None else setups_of(prompt.reference)[0], params)

    @tool
    def tables() -> str:
        """Return the tables with their columns, one in a line."""
        return "\n".join(f"{name}({', '.join(columns)})" for name, columns in database.tables().items()) or "no tables"

    @tool(wrong=(sqlite3.Error, sqlite3.Warning))
    def query(statement: str) -> str:
        """Return the rows of an SQL statement, one in a line, columns divided by commas."""
        rows = database.rows(statement, params.max_rows + 1)
        lines = [", ".join(_shown(value) for value in row) for row in rows[: params.max_rows]]
        return "\n".join(lines + ["..."] * (len(rows) > params.max_rows)) or "no rows"

    return Toolbox([tables, query], [database.close])


def setups_of(reference: Any) -> list[str]:
    """Return the scripts that fill the task's databases. Raises: DataError if the row's answer has none."""
    setup = reference.get("setup") if isinstance(reference, Mapping) else None
    setups = [setup] if isinstance(setup, str) else setup
    if not isinstance(setups, list) or not setups or not all(isinstance(s, str) for s in setups):
        raise DataError(f"answer.setup: expected an SQL script or a list of them, got {setup!r:.80}")
    return setups


class Database:
    """An SQLite database in memory. The policy may read it, and change it if `writes` is set."""

    def __init__(self, setup: str, params: Params) -> None:
        """Fill a new database. Raises: DataError if the script fails."""
        self.params = params
        # Steps of an episode come from several threads, one after the other.
        self._base = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        try:
            self._base.executescript(setup)
        except sqlite3.Error as exc:
            self._base.close()
            raise DataError(f"answer.setup: the script fails: {exc}; script: {setup:.100}") from exc
        self._tables: dict[str, list[str]] | None = None
        if params.writes:
            self._base.execute(f"pragma max_page_count = {MAX_PAGES}")
        self._base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(params.max_text, 4 * params.max_statement))
        self._base.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        self._base.set_authorizer(self._authorize)
        self._base.set_progress_handler(self._check_steps, STEPS_A_CHECK)
        self._steps = 0

    def tables(self) -> dict[str, list[str]]:
        """Return the names of the columns of each table and view."""
        if self._tables is None or self.params.writes:
            self._base.set_authorizer(None)
            try:
                self._tables = self._read_tables()
            finally:
                self._base.set_authorizer(self._authorize)
        return self._tables

    def rows(self, statement: str, max_rows: int) -> list[tuple[Any, ...]]:
        """Return the first rows of a statement's result.

        Raises: ValueError for a statement that is too long or asks for the present time; sqlite3.Error.
        """
        if len(statement) > self.params.max_statement:
            raise ValueError(f"the statement has more than {self.params.max_statement} characters")
        if NOW.search(statement):
            raise ValueError("the present time is not available")
        self._steps = 0
        cursor = self._base.execute(statement.strip().rstrip(";"))
        try:
            return cursor.fetchmany(max_rows)
        finally:
            cursor.close()

    def close(self) -> None:
        """Drop the database."""
        self._base.close()

    def _read_tables(self) -> dict[str, list[str]]:
        names = self._base.execute(
            "select name from sqlite_master where type in ('table', 'view') and name not like 'sqlite%' order by name"
        )
        return {
            name: [column for (column,) in self._base.execute("select name from pragma_table_info(?)", (name,))]
            for (name,) in names.fetchall()
        }

    def _authorize(self, act: int, first: str | None, second: str | None, *_: str | None) -> int:
        allowed = act in (WRITING if self.params.writes else READING)
        if act == sqlite3.SQLITE_FUNCTION and (second or "").lower() in REFUSED_FUNCTIONS:
            allowed = False
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    def _check_steps(self) -> int:
        self._steps += STEPS_A_CHECK
        return int(self._steps > self.params.max_steps)


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return "null" if value is None else str(value)
