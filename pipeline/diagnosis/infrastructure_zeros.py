"""Graders, sandboxes or services fail, and the failure looks like a wrong answer.

A verdict of the status timeout counts as the recipe says, which is a reward of 0 by default. A verifier that catches
its own errors and returns 0 hides them: then a share of the responses has an empty reason or the words of an error.
The policy is punished for what the machine did.

Programs and queries that the policy wrote fail too, and that is graded: their reasons do not count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import get_args

from verizero.pipeline.diagnosis.finding import Evidence, Finding
from verizero.pipeline.diagnosis.run_facts import ROLLOUTS, RunFacts, Sample
from verizero.sandbox.results import Status

FAILED_STATUSES = ("timeout", "verifier_error", "sandbox_error")
EXPLAINS = frozenset({"too_hard", "false_negatives", "wrong_references"})
MIN_FAILED, MIN_MIXED = 0.03, 0.01
ERROR_WORDS = re.compile(
    r"\b(timed out|connection|unavailable|traceback|errno|broken pipe|out of memory|no space left|http 5\d\d"
    r"|\w+(error|exception))\b",
    re.IGNORECASE,
)
"""Words of a machine or a verifier that fails, or the name of an exception."""
PROGRAM_REASON = re.compile(rf"({'|'.join(get_args(Status))}|error)\b")
"""Beginnings of the reasons that verifiers give for a program of the policy."""


def look(run: RunFacts) -> Finding | None:
    """Find verdicts that failed, or reasons of zeros that are words of an error."""
    shares = {name: run.mean_at_end(f"verdict/{name}") or 0.0 for name in FAILED_STATUSES}
    worst = max(shares, key=lambda name: shares[name])
    total = sum(shares.values())
    if total >= MIN_FAILED:
        return Finding(
            "infrastructure_zeros",
            "problem" if total >= 2 * MIN_FAILED else "warning",
            min(1.0, 0.6 + 2 * total),
            f"{total:.0%} of the responses were not graded but failed, most with the status {worst}.",
            run.evidence(f"verdict/{worst}"),
            "read the reasons in rollouts.jsonl; a verifier that waits for a service raises an error where it is late, "
            "so that the response leaves its group"
            if worst == "timeout"
            else "read the reasons in rollouts.jsonl, and run `verizero doctor`",
            EXPLAINS,
        )
    if mixed := _graded_both_ways(run.samples):
        return mixed
    zeros = [s for s in run.samples if s.row.score == 0]
    errors = [s for s in zeros if ERROR_WORDS.search(s.row.reason) and not PROGRAM_REASON.match(s.row.reason)]
    if len(errors) < max(5, MIN_FAILED * len(run.samples)):
        return None
    return Finding(
        "infrastructure_zeros",
        "problem",
        0.8,
        f"{len(errors)} of {len(run.samples)} responses have a score of 0 for an error: '{errors[0].row.reason}'.",
        tuple(Evidence(ROLLOUTS, s.line, f"score 0: {s.row.reason:.80}") for s in errors[:3]),
        "let the verifier raise instead of returning 0: the run then retries, and takes the response out of its group",
        EXPLAINS,
    )


def _graded_both_ways(samples: Sequence[Sample]) -> Finding | None:
    """Find equal responses to one prompt of which some are right and some wrong: a rule cannot do that."""
    by_response: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        if sample.row.ending is None:  # of an episode this is the last turn alone
            by_response.setdefault((sample.row.prompt_id, sample.row.response), []).append(sample)
    repeated = [group for group in by_response.values() if len(group) > 1]
    mixed = [group for group in repeated if len({s.row.score for s in group}) > 1]
    if len(mixed) < max(3, MIN_MIXED * len(repeated)):
        return None
    return Finding(
        "infrastructure_zeros",
        "problem",
        min(1.0, 0.7 + len(mixed) / len(repeated)),
        f"Of {len(repeated)} responses that were sampled more than once, {len(mixed)} were graded right and wrong: the "
        "grader fails at times, and its failures count as wrong.",
        tuple(Evidence(ROLLOUTS, s.line, f"score {s.row.score:g}: {s.row.response!r:.60}") for s in mixed[0][:3]),
        "let the verifier raise instead of returning 0: the run then retries, and takes the response out of its group",
        EXPLAINS,
    )
