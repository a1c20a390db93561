"""Select the graded answers that become demonstrations, and count why the others do not."""

from __future__ import annotations

from collections.abc import Sequence

from verizero.pipeline.config.sample import KeepConfig
from verizero.pipeline.data.overlap import normalise
from verizero.pipeline.rows import require_single
from verizero.pipeline.types import ScoredRollout

REASONS = ("ungraded", "wrong", "truncated", "empty", "duplicate", "surplus")


def select_answers(members: Sequence[ScoredRollout], rules: KeepConfig) -> tuple[list[ScoredRollout], dict[str, int]]:
    """Return the selected members, those of the highest score first, and the number left out by reason.

    A grader's failure is "ungraded": it is not a wrong answer. Of equal answers the best is selected.

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
    # Limits of one answer are applied first; those between answers depend on the order.
    kept: list[ScoredRollout] = []
    seen: set[str] = set()
    for m in sorted(candidates, key=lambda m: -m.verdict.score):
        text = normalise(m.rollout.text) if rules.distinct == "normalised" else m.rollout.text.strip()
        if text in seen:
            counts["duplicate"] += 1
        elif len(kept) == rules.max_per_prompt:
            counts["surplus"] += 1
        else:
            kept.append(m)
            seen.add(text)
    return kept, counts


def _reason_to_drop(m: ScoredRollout, rules: KeepConfig) -> str | None:
    """Return why this answer by itself is dropped; None if it is not."""
    if m.verdict.is_left_out:
        return "ungraded"
    if m.verdict.status != "graded" or m.verdict.score < rules.min_score:
        return "wrong"
    if m.rollout.finish_reason == "length" and not rules.truncated:
        return "truncated"
    return None if m.rollout.text.strip() else "empty"
