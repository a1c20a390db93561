"""Rejection: which of a prompt's graded answers are kept as demonstrations, and why the others are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from verizero.pipeline.config.sample import KeepConfig
from verizero.pipeline.data.overlap import normalise
from verizero.pipeline.rows import require_single
from verizero.pipeline.types import ScoredRollout

REASONS = ("ungraded", "wrong", "truncated", "short", "long", "duplicate", "similar", "surplus")


def kept_of(members: Sequence[ScoredRollout], how: KeepConfig) -> tuple[list[ScoredRollout], dict[str, int]]:
    """The members that are kept, the preferred first, and how many were left out for each reason.

    A grader's failure is "ungraded": it is not a wrong answer. An answer that a better one resembles is the one left
    out, as answers are gone through in the order of preference.

    Raises: DataError for an episode of several turns.
    """
    require_single((m.rollout for m in members), "a demonstration (stage sample)")
    counts = dict.fromkeys(REASONS, 0)
    able: list[ScoredRollout] = []
    for m in members:
        reason = _unfit(m, how)
        if reason is None:
            able.append(m)
        else:
            counts[reason] += 1
    # Limits of one answer are applied first; those between answers depend on the order of preference.
    kept: list[ScoredRollout] = []
    seen: set[str] = set()
    for m in sorted(able, key=_preference(how)):
        text = normalise(m.rollout.text) if how.distinct == "normalised" else m.rollout.text.strip()
        if how.distinct != "none" and text in seen:
            counts["duplicate"] += 1
        elif how.max_similarity is not None and any(
            similarity(m.rollout.text, k.rollout.text) > how.max_similarity for k in kept
        ):
            counts["similar"] += 1
        elif len(kept) == how.max_per_prompt:
            counts["surplus"] += 1
        else:
            kept.append(m)
            seen.add(text)
    return kept, counts


def similarity(a: str, b: str) -> float:
    """Jaccard index of the pairs of neighbouring words of two texts, 1 for texts without any that are equal."""
    first, second = _pairs(a), _pairs(b)
    union = first | second
    return len(first & second) / len(union) if union else float(a.split() == b.split())


def _pairs(text: str) -> set[tuple[str, str]]:
    words = text.split()
    return set(pairwise(words))


def _unfit(m: ScoredRollout, how: KeepConfig) -> str | None:
    """Return the reason for which this answer alone cannot be kept; None if it can."""
    if m.verdict.is_infrastructure:
        return "ungraded"
    if m.verdict.status != "graded" or m.verdict.score < how.min_score:
        return "wrong"
    if m.rollout.finish_reason == "length" and not how.truncated:
        return "truncated"
    # The end token is no part of the answer.
    tokens = len(m.rollout.response_ids) - (m.rollout.finish_reason == "stop")
    if tokens < how.min_tokens or not m.rollout.text.strip():
        return "short"
    return "long" if how.max_tokens is not None and tokens > how.max_tokens else None


def _preference(how: KeepConfig) -> Callable[[ScoredRollout], tuple[float, int]]:
    """Return a sort key that puts preferred answers first; among equals the sample's number decides."""

    def rank(m: ScoredRollout) -> float:
        if how.prefer == "shortest":
            return len(m.rollout.response_ids)
        if how.prefer == "highest":
            return -m.verdict.score
        if how.prefer == "likeliest":
            # The mean, as a sum would prefer short answers.
            return -sum(m.rollout.logprobs) / max(1, len(m.rollout.logprobs))
        return 0.0

    return lambda m: (rank(m), m.rollout.sample)
