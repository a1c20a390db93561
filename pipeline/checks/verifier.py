"""Causes in the verdicts: right answers that are refused, wrong ones that are accepted, graders that fail."""

from __future__ import annotations

from collections.abc import Callable

from verizero.pipeline.checks import limits  # noqa: F401  (has rows of causes that get more rules here)
from verizero.pipeline.checks.answers import group_answers
from verizero.pipeline.checks.cause import also, cause
from verizero.pipeline.checks.finding import Evidence, Finding
from verizero.pipeline.checks.run_facts import MIN_RISE, ROLLOUTS, RunFacts, Sample
from verizero.pipeline.report.row_types import RolloutRow

MIN_TOO_FEW, MIN_TOO_MANY = 0.15, 0.25
"""Distance of the share of right training responses from held-out pass@1, below it and above it."""
MIN_EQUAL, MIN_EQUAL_SHARE, MIN_EQUAL_TEXTS = 5, 0.01, 0.05
"""Refused responses with an accepted answer: their number, and their share of the refused ones of such groups, of
numbers and of texts, for which a form may be asked."""
MIN_DIFFERING, MIN_DIFFERING_GROUPS, MIN_DIFFERING_TEXTS = 0.2, 5, 0.5
"""Groups whose accepted responses differ in their answers: a share of those with accepted ones, and a number; of texts
a share of those with any other answer."""
ALL_ACCEPTED = 0.97
"""Share of right ones among answers that may differ and be right, from which on all are, whatever they say."""
MIN_REFUSED = 20
"""Refused responses in groups with an accepted one, from which on a verifier that refuses no equal answer is sound."""
MIN_MIXED = 0.01
"""Share of the repeated responses that are graded both ways."""
RowTest = Callable[[RolloutRow], bool]
MIN_DISAGREEING = 0.15
"""Share of responses that a reward function which only logs judges otherwise."""
RAISE = "let the verifier raise instead of returning 0: the run then retries, and takes the response out of its group"


def _shown(sample: Sample, what: str) -> Evidence:
    return Evidence(ROLLOUTS, sample.line, f"{sample.row.prompt!r:.40} {what}: {sample.row.response!r:.60}")


@cause(
    "compare refused responses with their references, and correct the reward function",
    explains="too_hard learning_rate_low",
    needs="responses",
)
def false_negatives(run: RunFacts) -> Finding | None:
    """The verifier of the training rows refuses right answers in one of the forms that the policy writes.

    The same policy has a much higher pass@1 on held-out prompts than rewards in training, at the same step. So either
    the training prompts are harder, or their verifier is stricter: it reads the first number instead of the last, wants
    a box, or compares texts. Where answers are numbers, words or JSON, refused ones that equal an accepted one of their
    group show it; if none does, the verifier is not to blame.
    """
    for domain, (before, _) in run.before_and_after().items():
        share_right, held_out = run.share_right(domain), before.measure(domain)
        if share_right is None or held_out["low"] - share_right < MIN_TOO_FEW:
            continue
        answers = group_answers(run, domain)
        is_sound = answers is not None and answers.refused >= MIN_REFUSED and not answers.refused_equal
        if is_sound or not run.has_comparable_prompts(domain):
            continue
        equal = [] if answers is None else [s for s, _ in answers.refused_equal]
        refused = (equal or [s for s in run.samples if s.row.domain == domain and s.row.score == 0])[:3]
        return Finding(
            min(1.0, 0.4 + held_out["low"] - share_right),
            f"{domain}: pass@1 was {held_out['value']:.2f} on held-out prompts, and {share_right:.0%} of the first "
            "training responses were right: the training verifier refuses right answers, or its prompts are harder.",
            (*run.evidence_of_right(domain, 0), *(_shown(s, "refused") for s in refused)),
            f"--set {run.section}.reward=null grades with the verifiers of the rows"
            if run.setting(run.section, "reward")
            else "grade training responses with the verifier of data.evaluation: verizero verify",
            level="problem" if share_right > 0 else "warning",
        )
    return None


@also("false_negatives")
def equal_answers(run: RunFacts) -> Finding | None:
    """Find refused responses with the answer of an accepted one of their group, where no evaluation tells more."""
    if run.before_and_after() or (answers := group_answers(run)) is None:
        return None
    least = MIN_EQUAL_SHARE if answers.kind == "number" else MIN_EQUAL_TEXTS
    if len(answers.refused_equal) < max(MIN_EQUAL, least * answers.refused):
        return None
    refused, accepted = answers.refused_equal[0]
    return Finding(
        0.8,
        f"{len(answers.refused_equal)} responses are refused whose answer another response of their group is accepted "
        "for: the reward function refuses right answers in some forms.",
        (_shown(refused, "refused"), _shown(accepted, "accepted")),
        "let the reward function read the answer in every form that the policy writes it in",
        frozenset({"wrong_references"}),
    )


@cause(
    "compare accepted responses with their references, and correct the reward function",
    explains="too_easy learning_rate_low prompts_repeat entropy_collapse",
    needs="responses",
)
def false_positives(run: RunFacts) -> Finding | None:
    """Many training responses are right by their verifier, and few held-out ones: the verifier is fooled.

    The verifier of the training rows accepts what it should not: any number, a near miss, a text that repeats the
    question. The policy finds this within a few steps, for it is easier than the task. Where answers are numbers or
    choices, accepted ones that differ within a group show it, and where they are words or JSON, if none is refused; if
    none do, something else makes training look good. Programs and sentences may differ and be right. A mean reward says
    nothing here: partial credit makes it high while few responses are right. Of grades between 0 and 1, as a reward
    model gives them, it is a sign if held-out pass@1 has fallen and they have not.
    """
    for domain, (_, after) in run.before_and_after().items():
        share_right, held_out = run.share_right(domain, at_end=True), after.measure(domain)
        if share_right is None or share_right - held_out["high"] < MIN_TOO_MANY:
            continue
        answers = group_answers(run, domain)
        if answers is not None and answers.accepted >= MIN_DIFFERING_GROUPS and not answers.differing:
            continue
        differing = [] if answers is None else [s for pair in answers.differing for s in pair]
        accepted = differing or [s for s in run.samples if s.row.domain == domain and s.row.score >= 1]
        return Finding(
            min(1.0, 0.6 + share_right - held_out["high"]),
            f"{domain}: {share_right:.0%} of the training responses are right by their verifier, and held-out ones "
            f"have a pass@1 of {held_out['value']:.2f}: that verifier accepts wrong answers, or the prompts are "
            "easier.",
            (*run.evidence_of_right(domain, -1), *(_shown(s, "accepted") for s in accepted[-2:])),
            f"--set {run.section}.reward=null grades with the verifiers of the rows"
            if run.setting(run.section, "reward")
            else "verizero verify --check the verifier of data.train, and read right responses in rollouts.jsonl",
        )
    return None


@also("false_positives")
def fooled_by_grades(run: RunFacts) -> Finding | None:
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
        min(1.0, 0.7 + max(b["low"] - a["high"] for _, b, a in compared)),
        f"Held-out pass@1 fell ({falls}) and the reward did not: the grader likes responses that are wrong.",
        (*run.evidence("reward/sampled"), *run.evidence("kl/k3")),
        f"--set {run.section}.reward=null grades with the verifiers of the rows; a reward model wants more pairs until "
        "held_out/accuracy is near 1, and a larger kl_coef",
    )


@also("false_positives")
def differing_answers(run: RunFacts) -> Finding | None:
    """Find groups in which responses with different answers are accepted, where no evaluation tells more.

    Of several words, JSON texts or programs more than one may be right; that all are, from the first step on, is none.
    """
    if run.before_and_after() or (answers := group_answers(run)) is None:
        return None
    of, least = answers.accepted, MIN_DIFFERING
    if answers.kind != "number":
        of, least = answers.mixed, MIN_DIFFERING_TEXTS
    if len(answers.differing) < max(MIN_DIFFERING_GROUPS, least * of):
        return None
    if answers.kind not in ("number", "choice") and answers.share_accepted < ALL_ACCEPTED:
        return None
    share = len(answers.differing) / of
    return Finding(
        min(1.0, 0.6 + share),
        f"In {share:.0%} of the groups with {'accepted' if of == answers.accepted else 'different'} answers "
        f"({answers.kind}), accepted ones differ: the reward function accepts wrong answers.",
        tuple(_shown(s, "accepted") for s in answers.differing[0]),
        "read accepted responses of one prompt, and correct the reward function",
        frozenset({"advantages_vanish"}),
    )


@also("false_positives")
def paid_though_wrong(run: RunFacts) -> Finding | None:
    """Find responses with the highest reward that a reward function of weight 0, which only logs, calls wrong."""
    most = max(_rewards(run), default=0.0)
    return _disagree(run, lambda row: row.reward == most, lambda row: row.score < 1, "wrong", "accepts")


@also("false_negatives")
def unpaid_though_right(run: RunFacts) -> Finding | None:
    """Find responses with the lowest reward that a reward function of weight 0, which only logs, calls right."""
    least = min(_rewards(run), default=0.0)
    return _disagree(run, lambda row: row.score >= 1, lambda row: row.reward == least, "right", "refuses")


def _disagree(run: RunFacts, of: RowTest, fault: RowTest, word: str, does: str) -> Finding | None:
    """Return a finding if a reward function of weight 0 judges a share of the responses `of` otherwise: `fault`."""
    judge = run.info.get("log_only")
    own = [s for s in run.samples if judge and s.row.reward is not None and of(s.row)]
    wrong = [s for s in own if fault(s.row)]
    if len(own) < MIN_REFUSED or len(wrong) < MIN_DISAGREEING * len(own):
        return None
    share = len(wrong) / len(own)
    return Finding(
        min(1.0, 0.7 + share),
        f"The reward function {does} {word} answers: {judge}, which is logged with weight 0, judges {share:.0%} of "
        f"these responses otherwise ({len(wrong)} of {len(own)}).",
        tuple(_shown(s, f"reward {s.row.reward:g}, {judge} {s.row.score:g}") for s in wrong[:3]),
        f"compare these responses with their references, and let the reward function judge as {judge} does",
        frozenset({"advantages_vanish", "wrong_references", "prompts_repeat"}),
    )


def _rewards(run: RunFacts) -> list[float]:
    return [s.row.reward for s in run.samples if s.row.reward is not None]


@also("infrastructure_zeros")
def graded_both_ways(run: RunFacts) -> Finding | None:
    """Find equal responses to one prompt of which some are right and some wrong: a rule cannot do that."""
    by_response: dict[tuple[str, str], list[Sample]] = {}
    for sample in run.samples:
        if sample.row.ending is None:  # of an episode this is the last turn alone
            by_response.setdefault((sample.row.prompt_id, sample.row.response), []).append(sample)
    repeated = [group for group in by_response.values() if len(group) > 1]
    mixed = [group for group in repeated if len({s.row.score for s in group}) > 1]
    if len(mixed) < max(3, MIN_MIXED * len(repeated)):
        return None
    return Finding(
        min(1.0, 0.7 + len(mixed) / len(repeated)),
        f"Of {len(repeated)} responses that were sampled more than once, {len(mixed)} were graded right and wrong: the "
        "grader fails at times, and its failures count as wrong.",
        tuple(Evidence(ROLLOUTS, s.line, f"score {s.row.score:g}: {s.row.response!r:.60}") for s in mixed[0][:3]),
        RAISE,
    )
