"""SQL queries: run on an embedded SQLite database, the result compared with that of the reference's query."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import Field

from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers._programs import grade_distinct, program_of
from verizero.verifiers._sandbox_jobs import Job, Outcome, Run, SandboxParams, run_or_fail, runner, same_tests
from verizero.verifiers.base import verifier
from verizero.verifiers.in_sandbox.query import result_of

INSIDE = (Path(__file__).parent / "in_sandbox" / "query.py").read_text()


class SqlParams(SandboxParams):
    """The order of rows in a result, and the most work that a query may be."""

    ordered: bool | None = Field(None, description="rows in order; None: if the reference's query ends in ORDER BY")
    max_rows: int = Field(10_000, ge=1)
    max_steps: int = Field(20_000_000, ge=1_000, description="of SQLite's virtual machine")


@verifier(batch=True)
def sql(attempts: Sequence[Attempt], params: SqlParams) -> list[Verdict]:
    """Return 1 if the query returns the reference's rows on every database of the reference.

    Reference: {"setup": script | [scripts], "query": gold query, "ordered"?: bool}. Several setups, with other data,
    tell a query from a constant result. The query runs in the sandbox, on a database of its own, and may only read.
    """
    return grade(attempts, params, runner(params))


def grade(attempts: Sequence[Attempt], params: SqlParams, run: Run) -> list[Verdict]:
    """Return one verdict per attempt, in order, with `run` in the sandbox's place."""

    def prepare(attempt: Attempt) -> tuple[Job, str] | Verdict:
        setups, gold, ordered = read_reference(attempt.reference, params.ordered)
        lines = [expected(s, gold, ordered, params.max_rows, params.max_steps) for s in setups]
        program = program_of(attempt, "sql")
        if program.text is None:
            return program.no_answer()
        query = program.text.strip().rstrip(";").strip()
        common = {"query": query, "ordered": ordered, "max_rows": params.max_rows, "max_steps": params.max_steps}
        inputs = (json.dumps({"setup": setup, **common}) for setup in setups)
        tests = tuple({"input": i, "output": line} for i, line in zip(inputs, lines, strict=True))
        return Job(INSIDE, tests, "stdin"), query

    def run_distinct(work: list[tuple[Job, str]]) -> list[Verdict]:
        outcomes = run_or_fail([job for job, _ in work], run)
        return [_verdict(outcome, query) for outcome, (_, query) in zip(outcomes, work, strict=True)]

    return grade_distinct(attempts, prepare, lambda work: same_tests(work[0]), run_distinct)


def _verdict(outcome: Outcome, query: str) -> Verdict:
    if outcome.status == "passed":
        return Verdict("graded", 1.0, "same_rows", query, outcome.seconds)
    failure = outcome.failure(query)
    if failure is not None:
        return failure
    line = next((t.stdout.strip() for t in outcome.tests if t.status != "passed" and t.stdout.strip()), outcome.status)
    if line.startswith("error: interrupted"):
        return Verdict("timeout", 0.0, "too_many_steps", query, outcome.seconds)
    return Verdict("graded", 0.0, line[:200] if line.startswith("error") else "other_rows", query, outcome.seconds)


@lru_cache(maxsize=16_384)  # two databases of each of 4,000 tasks, and room
def expected(setup: str, query: str, ordered: bool, max_rows: int, max_steps: int, field: str = "reference") -> str:
    """Return the result of the reference's query, comparable. Raises: DataError naming `field` if it fails."""
    try:
        line = result_of(setup, query, ordered, max_rows, max_steps)
    except Exception as exc:
        raise DataError(f"{field}.setup: {exc}; script: {setup:.100}") from exc
    if line.startswith("error"):
        raise DataError(f"{field}.query: {line}; query: {query:.100}")
    return line


def read_reference(
    reference: Any, ordered: bool | None = None, field: str = "reference"
) -> tuple[list[str], str, bool]:
    """Return the scripts of the databases, the query, and True if the order of its rows counts.

    `ordered` decides where the reference does not say it; None: the query does. Raises: DataError naming `field`.
    """
    if not isinstance(reference, Mapping) or not isinstance(reference.get("query"), str):
        raise DataError(f"{field}: expected an object with 'setup' and 'query', got {reference!r:.80}")
    query = reference["query"].strip().rstrip("; ")
    if not query:  # SQLite runs it, and it has no rows
        raise DataError(f"{field}.query: expected an SQL query, got {reference['query']!r}")
    ordered = reference.get("ordered", ordered)
    if ordered is None:
        ordered = "order by" in " ".join(query.lower().rsplit(")", 1)[-1].split())
    return setups_of(reference, field), query, bool(ordered)


def setups_of(reference: Any, field: str = "reference") -> list[str]:
    """Return the scripts that fill the databases. Raises: DataError if there is none."""
    setup = reference.get("setup") if isinstance(reference, Mapping) else None
    setups = [setup] if isinstance(setup, str) else setup
    if not isinstance(setups, list) or not setups or not all(isinstance(s, str) for s in setups):
        raise DataError(f"{field}.setup: expected a script or a list of scripts, got {setup!r:.80}")
    return setups
