"""SQL queries: run on an embedded SQLite database, the result compared with that of the reference's query."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import Field

from pipeline.errors import DataError
from pipeline.types import Attempt, Verdict
from verifiers.in_sandbox.query import result_of
from verifiers._programs import once_each, program_of
from verifiers._sandbox_jobs import Job, Outcome, Run, SandboxParams, run_or_fail, runner, same_tests
from verifiers.base import verifier

INSIDE = (Path(__file__).parent / "in_sandbox" / "query.py").read_text()


class SqlParams(SandboxParams):
    """What counts in a result, and how much work a query may be."""

    ordered: bool | None = Field(None, description="rows in order; None: if the reference's query ends in ORDER BY")
    max_rows: int = Field(10_000, ge=1)
    max_steps: int = Field(20_000_000, ge=1_000, description="of SQLite's virtual machine")


@verifier(batch=True)
def sql(attempts: Sequence[Attempt], params: SqlParams) -> list[Verdict]:
    """1 if the query returns the reference's rows on every database of the reference.

    Reference: {"setup": script | [scripts], "query": gold query, "ordered"?: bool}. Several setups, with other data,
    tell a query from a constant. The query runs in the sandbox, on a database of its own, and may only read.
    """
    return grade(attempts, params, runner(params))


def grade(attempts: Sequence[Attempt], params: SqlParams, run: Run) -> list[Verdict]:
    """One verdict per attempt, in order, with `run` in the sandbox's place."""
    verdicts: list[Verdict | None] = [None] * len(attempts)
    places: list[int] = []
    jobs: list[tuple[Job, str]] = []
    for i, attempt in enumerate(attempts):
        found = program_of(attempt, "sql")
        try:
            setups, gold, ordered = _reference(attempt.reference, params)
            wanted = [expected(s, gold, ordered, params.max_rows, params.max_steps) for s in setups]
        except DataError as exc:
            verdicts[i] = Verdict("verifier_error", reason=f"bad_reference: {exc}"[:300])
            continue
        if found.text is None:
            verdicts[i] = found.no_answer()
            continue
        query = found.text.strip().rstrip(";").strip()
        places.append(i)
        jobs.append((Job(INSIDE, _tests(setups, query, ordered, wanted, params), "stdin"), query))

    def run_distinct(chosen: list[int]) -> list[Outcome]:
        return list(run_or_fail([jobs[k][0] for k in chosen], run))

    outcomes = once_each([same_tests(job) for job, _ in jobs], run_distinct)
    for i, (_, query), outcome in zip(places, jobs, outcomes, strict=True):
        verdicts[i] = _verdict(outcome, query)
    return [v for v in verdicts if v is not None]


def _tests(
    setups: Sequence[str], query: str, ordered: bool, wanted: Sequence[str], params: SqlParams
) -> tuple[dict[str, Any], ...]:
    common = {"query": query, "ordered": ordered, "max_rows": params.max_rows, "max_steps": params.max_steps}
    return tuple(
        {"input": json.dumps({"setup": setup, **common}), "output": line}
        for setup, line in zip(setups, wanted, strict=True)
    )


def _verdict(outcome: Outcome, query: str) -> Verdict:
    if outcome.status == "passed":
        return Verdict("graded", 1.0, "same_rows", query, outcome.seconds)
    if outcome.status == "sandbox_error":
        return Verdict("sandbox_error", 0.0, outcome.detail[:300], query, outcome.seconds)
    if outcome.is_over_budget:
        return Verdict("timeout", 0.0, outcome.status, query, outcome.seconds)
    said = next((t.stdout.strip() for t in outcome.tests if t.status != "passed" and t.stdout.strip()), outcome.status)
    if said.startswith("error: interrupted"):
        return Verdict("timeout", 0.0, "too_many_steps", query, outcome.seconds)
    return Verdict("graded", 0.0, said[:200] if said.startswith("error") else "other_rows", query, outcome.seconds)


@lru_cache(maxsize=4096)
def expected(setup: str, query: str, ordered: bool, max_rows: int, max_steps: int) -> str:
    """What the reference's query returns, in comparable form.

    Raises: DataError if it fails.
    """
    try:
        said = result_of(setup, query, ordered, max_rows, max_steps)
    except Exception as exc:
        raise DataError(f"reference.setup: {exc}") from exc
    if said.startswith("error"):
        raise DataError(f"reference.query: {said}; query: {query:.100}")
    return said


def _reference(reference: Any, params: SqlParams) -> tuple[list[str], str, bool]:
    if not isinstance(reference, Mapping) or not isinstance(reference.get("query"), str):
        raise DataError(f"reference: expected an object with 'setup' and 'query', got {reference!r:.80}")
    setup, query = reference.get("setup"), reference["query"].strip().rstrip(";")
    setups = [setup] if isinstance(setup, str) else setup
    if not isinstance(setups, list) or not setups or not all(isinstance(s, str) for s in setups):
        raise DataError(f"reference.setup: expected a script or a list of scripts, got {setup!r:.80}")
    ordered = reference.get("ordered", params.ordered)
    if ordered is None:
        ordered = "order by" in " ".join(query.lower().rsplit(")", 1)[-1].split())
    return setups, query, bool(ordered)
