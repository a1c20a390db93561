"""Regular expressions: an answer that must match one, or an answer that is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from pipeline.errors import DataError
from pipeline.types import Attempt, Verdict
from verifiers._programs import once_each
from verifiers.answer import Answer, after_thinking, code_blocks, final_answer, last_box, last_tag
from verifiers._sandbox_jobs import Job, Outcome, Run, SandboxParams, run_or_fail, runner, same_tests
from verifiers.base import verifier

INSIDE = (Path(__file__).parent / "in_sandbox" / "pattern.py").read_text()


class RegexParams(SandboxParams):
    """What is matched, and how."""

    where: Literal["answer", "response"] = Field("answer", description="the final answer, or all after thinking")
    whole: bool = Field(True, description="the pattern must match the whole text")
    flags: str = Field("", pattern=r"^[imsx]*$", description="letters of Python's re: i, m, s, x")
    grading: Literal["all", "fraction"] = Field("all", description="of the texts, where the answer is the pattern")
    max_chars: int = Field(10_000, ge=1, description="a longer answer is wrong")


@verifier(batch=True)
def regex(attempts: Sequence[Attempt], params: RegexParams) -> list[Verdict]:
    """1 if the answer matches the reference's pattern, or, if the answer is to be a pattern, tells the texts apart.

    Reference: "pattern" or {"pattern": ...} for the first; {"match": [texts], "no_match": [texts]} for the second. The
    match runs in the sandbox: a pattern that never ends is "timeout", in the first case as in the second.
    """
    return grade(attempts, params, runner(params))


def grade(attempts: Sequence[Attempt], params: RegexParams, run: Run) -> list[Verdict]:
    """One verdict per attempt, in order, with `run` in the sandbox's place."""
    verdicts: list[Verdict | None] = [None] * len(attempts)
    places: list[int] = []
    jobs: list[tuple[Job, str]] = []
    for i, attempt in enumerate(attempts):
        try:
            pattern, cases = _reference(attempt.reference)
        except DataError as exc:
            verdicts[i] = Verdict("verifier_error", reason=f"bad_reference: {exc}"[:300])
            continue
        found = _answer(attempt, params, is_pattern=pattern is None)
        if found.text is None:
            verdicts[i] = found.no_answer()
        elif found.others:
            verdicts[i] = Verdict("graded", 0.0, "several_answers", found.text)
        elif len(found.text) > params.max_chars:
            verdicts[i] = Verdict("graded", 0.0, f"too_long: {len(found.text)} characters")
        else:
            pairs = [(pattern, found.text, True)] if pattern is not None else [(found.text, t, w) for t, w in cases]
            tests = tuple(
                {"fn": "matches", "args": [p, t, params.flags, params.whole], "expected": wanted}
                for p, t, wanted in pairs
            )
            places.append(i)
            jobs.append((Job(INSIDE, tests, "function"), found.text))

    def run_distinct(chosen: list[int]) -> list[Outcome]:
        return list(run_or_fail([jobs[k][0] for k in chosen], run))

    outcomes = once_each([same_tests(job) for job, _ in jobs], run_distinct)
    for i, (_, text), outcome in zip(places, jobs, outcomes, strict=True):
        verdicts[i] = _verdict(outcome, text, params)
    return [v for v in verdicts if v is not None]


def _verdict(outcome: Outcome, text: str, params: RegexParams) -> Verdict:
    if outcome.status == "passed":
        return Verdict("graded", 1.0, "matches", text[:200], outcome.seconds)
    if outcome.status == "sandbox_error":
        return Verdict("sandbox_error", 0.0, outcome.detail[:300], text[:200], outcome.seconds)
    if outcome.is_over_budget:
        return Verdict("timeout", 0.0, outcome.status, text[:200], outcome.seconds)
    score = outcome.share if params.grading == "fraction" else 0.0
    return Verdict("graded", score, f"does_not_match: {outcome.share:.0%} of the texts", text[:200], outcome.seconds)


def _answer(attempt: Attempt, params: RegexParams, is_pattern: bool) -> Answer:
    if not is_pattern:
        return final_answer(attempt) if params.where == "answer" else after_thinking(attempt)
    part = after_thinking(attempt)
    if part.text is None:
        return part
    for found in (last_tag(part.text, "answer"), last_box(part.text)):
        if found.text is not None or not found.reason.startswith("no_"):
            return found
    blocks, left_open = code_blocks(part.text)
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
