"""Many training responses are right by their verifier, and few held-out ones: the verifier is fooled.

The verifier of the training rows accepts what it should not: any number, a near miss, a text that repeats the
question. The policy finds this within a few steps, for it is easier than the task. Where answers are numbers, accepted
ones that differ from the reference show it; if all are equal to it, something else makes training look good. A mean
reward says nothing here: partial credit makes it high while few responses are right. Of grades between 0 and 1, as a
reward model gives them, it is a sign if held-out pass@1 has fallen and they have not.
"""

from __future__ import annotations

from collections.abc import Sequence

from verizero.pipeline.diagnosis.answer_numbers import answer_numbers, example_of
from verizero.pipeline.diagnosis.finding import Evidence, Finding
from verizero.pipeline.diagnosis.group_answers import group_answers
from verizero.pipeline.diagnosis.run_facts import MIN_RISE, ROLLOUTS, RunFacts, Sample

EXPLAINS = frozenset({"too_easy", "learning_rate_low", "prompts_repeat", "entropy_collapse"})
MIN_GAP = 0.25
MIN_DIFFERING, MIN_DIFFERING_GROUPS = 0.2, 5
"""Groups whose accepted responses differ in their answers: a share of those with accepted ones, and a number."""
MIN_ACCEPTED_WRONG = 0.05
"""Share of accepted responses with another number than the reference's, below which the verifier is not to blame."""


def look(run: RunFacts) -> Finding | None:
    """Find far more right responses in training than held-out pass@1 of the same domain, at the end of the run."""
    for domain, (_, after) in run.before_and_after().items():
        share_right, held_out = run.share_right(domain, at_end=True), after.measure(domain)
        if share_right is None or share_right - held_out["high"] < MIN_GAP:
            continue
        answers = answer_numbers(run, domain)
        if answers.accepts_wrong is not None and answers.accepts_wrong < MIN_ACCEPTED_WRONG:
            continue
        return Finding(
            "false_positives",
            "problem",
            min(1.0, 0.6 + share_right - held_out["high"]),
            f"{domain}: {share_right:.0%} of the training responses are right by their verifier, and held-out ones "
            f"have a pass@1 of {held_out['value']:.2f}: that verifier accepts wrong answers, or the prompts are "
            "easier." + example_of(answers.accepted_wrong, run),
            (*run.evidence_of_right(domain, -1), *_accepted_examples(answers.accepted_wrong or run.samples)),
            f"--set {run.section}.reward=null grades with the verifiers of the rows"
            if run.setting(run.section, "reward")
            else "verizero verify --check the verifier of data.train, and read right responses in rollouts.jsonl",
            EXPLAINS,
        )
    return _fooled_by_grades(run) or _differing_answers(run)


def _fooled_by_grades(run: RunFacts) -> Finding | None:
    """Find grades between 0 and 1, as of a reward model, that have not fallen where held-out pass@1 has."""
    compared = []
    for domain, (_, last) in run.before_and_after().items():
        # The fall may be of an earlier stage with the same grader.
        best = max((e.measure(domain) for e in run.evaluations if domain in e.row.domains), key=lambda m: m["low"])
        compared.append((domain, best, last.measure(domain)))
    if (
        not compared
        or any(run.share_right(domain, at_end=True) is not None or a["high"] >= b["low"] for domain, b, a in compared)
        or run.change("reward/sampled") <= -MIN_RISE
    ):
        return None
    falls = ", ".join(f"{domain} from {b['value']:.2f} to {a['value']:.2f}" for domain, b, a in compared)
    return Finding(
        "false_positives",
        "problem",
        min(1.0, 0.7 + max(b["low"] - a["high"] for _, b, a in compared)),
        f"Held-out pass@1 fell ({falls}) and the reward did not: the grader likes responses that are wrong.",
        (*run.evidence("reward/sampled"), *run.evidence("kl/k3")),
        f"--set {run.section}.reward=null grades with the verifiers of the rows; a reward model wants more pairs until "
        "held_out/accuracy is near 1, and a larger kl_coef",
        EXPLAINS,
    )


def _differing_answers(run: RunFacts) -> Finding | None:
    """Find groups in which responses with different numbers are accepted, where no evaluation tells more."""
    if (
        run.before_and_after()
        or (answers := group_answers(run)) is None
        or len(answers.differing) < max(MIN_DIFFERING_GROUPS, MIN_DIFFERING * answers.accepted)
    ):
        return None
    share = len(answers.differing) / answers.accepted
    return Finding(
        "false_positives",
        "problem",
        min(1.0, 0.6 + share),
        f"In {share:.0%} of the groups with accepted responses, these answer with different numbers: the reward "
        "function accepts wrong answers.",
        tuple(
            Evidence(ROLLOUTS, s.line, f"{s.row.prompt!r:.40} accepted: {s.row.response!r:.60}")
            for s in answers.differing[0]
        ),
        "read accepted responses of one prompt, and correct the reward function",
        EXPLAINS,
    )


def _accepted_examples(samples: Sequence[Sample]) -> tuple[Evidence, ...]:
    """Return two of the samples that were accepted."""
    right = [s for s in samples if s.row.score >= 1][-2:]
    return tuple(Evidence(ROLLOUTS, s.line, f"{s.row.prompt!r:.40} accepted: {s.row.response!r:.60}") for s in right)
