"""A query to write for a database; the policy must call a tool to see its schema.

Calls of `tables` and `query` are answered; the first message without a call is the query that counts. It is right if
its rows are those of the reference's query, on every database of the row: {"setup": script | [scripts], "query": query,
"ordered"?: bool}. The tools see the first database; others, with other data, tell a query from a constant result.
"""

from __future__ import annotations

from verizero.pipeline.environments.base import EnvironmentParams, answer_of
from verizero.pipeline.environments.tool_use import ToolEpisode
from verizero.pipeline.environments.tools import sql
from verizero.pipeline.fences import blocks_in, program_among
from verizero.pipeline.types import Message, Prompt, Verdict
from verizero.verifiers.in_sandbox.query import result_of
from verizero.verifiers.sql import expected, read_reference

EXAMPLE = Prompt(
    "sql/1",
    "sum age where kind = 3",
    "environment",
    {
        "setup": "create table pets(kind, age); insert into pets values (3, 4), (3, 5), (1, 7)",
        "query": "select sum(age) from pets where kind=3",
    },
)
MAX_ROWS = 10_000
"""A query with more rows is wrong."""


class Params(EnvironmentParams, sql.Params):
    """The limits of a statement."""


def environment(params: Params, prompt: Prompt, task_seed: int, sample_seed: int) -> ToolEpisode:
    """Return an episode on a new database. Raises: DataError for a malformed reference, or a query of it that fails."""
    setups, gold, ordered = read_reference(prompt.reference, field="answer")
    wanted = [expected(setup, gold, ordered, MAX_ROWS, params.max_steps, "answer") for setup in setups]

    def grade(message: Message) -> Verdict:
        answer = answer_of(message)
        query = (program_among(blocks_in(answer)[0], "sql") or answer).strip()
        if not query:
            return Verdict("no_answer", reason="empty")
        try:
            statement = sql.checked(query)
        except ValueError as exc:
            return Verdict("graded", 0.0, f"error: {exc}", query[:1000])
        for setup, line in zip(setups, wanted, strict=True):
            # The same query has the same rows.
            steps = params.max_steps
            got = line if statement == gold else result_of(setup, statement, ordered, MAX_ROWS, steps, sql.REFUSED)
            if got != line:
                return Verdict("graded", 0.0, got[:200] if got.startswith("error") else "other_rows", query[:1000])
        return Verdict("graded", 1.0, "same_rows", query[:1000])

    return ToolEpisode(sql.tools(params, prompt), grade)
