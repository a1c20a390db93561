"""Runs in the sandbox: one query on a fresh SQLite database in memory, whose result becomes comparable text.

Also run by the verifier itself on the reference's query, so that both results take the same form.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import sys
from typing import Any

READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
FORBIDDEN_FUNCTIONS = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"}


def opened(setup: str) -> sqlite3.Connection:
    """Return a new database that the script has filled. Raises: sqlite3.Error."""
    # Steps of an episode come from several threads, one after the other.
    database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    database.executescript(setup)
    return database


def allow_reading(
    database: sqlite3.Connection, refused: frozenset[str] = frozenset(), max_value: int = 1_000_000
) -> None:
    """Refuse all but reading from now on. `refused` are functions that fail; a value has at most `max_value` bytes."""
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max_value)
    database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    forbidden = FORBIDDEN_FUNCTIONS | refused

    def authorize(action: int, first: str | None, second: str | None, *_: Any) -> int:
        is_refused = action == sqlite3.SQLITE_FUNCTION and str(second).lower() in forbidden
        return sqlite3.SQLITE_DENY if is_refused or action not in READS else sqlite3.SQLITE_OK

    database.set_authorizer(authorize)


def rows_of(database: sqlite3.Connection, query: str, max_rows: int, max_steps: int) -> list[tuple[Any, ...]]:
    """Return at most so many rows of a query, which ends after `max_steps` of SQLite's virtual machine.

    Raises: sqlite3.Error, sqlite3.Warning, ValueError.
    """
    steps = [0]

    def count() -> int:
        steps[0] += 1
        return int(steps[0] * 1_000 > max_steps)

    database.set_progress_handler(count, 1_000)
    cursor = database.execute(query)
    try:
        return cursor.fetchmany(max_rows)
    finally:
        cursor.close()


def result_of(
    setup: str, query: str, ordered: bool, max_rows: int, max_steps: int, refused: frozenset[str] = frozenset()
) -> str:
    """Return a line that is equal for equal results: the number of rows and their hash; or "error: ...".

    The query may only read. Without `ordered`, rows are a multiset. Column names do not count; whole
    floats equal integers, floats are compared to 9 digits.
    """
    database = opened(setup)
    allow_reading(database, refused)
    try:
        rows = rows_of(database, query, max_rows + 1, max_steps)
    except (sqlite3.Error, sqlite3.Warning, ValueError) as exc:
        return f"error: {exc}"
    finally:
        database.close()
    if len(rows) > max_rows:
        return f"error: more than {max_rows} rows"
    lines = [json.dumps([_plain(cell) for cell in row]) for row in rows]
    body = "\n".join(lines if ordered else sorted(lines))
    return f"rows: {len(rows)} {hashlib.sha256(body.encode()).hexdigest()}"


def _plain(cell: Any) -> Any:
    if isinstance(cell, bytes):
        return {"bytes": cell.hex()}
    if isinstance(cell, float):
        return int(cell) if cell.is_integer() and abs(cell) < 2**53 else f"{cell:.9g}"
    return cell


if __name__ == "__main__":
    print(result_of(**json.load(sys.stdin)))
