"""Verifiers of a recipe, bound for a check before training; those that run programs get the recipe's sandbox."""

from __future__ import annotations

from collections.abc import Sequence

from verizero.pipeline.commands.preflight.checked import evidence_at
from verizero.pipeline.commands.preflight.local_parts import LocalParts
from verizero.pipeline.config.choices import ENVIRONMENT
from verizero.pipeline.diagnosis.finding import Finding, Level
from verizero.pipeline.diagnosis.infrastructure_zeros import MIN_FAILED
from verizero.pipeline.scoring.purity import may_leave
from verizero.pipeline.scoring.sandbox_setup import open_sandbox
from verizero.pipeline.scoring.score import Grader, bind_verifiers
from verizero.pipeline.types import Prompt, Verdict

FAILING = "infrastructure_zeros"
"""The cause of verifiers that fail. What they could not grade explains the rates, not another verifier's references."""
FAILING_EXPLAINS = frozenset({"too_hard", "false_negatives"})


def name_of(recipe: LocalParts, key: str) -> str:
    """Return the verifier's name; for a function of a file its key."""
    choice = recipe.config.verifiers.get(key)
    return key.partition("{")[0] if choice is None else choice.name or key


def grader_of(recipe: LocalParts, key: str, prompts: Sequence[Prompt]) -> Grader:
    """Return the verifier that prompts name by `key`.

    Raises: DataError for a verifier that does not exist or refuses its parameters; IsolationError or ConfigError where
    its programs cannot run here.
    """
    grader = bind_verifiers(prompts[:1], recipe.config.verifiers, recipe.base_dir)[key]
    open_sandbox(recipe.config.sandbox, [grader], lambda text: None)
    return grader


def is_cheap(recipe: LocalParts, key: str, prompts: Sequence[Prompt]) -> bool:
    """True if the verifier needs neither a model nor a service, and grades what the policy says."""
    if key == ENVIRONMENT:
        return False
    return may_leave(bind_verifiers(prompts[:1], recipe.config.verifiers, recipe.base_dir)[key])


def failing(key: str, failed: Sequence[tuple[str, Prompt, Verdict]], total: int, what: str) -> list[Finding]:
    """Return a finding if the verifier itself failed on some of `total` responses, which `what` names.

    `failed`: place of the row, its prompt, and the verdict.
    """
    if not failed:
        return []
    share = len(failed) / total
    level: Level = "problem" if share >= 2 * MIN_FAILED else "warning"
    return [
        Finding(
            FAILING,
            level,
            min(1.0, 0.7 + share),
            f"The verifier {key} fails on {len(failed)} of {total} {what}, first with: {failed[0][2].reason:.160}. A "
            "response that it fails on has no reward.",
            tuple(evidence_at(place, f"{p.reference!r:.40}: {v.status} {v.reason:.80}") for place, p, v in failed[:3]),
            "mend the verifier, which returns no_answer for what it cannot read, or the rows that it fails on; try it "
            "with `verizero verify --check`",
            FAILING_EXPLAINS,
        )
    ]
