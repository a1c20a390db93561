"""Rows of programs: their layouts, and whether canonical answers, or any at all, can be graded by their tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from verizero.pipeline.commands.preflight.checked import Checked, evidence_at, not_tried, spread
from verizero.pipeline.commands.preflight.graders import failing, grader_of, name_of
from verizero.pipeline.commands.preflight.local_parts import LocalParts
from verizero.pipeline.diagnosis.finding import Finding, Level
from verizero.pipeline.errors import ConfigError, IsolationError
from verizero.pipeline.types import Attempt, Prompt, Verdict
from verizero.verifiers.layouts.base import layout_of

NAME = "programs"
VERIFIERS = ("code", "unit_tests")
MOST = 40
"""Rows of each layout whose answers are run."""
MANY, SOME = 0.2, 0.05
"""Shares of canonical answers taken for wrong, for a problem and for a warning: published ones are not all right."""
SHOWN = 3
NOTHING = "pass"
"""A program that does nothing: of a row without a canonical answer it shows whether its tests can be run."""


@dataclass(frozen=True)
class Tried:
    """The rows of one verifier and layout, and the verdicts on answers to some of them."""

    key: str
    layout: str
    num_rows: int
    is_canonical: bool
    prompts: Sequence[Prompt]
    verdicts: Sequence[Verdict]

    def __str__(self) -> str:
        failed = sum(v.is_infrastructure for v in self.verdicts)
        rows = f"{self.num_rows} rows of {self.key} in the layout {self.layout}: "
        if self.is_canonical:
            right = sum(v.is_correct for v in self.verdicts)
            return f"{rows}{right} of {len(self.verdicts)} canonical answers are right" + _also(failed)
        return f"{rows}no canonical answers; the tests of {len(self.verdicts) - failed} of {len(self.verdicts)} run"


def look(recipe: LocalParts) -> Checked:
    """Run canonical answers, which the rows have as demonstrations, or else a program that does nothing."""
    by_layout: dict[tuple[str, str], list[Prompt]] = {}
    for prompt in (*recipe.train.prompts, *recipe.evaluation.prompts):
        if name_of(recipe, prompt.verifier) in VERIFIERS and prompt.environment is None:
            by_layout.setdefault((prompt.verifier, layout_of(prompt.reference)[0]), []).append(prompt)
    if not by_layout:
        return not_tried(NAME, "no row is graded by tests of a program")
    # By object: rows of the evaluation may have the ids of training rows.
    places = {id(p): rows.places[p.id] for rows in (recipe.train, recipe.evaluation) for p in rows.prompts}
    made = {s.label for s in recipe.config.data.sources if s.generator is not None}
    results: list[str] = []
    findings: list[Finding] = []
    is_any = False
    for (key, layout), prompts in by_layout.items():
        try:
            tried = _try(recipe, key, layout, prompts, [p for p in prompts if _has_canonical(p, made, places)])
        except (IsolationError, ConfigError) as exc:
            results.append(f"{len(prompts)} rows of {key} in the layout {layout}: {exc}")
            continue
        is_any = True
        results.append(str(tried))
        findings += _findings(tried, places)
    return Checked(NAME, is_any, "; ".join(results), tuple(findings))


def _has_canonical(prompt: Prompt, made: set[str], places: dict[int, str]) -> bool:
    """True if the row shows an answer. Those that generators make may be wrong on purpose; `made`: their labels."""
    label = places[id(prompt)].rsplit(" ", 2)[0]
    return isinstance(prompt.demonstration, str) and label not in made


def _try(recipe: LocalParts, key: str, layout: str, prompts: Sequence[Prompt], answered: Sequence[Prompt]) -> Tried:
    some = spread(answered or prompts, MOST)
    attempts = [Attempt(str(p.demonstration) if answered else NOTHING, p.reference, p.question) for p in some]
    verdicts = grader_of(recipe, key, some).score(attempts)
    return Tried(key, layout, len(prompts), bool(answered), some, verdicts)


def _findings(tried: Tried, places: dict[int, str]) -> list[Finding]:
    """Return what is wrong with a layout: tests that do not run, and canonical answers that are taken for wrong."""
    both = list(zip(tried.prompts, tried.verdicts, strict=True))
    what = "canonical answers" if tried.is_canonical else "programs that do nothing"
    failed = [(places[id(p)], p, v) for p, v in both if v.is_infrastructure]
    findings = failing(tried.key, failed, len(both), f"{what} to rows in the layout {tried.layout}")
    graded = [(p, v) for p, v in both if not v.is_infrastructure]
    wrong = [(p, v) for p, v in graded if not v.is_correct]
    if not tried.is_canonical or not wrong or len(wrong) <= SOME * len(graded):
        return findings
    share = len(wrong) / len(graded)
    level: Level = "problem" if share > MANY else "warning"
    reasons = Counter(f"{v.status} {v.reason}".partition(":")[0] for _, v in wrong).most_common(2)
    return [
        *findings,
        Finding(
            "wrong_references",
            level,
            min(1.0, 0.6 + share),
            f"The verifier {tried.key} takes {len(wrong)} of {len(graded)} canonical answers to rows in the layout "
            f"{tried.layout} for wrong ({', '.join(f'{reason}: {n}' for reason, n in reasons)}).",
            tuple(evidence_at(places[id(p)], f"{v.status} {v.reason:.120}") for p, v in wrong[:SHOWN]),
            "compare the columns that mapping.answer and mapping.demonstration of their source name; docs/verifiers.md "
            "has the layouts",
            frozenset({"too_hard", "false_negatives"}),
        ),
    ]


def _also(failed: int) -> str:
    return f", the verifier fails on {failed}" if failed else ""
