"""The verifier of the training rows refuses right answers that are written in one of the ways that the policy writes.

The same policy has a much higher pass@1 on held-out prompts than rewards in training, at the same step. So either the
training prompts are harder, or their verifier is stricter: it reads the first number instead of the last, wants a
box, or compares texts. Where answers are numbers, refused ones that equal the reference show it; if none does, the
verifier is not to blame.
"""

from __future__ import annotations

from verizero.pipeline.diagnosis.finding import Evidence, Finding
from verizero.pipeline.diagnosis.reading import ROLLOUTS, Reading
from verizero.pipeline.diagnosis.stated import shown, stated

EXPLAINS = frozenset({"too_hard", "learning_rate_low"})
GAP = 0.15
RIGHT = 0.02
"""Share of refused responses with the reference's number, below which the verifier is not to blame."""


def look(run: Reading) -> Finding | None:
    """Find far fewer right responses in training than held-out pass@1 of the same domain, at the beginning."""
    for domain, (before, _) in run.before_and_after().items():
        trained, held_out = run.correct(domain), before.measure(domain)
        if trained is None or held_out["low"] - trained < GAP or not run.asks_alike(domain):
            continue
        answers = stated(run, domain)
        if answers.refuses_right is not None and answers.refuses_right < RIGHT:
            continue
        refused = answers.refused_right[:3] or [s for s in run.samples if s.row.score == 0][:3]
        return Finding(
            "false_negatives",
            "problem" if trained > 0 else "warning",
            min(1.0, 0.4 + held_out["low"] - trained),
            f"{domain}: pass@1 was {held_out['value']:.2f} on held-out prompts, and {trained:.0%} of the first "
            "training responses were right: the training verifier refuses right answers, or its prompts are harder."
            + shown(answers.refused_right, run),
            (
                *run.shown_correct(domain, 0),
                *(Evidence(ROLLOUTS, s.line, f"{s.row.prompt!r:.40} refused: {s.row.response!r:.60}") for s in refused),
            ),
            f"--set {run.section}.reward=null grades with the verifiers of the rows"
            if run.setting(run.section, "reward")
            else "grade training responses with the verifier of data.evaluation: verizero verify",
            EXPLAINS,
        )
    return None
