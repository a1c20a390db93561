"""Demonstrations that the verifier of their own row takes for wrong answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from verizero.pipeline.commands.preflight.checked import Checked, evidence_of, not_tried, spread
from verizero.pipeline.commands.preflight.graders import failing, grader_of, is_cheap
from verizero.pipeline.commands.preflight.local_parts import LocalParts
from verizero.pipeline.diagnosis.finding import Finding
from verizero.pipeline.errors import ConfigError, IsolationError
from verizero.pipeline.types import Attempt, Prompt, Verdict

NAME = "demonstrated"
MOST, FEWEST = 60, 20
"""Demonstrations of each verifier that are graded, and the fewest of which a share is told."""
HARDLY = 0.05
"""Share of right ones: imitation from noisy demonstrations is common, from those that are all wrong it is not."""


def look(recipe: LocalParts) -> Checked:
    """Give demonstrations as responses to the verifiers of their rows."""
    shown = [p for p in recipe.demonstrations.prompts if isinstance(p.demonstration, str) and p.verifier]
    if not recipe.config.needs_demonstrations:
        return not_tried(NAME, "no stage learns from demonstrations of the data")
    if not shown:
        episodes = "demonstrations are episodes, or not graded" if recipe.demonstrations.prompts else ""
        return not_tried(NAME, episodes or recipe.demonstrations.why_none)
    by_key: dict[str, list[Prompt]] = {}
    for prompt in shown:
        by_key.setdefault(prompt.verifier, []).append(prompt)
    results: list[str] = []
    findings: list[Finding] = []
    tried = False
    for key, prompts in by_key.items():
        some = spread(prompts, MOST)
        try:
            verdicts = _verdicts(recipe, key, some) if is_cheap(recipe, key, some) else None
        except (IsolationError, ConfigError) as exc:
            results.append(f"{key}: {exc}")
            continue
        if verdicts is None:
            results.append(f"{key}: it needs a model, a service or an environment")
            continue
        tried = True
        results.append(f"{sum(v.is_correct for v in verdicts)} of {len(verdicts)} demonstrations of {key} are right")
        demonstrated = [(p, str(p.demonstration)) for p in some]
        findings += judge(key, demonstrated, verdicts, recipe.demonstrations.places, "demonstrations")
    return Checked(NAME, tried, "; ".join(results), tuple(findings))


def _verdicts(recipe: LocalParts, key: str, prompts: Sequence[Prompt]) -> list[Verdict]:
    """Return the verdict on each demonstration."""
    attempts = [Attempt(str(p.demonstration), p.reference, p.question) for p in prompts]
    return grader_of(recipe, key, prompts).score(attempts)


def judge(
    key: str,
    responses: Sequence[tuple[Prompt, str]],
    verdicts: Sequence[Verdict],
    places: dict[str, str],
    what: str,
) -> list[Finding]:
    """Return what is wrong where responses of the data, which `what` names, are nearly all wrong by their verifier."""
    both = [(p, v) for (p, _), v in zip(responses, verdicts, strict=True)]
    findings = failing(key, [(places[p.id], p, v) for p, v in both if v.is_infrastructure], len(both), what)
    graded = [(p, text, v) for (p, text), v in zip(responses, verdicts, strict=True) if not v.is_infrastructure]
    wrong = [(p, text, v) for p, text, v in graded if not v.is_correct]
    if len(graded) < FEWEST or len(graded) - len(wrong) > HARDLY * len(graded):
        return findings
    reasons = Counter(f"{v.status} {v.reason}".partition(":")[0] for *_, v in wrong).most_common(2)
    return [
        *findings,
        Finding(
            "wrong_references",
            "problem",
            0.9,
            f"The verifier {key} takes {len(wrong)} of {len(graded)} {what} for wrong "
            f"({', '.join(f'{reason}: {n}' for reason, n in reasons)}): they, or the references, are of other rows or "
            "in another form.",
            tuple(
                evidence_of(p, places, f"{text[-40:]!r}, {p.reference!r:.30}: {v.status} {v.reason:.40}")
                for p, text, v in wrong[:3]
            ),
            f"compare the columns of the {what} and of mapping.answer, row by row",
            frozenset({"too_hard", "false_negatives"}),
        ),
    ]
