"""Regular expressions: an answer that must match one, or an answer that is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from verizero.pipeline.errors import DataError
from verizero.pipeline.fences import blocks_in
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers._programs import grade_distinct
from verizero.verifiers._sandbox_jobs import Job, Outcome, Run, SandboxParams, run_or_fail, runner, same_tests
from verizero.verifiers.answer import Answer, after_thinking, boxed_or_tagged, final_answer, too_long
from verizero.verifiers.base import verifier

INSIDE = (Path(__file__).parent / "in_sandbox" / "pattern.py").read_text()


MAX_CHARS = 10_000
"""Characters of an answer; a longer one is wrong."""


class RegexParams(SandboxParams):
    """The text that is matched. The pattern itself has its flags: (?i)yes."""

    where: Literal["answer", "response"] = Field("answer", description="the final answer, or all after thinking")
    whole: bool = Field(True, description="the pattern must match the whole text")


@verifier(batch=True)
def regex(attempts: Sequence[Attempt], params: RegexParams) -> list[Verdict]:
    """Return 1 if the answer matches the reference's pattern, or is itself a pattern that tells the texts apart.

    Reference: "pattern" or {"pattern": ...} for the first; {"match": [texts], "no_match": [texts]} for the second. The
    match runs in the sandbox: a pattern that never ends is "timeout", in the first case as in the second.
    """
    return grade(attempts, params, runner(params))


def grade(attempts: Sequence[Attempt], params: RegexParams, run: Run) -> list[Verdict]:
    """Return one verdict per attempt, in order, with `run` in the sandbox's place."""

    def prepare(attempt: Attempt) -> tuple[Job, str] | Verdict:
        pattern, cases = _reference(attempt.reference)
        answer = _answer(attempt, params, is_pattern=pattern is None)
        if answer.text is None:
            return answer.no_answer()
        if answer.others:
            return Verdict("graded", 0.0, "several_answers", answer.text)
        if len(answer.text) > MAX_CHARS:
            return too_long(answer.text)
        pairs = [(pattern, answer.text, True)] if pattern is not None else [(answer.text, t, w) for t, w in cases]
        tests = tuple({"fn": "matches", "args": [p, t, params.whole], "expected": wanted} for p, t, wanted in pairs)
        return Job(INSIDE, tests, "function"), answer.text

    def run_distinct(work: list[tuple[Job, str]]) -> list[Verdict]:
        outcomes = run_or_fail([job for job, _ in work], run)
        return [_verdict(outcome, text) for outcome, (_, text) in zip(outcomes, work, strict=True)]

    return grade_distinct(attempts, prepare, lambda work: same_tests(work[0]), run_distinct)


def _verdict(outcome: Outcome, text: str) -> Verdict:
    if outcome.status == "passed":
        return Verdict("graded", 1.0, "matches", text[:200], outcome.seconds)
    failure = outcome.failure(text[:200])
    if failure is not None:
        return failure
    return Verdict("graded", 0.0, f"does_not_match: {outcome.share:.0%} of the texts", text[:200], outcome.seconds)


def _answer(attempt: Attempt, params: RegexParams, is_pattern: bool) -> Answer:
    if not is_pattern:
        return final_answer(attempt) if params.where == "answer" else after_thinking(attempt)
    part = after_thinking(attempt)
    if part.text is None:
        return part
    answer = boxed_or_tagged(part.text)
    if answer is not None:
        return answer
    blocks, left_open = blocks_in(part.text)
    if blocks or left_open:
        return Answer(blocks[-1].text.strip(), "fenced") if blocks and not left_open else Answer(None, "unclosed_fence")
    if attempt.truncated or "\n" in part.text:
        return Answer(None, "truncated" if attempt.truncated else "no_pattern")
    return Answer(part.text.strip("`"), "whole")


def _reference(reference: Any) -> tuple[str | None, list[tuple[str, bool]]]:
    if isinstance(reference, str) and reference:
        return reference, []
    if isinstance(reference, Mapping):
        if isinstance(reference.get("pattern"), str) and reference["pattern"]:
            return reference["pattern"], []
        yes, no = reference.get("match"), reference.get("no_match")
        if isinstance(yes, list) and isinstance(no, list) and yes and no:
            return None, [(str(t), True) for t in yes] + [(str(t), False) for t in no]
    raise DataError(
        "reference: expected a pattern, or an object with 'pattern', or with non-empty 'match' and 'no_match' "
        f"(a pattern that matches everything must not be right), got {reference!r:.80}"
    )
