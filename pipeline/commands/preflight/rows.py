"""Rows that cannot show a gain: held-out prompts that are trained on, too few of them, and copies of one prompt."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from verizero.pipeline.commands.preflight.checked import Checked, evidence_of, not_tried
from verizero.pipeline.commands.preflight.local_parts import LocalParts
from verizero.pipeline.data.overlap import find_overlap
from verizero.pipeline.diagnosis import evaluation_leak
from verizero.pipeline.diagnosis.evaluation_too_small import MAX_HALF_WIDTH
from verizero.pipeline.diagnosis.finding import Evidence, Finding
from verizero.pipeline.diagnosis.run_facts import RunFacts
from verizero.pipeline.files import json_text

NAME = "rows"
SHOWN = 3
HALF, SOME = 0.5, 0.1
"""Shares of training rows that copy another row, for a warning and for a note."""
Z = 1.96
"""Standard deviations on either side of an interval of 95 %."""
WIDEST, NARROW = 0.5, 0.1
"""pass@1 at which an interval is widest, and one at which it is narrow: nobody knows the rate before training."""


def look(recipe: LocalParts) -> Checked:
    """Look for a leak into the evaluation, an evaluation of few prompts, and training rows that repeat."""
    train, evaluation = recipe.train, recipe.evaluation
    if not train.prompts:
        return not_tried(NAME, train.why_none)
    findings = _repeated(recipe)
    result = f"{len(train.prompts)} training rows"
    if evaluation.prompts:
        result += f", compared with {len(evaluation.prompts)} of the evaluation"
        findings += [*_leaked(recipe), *_too_few(recipe)]
    else:
        result += f"; the evaluation was not looked at: {evaluation.why_none}"
    return Checked(NAME, True, result, tuple(findings))


def _leaked(recipe: LocalParts) -> list[Finding]:
    how, train, evaluation = recipe.config.data.overlap, recipe.train, recipe.evaluation
    if how.on_overlap == "drop":
        return []  # the run takes them out by itself
    # An environment may keep the task to itself: two games can begin with one text. A run that refuses reads no more.
    refuses = how.on_overlap == "error"
    ours, theirs = ([p for p in rows.prompts if refuses or p.environment is None] for rows in (train, evaluation))
    overlap = find_overlap(ours, theirs, how.ngram, how.threshold)
    if not overlap.matches:
        return []
    # The rule that reads the same sentence in a run's folder.
    finding = evaluation_leak.look(RunFacts({}, (), (), (), info={"data_notes": [str(overlap)]}))
    if refuses:
        sentence = (
            f"{len(overlap.matches)} of {len(theirs)} held-out prompts are in the training data: the run refuses them."
        )
        finding = Finding("evaluation_leak", "problem", 1.0, sentence, (), "--set data.overlap.on_overlap=drop")
    if finding is None:
        return []
    evaluation_by_id, training_by_id = (
        {p.id: p for p in prompts} for prompts in (theirs, ours)
    )  # both may use the same ids
    shown: list[Evidence] = []
    for match in overlap.matches[:SHOWN]:
        held_out, copy = evaluation_by_id[match.evaluation_id], training_by_id[match.train_ids[0]]
        shown.append(evidence_of(held_out, evaluation.places, f"held out: {held_out.question!r:.60}"))
        shown.append(evidence_of(copy, train.places, f"trained on ({match.kind}): {copy.question!r:.60}"))
    return [replace(finding, evidence=tuple(shown))]


def _too_few(recipe: LocalParts) -> list[Finding]:
    """Find domains whose evaluation has an interval that is too wide: surely, or at the pass rate where it is widest.

    The half of an interval of n prompts is z * sqrt(p * (1 - p) / n).
    """
    findings = []
    for domain, num in sorted(Counter(p.domain for p in recipe.evaluation.prompts).items()):
        wide, narrow = (Z * math.sqrt(p * (1 - p) / num) for p in (WIDEST, NARROW))
        if wide <= MAX_HALF_WIDTH:
            continue
        needed = math.ceil(WIDEST * (1 - WIDEST) * (Z / MAX_HALF_WIDTH) ** 2)
        first = next(p for p in recipe.evaluation.prompts if p.domain == domain)
        findings.append(
            Finding(
                "evaluation_too_small",
                "warning" if narrow > MAX_HALF_WIDTH else "note",
                min(1.0, wide / 0.25),
                f"{domain} is evaluated on {num} prompts: the interval of a pass@1 of 0.5 is +-{wide:.2f}, and many "
                "gains are smaller.",
                (evidence_of(first, recipe.evaluation.places, f"the first of {num} prompts of {domain}"),),
                f"evaluate on at least {needed} prompts of {domain}: more rows in data.evaluation, or a larger limit",
            )
        )
    return findings


def _repeated(recipe: LocalParts) -> list[Finding]:
    """Find training rows of one text, environment and answer."""
    prompts = recipe.train.prompts
    keys = [json_text([p.asked, p.system, p.environment, p.reference], default=str) for p in prompts]
    counts = Counter(keys)
    copies = (len(keys) - len(counts)) / len(keys)
    if copies < SOME:
        return []
    (most, times), *_ = counts.most_common(1)
    shown = [p for p, key in zip(prompts, keys, strict=True) if key == most][:SHOWN]
    return [
        Finding(
            "prompts_repeat",
            "warning" if copies >= HALF else "note",
            min(1.0, 0.5 + copies / 2),
            f"{len(keys)} training rows hold {len(counts)} different prompts, and one of them {times} times.",
            tuple(evidence_of(p, recipe.train.places, f"{p.question!r:.60}") for p in shown),
            "leave copies out of data.train",
        )
    ]
