"""Select the graded answers that become demonstrations, and count why the others do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from verizero.pipeline.config.sample import KeepConfig
from verizero.pipeline.data.overlap import normalise
from verizero.pipeline.rows import require_single
from verizero.pipeline.types import ScoredRollout

REASONS = ("ungraded", "wrong", "truncated", "short", "long", "duplicate", "similar", "surplus")


def select_answers(members: Sequence[ScoredRollout], rules: KeepConfig) -> tuple[list[ScoredRollout], dict[str, int]]:
    """Return the selected members, the preferred ones first, and the number left out by reason.

    A grader's failure is "ungraded": it is not a wrong answer. An answer that a better one resembles is the one left
    out, as answers are gone through in the order of preference.

    Raises: DataError for an episode of several turns.
    """
    require_single((m.rollout for m in members), "a demonstration (stage sample)")
    counts = dict.fromkeys(REASONS, 0)
    candidates: list[ScoredRollout] = []
    for m in members:
        reason = _reason_to_drop(m, rules)
        if reason is None:
            candidates.append(m)
        else:
            counts[reason] += 1
    # Limits of one answer are applied first; those between answers depend on the order of preference.
    kept: list[ScoredRollout] = []
    seen: set[str] = set()
    for m in sorted(candidates, key=_preference(rules)):
        text = normalise(m.rollout.text) if rules.distinct == "normalised" else m.rollout.text.strip()
        if rules.distinct != "none" and text in seen:
            counts["duplicate"] += 1
        elif rules.max_similarity is not None and any(
            similarity(m.rollout.text, k.rollout.text) > rules.max_similarity for k in kept
        ):
            counts["similar"] += 1
        elif len(kept) == rules.max_per_prompt:
            counts["surplus"] += 1
        else:
            kept.append(m)
            seen.add(text)
    return kept, counts


def similarity(a: str, b: str) -> float:
    """Return the Jaccard index of two texts' pairs of neighbouring words; 1 for equal texts without pairs."""
    first, second = _pairs(a), _pairs(b)
    union = first | second
    return len(first & second) / len(union) if union else float(a.split() == b.split())


def _pairs(text: str) -> set[tuple[str, str]]:
    words = text.split()
    return set(pairwise(words))


def _reason_to_drop(m: ScoredRollout, rules: KeepConfig) -> str | None:
    """Return why this answer by itself is dropped; None if it is not."""
    if m.verdict.is_left_out:
        return "ungraded"
    if m.verdict.status != "graded" or m.verdict.score < rules.min_score:
        return "wrong"
    if m.rollout.finish_reason == "length" and not rules.truncated:
        return "truncated"
    # The end token is no part of the answer.
    tokens = len(m.rollout.response_ids) - (m.rollout.finish_reason == "stop")
    if tokens < rules.min_tokens or not m.rollout.text.strip():
        return "short"
    return "long" if rules.max_tokens is not None and tokens > rules.max_tokens else None


def _preference(rules: KeepConfig) -> Callable[[ScoredRollout], tuple[float, int]]:
    """Return a sort key that puts preferred answers first; among equals the sample's number decides."""

    def rank(m: ScoredRollout) -> float:
        if rules.prefer == "shortest":
            return len(m.rollout.response_ids)
        if rules.prefer == "highest":
            return -m.verdict.score
        if rules.prefer == "likeliest":
            # The mean, as a sum would prefer short answers.
            return -sum(m.rollout.logprobs) / max(1, len(m.rollout.logprobs))
        return 0.0

    return lambda m: (rank(m), m.rollout.sample)
