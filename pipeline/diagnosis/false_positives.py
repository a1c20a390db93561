"""Many training responses are right by their verifier, and few held-out ones: the verifier is fooled.

The verifier of the training rows accepts what it should not: any number, a near miss, a text that repeats the
question. The policy finds this within a few steps, for it is easier than the task. Where answers are numbers, accepted
ones that differ from the reference show it; if all are equal to it, something else makes training look good. A mean
reward says nothing here: partial credit makes it high while few responses are right.
"""

from __future__ import annotations

from collections.abc import Sequence

from verizero.pipeline.diagnosis.finding import Evidence, Finding
from verizero.pipeline.diagnosis.reading import ROLLOUTS, Reading, Sample
from verizero.pipeline.diagnosis.stated import shown, stated

EXPLAINS = frozenset({"too_easy", "learning_rate_low", "prompts_repeat", "entropy_collapse"})
GAP = 0.25
WRONG = 0.05
"""Share of accepted responses with another number than the reference's, below which the verifier is not to blame."""


def look(run: Reading) -> Finding | None:
    """Find far more right responses in training than held-out pass@1 of the same domain, at the end of the run."""
    for domain, (_, after) in run.before_and_after().items():
        trained, held_out = run.correct(domain, late=True), after.measure(domain)
        if trained is None or trained - held_out["high"] < GAP:
            continue
        answers = stated(run, domain)
        if answers.accepts_wrong is not None and answers.accepts_wrong < WRONG:
            continue
        return Finding(
            "false_positives",
            "problem",
            min(1.0, 0.6 + trained - held_out["high"]),
            f"{domain}: {trained:.0%} of the training responses are right by their verifier, and held-out ones have a "
            f"pass@1 of {held_out['value']:.2f}: that verifier accepts wrong answers, or the prompts are easier."
            + shown(answers.accepted_wrong, run),
            (*run.shown_correct(domain, -1), *shown_right(answers.accepted_wrong or run.samples)),
            f"--set {run.section}.reward=null grades with the verifiers of the rows"
            if run.setting(run.section, "reward")
            else "verizero verify --check the verifier of data.train, and read right responses in rollouts.jsonl",
            EXPLAINS,
        )
    return None


def shown_right(samples: Sequence[Sample]) -> tuple[Evidence, ...]:
    """Return two of the samples that were accepted."""
    right = [s for s in samples if s.row.score >= 1][-2:]
    return tuple(Evidence(ROLLOUTS, s.line, f"{s.row.prompt!r:.40} accepted: {s.row.response!r:.60}") for s in right)
