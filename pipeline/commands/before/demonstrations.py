"""Demonstrations that the verifier of their own row takes for wrong answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pipeline.commands.before.at_hand import AtHand
from pipeline.commands.before.checked import Checked, evidence_of, not_tried, spread
from pipeline.commands.before.graders import grader_of, is_cheap
from pipeline.diagnosis.finding import Finding
from pipeline.errors import ConfigError, IsolationError
from pipeline.types import Attempt, Prompt

NAME = "demonstrated"
MOST, FEWEST = 60, 20
"""Demonstrations of each verifier that are graded, and the fewest of which a share is told."""
HARDLY = 0.05
"""Share of right ones: imitation from noisy demonstrations is common, from those that are all wrong it is not."""


def look(recipe: AtHand) -> Checked:
    """Give demonstrations as responses to the verifiers of their rows."""
    shown = [p for p in recipe.demonstrations.prompts if isinstance(p.demonstration, str)]
    if not recipe.config.needs_demonstrations:
        return not_tried(NAME, "no stage learns from demonstrations of the data")
    if not shown:
        episodes = "demonstrations are episodes" if recipe.demonstrations.prompts else ""
        return not_tried(NAME, episodes or recipe.demonstrations.why_none)
    by_key: dict[str, list[Prompt]] = {}
    for prompt in shown:
        by_key.setdefault(prompt.verifier, []).append(prompt)
    told: list[str] = []
    findings: list[Finding] = []
    tried = False
    for key, prompts in by_key.items():
        some = spread(prompts, MOST)
        try:
            right = _right(recipe, key, some) if is_cheap(recipe, key, some) else None
        except (IsolationError, ConfigError) as exc:
            told.append(f"{key}: {exc}")
            continue
        if right is None:
            told.append(f"{key}: it needs a model, a service or an environment")
            continue
        tried = True
        told.append(f"{sum(r is True for r, _ in right)} of {len(right)} demonstrations of {key} are right")
        findings += _wrong(recipe, key, some, right)
    return Checked(NAME, tried, "; ".join(told), tuple(findings))


def _right(recipe: AtHand, key: str, prompts: Sequence[Prompt]) -> list[tuple[bool | None, str]]:
    """Return for each demonstration whether it is right (None: the verifier failed), and the reason."""
    grader = grader_of(recipe, key, prompts)
    attempts = [Attempt(str(p.demonstration), p.reference, p.question) for p in prompts]
    return [(None if v.is_infrastructure else v.is_correct, f"{v.status} {v.reason}") for v in grader.score(attempts)]


def _wrong(
    recipe: AtHand, key: str, prompts: Sequence[Prompt], right: Sequence[tuple[bool | None, str]]
) -> list[Finding]:
    graded = [
        (p, is_right, reason) for p, (is_right, reason) in zip(prompts, right, strict=True) if is_right is not None
    ]
    num_right = sum(is_right for _, is_right, _ in graded)
    if len(graded) < FEWEST or num_right > HARDLY * len(graded):
        return []
    reasons = Counter(reason.partition(":")[0] for _, is_right, reason in graded if not is_right).most_common(2)
    shown = [(p, reason) for p, is_right, reason in graded if not is_right][:3]
    return [
        Finding(
            "wrong_references",
            "problem",
            0.9,
            f"The verifier {key} takes {len(graded) - num_right} of {len(graded)} demonstrations for wrong "
            f"({', '.join(f'{reason}: {n}' for reason, n in reasons)}): they, or the references, are of other rows or "
            "in another form.",
            tuple(
                evidence_of(
                    p, recipe.demonstrations.places, f"{str(p.demonstration)[-40:]!r}, {p.reference!r:.30}: {why:.50}"
                )
                for p, why in shown
            ),
            "compare the columns that mapping.demonstration and mapping.answer name, row by row",
            frozenset({"too_hard", "false_negatives"}),
        )
    ]
