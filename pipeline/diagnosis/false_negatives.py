"""The verifier of the training rows refuses right answers that are written in one of the ways that the policy writes.

The same policy has a much higher pass@1 on held-out prompts than rewards in training, at the same step. So either the
training prompts are harder, or their verifier is stricter: it reads the first number instead of the last, wants a
box, or compares texts. Where answers are numbers, refused ones that equal the reference show it; if none does, the
verifier is not to blame.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.answer_numbers import answer_numbers, example_of
from verizero.pipeline.diagnosis.finding import Evidence, Finding
from verizero.pipeline.diagnosis.group_answers import group_answers
from verizero.pipeline.diagnosis.run_facts import ROLLOUTS, RunFacts

EXPLAINS = frozenset({"too_hard", "learning_rate_low"})
MIN_GAP = 0.15
MIN_EQUAL, MIN_EQUAL_SHARE = 5, 0.01
"""Refused responses with an accepted answer: their number, and their share of the refused ones of such groups."""
MIN_REFUSED_RIGHT = 0.02
"""Share of refused responses with the reference's number, below which the verifier is not to blame."""


def look(run: RunFacts) -> Finding | None:
    """Find far fewer right responses in training than held-out pass@1 of the same domain, at the beginning."""
    for domain, (before, _) in run.before_and_after().items():
        share_right, held_out = run.share_right(domain), before.measure(domain)
        if share_right is None or held_out["low"] - share_right < MIN_GAP or not run.has_comparable_prompts(domain):
            continue
        answers = answer_numbers(run, domain)
        if answers.refuses_right is not None and answers.refuses_right < MIN_REFUSED_RIGHT:
            continue
        refused = answers.refused_right[:3] or [s for s in run.samples if s.row.score == 0][:3]
        return Finding(
            "false_negatives",
            "problem" if share_right > 0 else "warning",
            min(1.0, 0.4 + held_out["low"] - share_right),
            f"{domain}: pass@1 was {held_out['value']:.2f} on held-out prompts, and {share_right:.0%} of the first "
            "training responses were right: the training verifier refuses right answers, or its prompts are harder."
            + example_of(answers.refused_right, run),
            (
                *run.evidence_of_right(domain, 0),
                *(Evidence(ROLLOUTS, s.line, f"{s.row.prompt!r:.40} refused: {s.row.response!r:.60}") for s in refused),
            ),
            f"--set {run.section}.reward=null grades with the verifiers of the rows"
            if run.setting(run.section, "reward")
            else "grade training responses with the verifier of data.evaluation: verizero verify",
            EXPLAINS,
        )
    return _equal_answers(run)


def _equal_answers(run: RunFacts) -> Finding | None:
    """Find refused responses with the answer of an accepted one of their group, where no evaluation tells more."""
    if (
        run.before_and_after()
        or (answers := group_answers(run)) is None
        or len(answers.refused_equal) < max(MIN_EQUAL, MIN_EQUAL_SHARE * answers.refused)
    ):
        return None
    refused, accepted = answers.refused_equal[0]
    return Finding(
        "false_negatives",
        "problem",
        0.8,
        f"{len(answers.refused_equal)} responses are refused whose answer another response of their group is accepted "
        "for: the reward function refuses right answers in some forms.",
        tuple(
            Evidence(ROLLOUTS, s.line, f"{s.row.prompt!r:.40} {what}: {s.row.response!r:.60}")
            for s, what in ((refused, "refused"), (accepted, "accepted"))
        ),
        "let the reward function read the answer in every form that the policy writes it in",
        EXPLAINS | {"wrong_references"},
    )
