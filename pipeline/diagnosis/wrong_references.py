"""The reference answers of training rows are wrong: samples agree with each other, and not with the reference.

A policy that is right on held-out prompts and wrong on those it trains on, with most samples of a prompt giving the
same answer, has probably read the prompt better than the data. The more samples agree, the surer that is.

Without held-out prompts, groups show it that agree on an answer of which none is accepted, where other groups are
solved often. If fewer than a third of the references are wrong, their prompts look like hard ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from verizero.pipeline.diagnosis.finding import Evidence, Finding
from verizero.pipeline.diagnosis.group_answers import GroupAnswers, group_answers
from verizero.pipeline.diagnosis.run_facts import ROLLOUTS, RunFacts, Sample, by_group

EXPLAINS = frozenset({"too_hard", "false_negatives", "learning_rate_low", "entropy_collapse"})
MIN_AGREEING, MIN_GAP = 0.5, 0.15
MIN_GROUPS, MIN_REFUSED_GROUPS = 10, 0.1
MIN_MAJORITIES, MIN_REFUSED_MAJORITIES = 20, 0.75
MIN_UNSOLVED_MAJORITIES, MIN_SOLVED = 1 / 3, 0.25
"""Share of the clear majorities whose group has no right response, and share of right ones in groups that have any."""
COLD_TEMPERATURE = 0.4
"""A temperature at which responses agree whatever they know."""


def look(run: RunFacts) -> Finding | None:
    """Find fewer right responses in training than held-out pass@1 at first, in groups that agree on refused answers."""
    for domain, (before, _) in run.before_and_after().items():
        share_right, held_out = run.share_right(domain), before.measure(domain)
        if share_right is None or held_out["low"] - share_right < MIN_GAP or not run.has_comparable_prompts(domain):
            continue
        groups = [g for g in by_group(run.samples) if len(g) > 2 and g[0].row.domain == domain]
        refused_groups = [g for g in groups if _agrees(g)]
        if len(groups) < MIN_GROUPS or len(refused_groups) < MIN_REFUSED_GROUPS * len(groups):
            continue
        refused_samples = [next(s for s in g if s.row.score == 0) for g in refused_groups[:3]]
        return Finding(
            "wrong_references",
            "problem",
            min(1.0, 0.5 + held_out["low"] - share_right),
            f"{domain}: pass@1 was {held_out['value']:.2f} on held-out prompts, {share_right:.0%} of the first "
            f"training responses were right, and in {len(refused_groups)} of {len(groups)} groups most responses "
            "agree on an answer that is refused: references of the training rows are wrong.",
            run.evidence_of_right(domain, 0) + _refused(refused_samples),
            "check some answers of data.train by hand, and the column that data.train[].mapping.answer names",
            EXPLAINS,
        )
    return _refused_majorities(run)


def _refused_majorities(run: RunFacts) -> Finding | None:
    """Find that most answers which groups agree on are refused, where no evaluation tells more."""
    if (
        run.before_and_after()
        or (answers := group_answers(run)) is None
        or (run.mean_at_start("temperature") or 1.0) < COLD_TEMPERATURE
    ):
        return None
    if (
        answers.majorities < MIN_MAJORITIES
        or len(answers.refused_majorities) < MIN_REFUSED_MAJORITIES * answers.majorities
    ):
        return _unsolved_majorities(answers)
    share = len(answers.refused_majorities) / answers.majorities
    return Finding(
        "wrong_references",
        "problem",
        min(1.0, share),
        f"In {answers.majorities} groups half of the responses or more agree on an answer, and in {share:.0%} of these "
        "it is refused: references are probably wrong.",
        _refused(answers.refused_majorities),
        "check some reference answers by hand, and the column that they are read from",
        EXPLAINS,
    )


def _unsolved_majorities(answers: GroupAnswers) -> Finding | None:
    """Find that many groups agree on a refused answer and have no right response, while others are solved often.

    A model that errs agrees with itself less the harder the prompt is, and is right now and then where it agrees. A
    wrong reference is met by nobody, however well the prompt is solved.
    """
    unsolved = answers.unsolved_majorities
    if (
        answers.clear_majorities < MIN_MAJORITIES
        or len(unsolved) < MIN_UNSOLVED_MAJORITIES * answers.clear_majorities
        or answers.solved is None
        or answers.solved < MIN_SOLVED
    ):
        return None
    share = len(unsolved) / answers.clear_majorities
    return Finding(
        "wrong_references",
        "warning",
        min(1.0, 0.4 + share),
        f"In {answers.clear_majorities} groups most responses agree on an answer. In {share:.0%} of these nobody is "
        f"right, and where anybody is, {answers.solved:.0%} are: references are probably wrong for a part of the rows, "
        "or a part of the prompts asks what the model always gets wrong.",
        _refused(unsolved),
        "check the reference answers of these prompts by hand",
        EXPLAINS - {"false_negatives"},
    )


def _refused(samples: Sequence[Sample]) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(ROLLOUTS, s.line, f"{s.row.prompt!r:.40} refused: {s.row.extracted!r:.40}") for s in samples[:3]
    )


def _agrees(group: list[Sample]) -> bool:
    answers = Counter(s.row.extracted for s in group if s.row.extracted is not None)
    if not answers:
        return False
    answer, times = answers.most_common(1)[0]
    return times >= MIN_AGREEING * len(group) and all(s.row.score == 0 for s in group if s.row.extracted == answer)
