"""Causes in the length of responses: ends that are missing, limits, and pay for length."""

from __future__ import annotations

import re
import statistics

from verizero.pipeline.checks.cause import cause
from verizero.pipeline.checks.finding import Finding
from verizero.pipeline.checks.run_facts import RunFacts, prompt_form
from verizero.verifiers.answer import boxed_or_tagged

MIN_CUT, NEARLY_ALL_CUT = 0.15, 0.9
"""Shares of responses that are cut at the limit: for a limit that is too low, and for an end that is missing."""
MIN_ANSWERED, MIN_RIGHT, MIN_LOOPS, MAX_READ = 0.02, 0.1, 0.5, 500
"""Shares of the cut responses that hold an answer in a box or tags, that are right, and that repeat themselves or ask
again; how many are read."""
MAX_WHOLE, MAX_END, MIN_PROMPT, MAX_PROMPT = 8, 400, 4, 30
"""Tokens of a response that may be an answer and nothing else; characters in which repetitions and prompts are looked
for, and characters of a prompt."""
REPEATED = re.compile(r"(.{1,60}?)\1{3}.{0,60}$", re.DOTALL)
LONGER_FACTOR, LONGER_FACTOR_IF_PAID = 1.5, 1.2
EXCUSING_GAIN = 0.05
"""Gain of the share of right responses that excuses longer ones."""
MOST_OF_RISE = 0.6
"""Share of the rise of the reward that the drift explains, where no evaluation tells what was learned."""
LARGE_PAY = 0.2
"""Share of the range of the rewards that components pay for the drift."""
MAX_WEIGHT = 0.05
"""Weight of a component next to a verdict of 0 to 1: it may decide between right responses, and no more."""


@cause(
    "compare the tokenizer's eos_token with the end of a turn in the chat template",
    explains="too_hard length_cap false_negatives wrong_references infrastructure_zeros",
    needs="truncated",
)
def end_token_missing(run: RunFacts) -> Finding | None:
    """Responses do not end: nearly all of them run into the length limit, from the first step on.

    Either the policy was never shown how to stop (demonstrations without the end token), or the engine does not take
    its end token for one (a tokenizer of another model, a chat template whose turn ends with another token). Such a
    response has no final answer, or an answer followed by noise: it repeats itself, asks again, or is right all the
    same.
    """
    cut_at_start, cut_at_end = run.mean_at_start("truncated"), run.mean_at_end("truncated")
    if cut_at_start is None or cut_at_end is None or min(cut_at_start, cut_at_end) < NEARLY_ALL_CUT:
        return None
    if not _goes_on(run):
        return None  # none comes as far as an answer, or nobody can look: a limit that is too low is more usual
    trained_ends = [row.metrics["ends/trained"] for _, row in run.imitation if "ends/trained" in row.metrics]
    why = (
        "no demonstration of SFT had the end token as its last"
        if trained_ends and max(trained_ends) == 0
        else "the end token is never sampled, or the engine does not know it"
    )
    is_plain = run.setting("model", "path") is not None and run.setting("data", "template", "name") != "chat"
    return Finding(
        min(cut_at_start, cut_at_end),
        f"{cut_at_end:.0%} of the responses are cut at the length limit and none learns to stop: {why}.",
        run.evidence("truncated"),
        "compare the last token of a demonstration with the tokenizer's end token"
        + ("; for a chat model: --set data.template.name=chat" if is_plain else ""),
    )


def _goes_on(run: RunFacts) -> bool:
    """Return True if responses that are nearly all cut had come to their answer before the cut.

    That is so of an answer in a box or tags, of right responses, and of an end that repeats itself or asks again.
    """
    # A response of few tokens may be an answer and nothing else.
    if (run.mean_at_start("length/mean") or 0.0) > MAX_WHOLE and (run.share_right() or 0.0) >= MIN_RIGHT:
        return True
    read = [s.row for s in run.samples[:MAX_READ]]
    answers = [boxed_or_tagged(row.response) for row in read]
    loops = sum(_is_endless(row.prompt[:MAX_PROMPT], row.response[-MAX_END:]) for row in read)
    num_answered, most = sum(a is not None and a.text is not None for a in answers), max(1, len(read))
    return num_answered >= MIN_ANSWERED * most or loops >= MIN_LOOPS * most


def _is_endless(prompt: str, end: str) -> bool:
    """Return True if a response repeats itself, or holds another prompt of the same form: the same may be restated."""
    asks = prompt_form(end).count(prompt_form(prompt)) - (end.count(prompt) == 1) if len(prompt) >= MIN_PROMPT else 0
    return asks > 0 or REPEATED.search(end) is not None


@cause(
    "double the length limit of responses",
    explains="length_drift false_negatives too_hard wrong_references",
    needs="truncated",
)
def length_cap(run: RunFacts) -> Finding | None:
    """The length limit cuts off a share of the responses, and with them right answers.

    A cut response is graded as wrong, or has the reward of `scoring.truncated`. So the policy learns to be short before
    it learns to be right. A limit is only too low for answers that would have ended a little later; those that never
    end have another cause. A run that has learned to answer within the limit did not need more.
    """
    cut = run.mean_at_start("truncated")
    if cut is None or cut < MIN_CUT or (cut >= NEARLY_ALL_CUT and end_token_missing(run)):
        return None
    # Where all are cut at the end and right, the limit is that of the answer.
    is_harmless = not 0.1 <= (run.mean_at_end("truncated") or 0.0) < NEARLY_ALL_CUT
    has_learned = is_harmless and (run.share_right(at_end=True) or 0.0) >= 0.7
    limit = run.setting("rollout", "max_response_tokens")
    better_limit = "a larger number" if limit is None else str(2 * int(limit))
    return Finding(
        min(1.0, 0.5 + cut),
        f"{cut:.0%} of the first responses are cut at {'the limit' if limit is None else f'{limit:g} tokens'}, so "
        "right answers count as wrong.",
        run.evidence("truncated"),
        f"--set rollout.max_response_tokens={better_limit}",
        level="note" if has_learned else "problem" if cut >= 2 * MIN_CUT else "warning",
    )


@cause(
    "take what pays for length out of the reward, or give it a hundredth of the weight",
    explains="reward_scales",
    needs="length/mean",
)
def length_drift(run: RunFacts) -> Finding | None:
    """Responses become longer by half, because the reward pays for length.

    A component that counts tokens is easier to learn than the task. Responses that grow because the policy thinks
    longer and is right more often are no fault.
    """
    first_length, last_length = run.mean_at_start("length/mean"), run.mean_at_end("length/mean")
    if not first_length or last_length is None:
        return None
    is_paid = _is_paid(run, last_length / first_length - 1)
    longer = LONGER_FACTOR_IF_PAID if is_paid and not run.evaluations else LONGER_FACTOR
    if last_length < longer * first_length:
        return None
    first_right, last_right = run.share_right(), run.share_right(at_end=True)
    is_better = first_right is not None and last_right is not None and last_right > first_right + EXCUSING_GAIN
    if (run.has_learned or is_better) and not is_paid:
        return None
    return Finding(
        min(1.0, 0.6 + abs(last_length / first_length - 1)),
        f"The mean response goes from {first_length:.1f} to {last_length:.1f} tokens.",
        run.evidence("length/mean", 0, 4, -1),
        _less_for_length(run),
    )


def _is_paid(run: RunFacts, growth: float) -> bool:
    """True if what grows with length pays for the drift: components, or a reward that has no verdict of its own.

    growth: the change of the mean length, as a share of the first.
    """
    rows = [s.row for s in run.samples if s.row.reward is not None]
    lengths = [float(row.length) for row in rows]
    fifth = len(lengths) // 5
    if len(set(lengths)) < 2 or not fifth:
        return False
    first, last = statistics.fmean(lengths[:fifth]), statistics.fmean(lengths[-fifth:])
    drift = max(growth * first, last - first)  # in the samples' unit, which may be characters
    is_alone = max(row.score for row in rows) < 1
    rest = [row.reward - (0 if is_alone else row.score) for row in rows if row.reward is not None]
    slope = statistics.linear_regression(lengths, rest).slope
    if slope * drift >= LARGE_PAY * run.reward_range:
        return True
    rise = (run.mean_at_end("reward/sampled") or 0.0) - (run.mean_at_start("reward/sampled") or 0.0)
    return not run.evaluations and drift > 0 and rise > 0 and slope * drift >= MOST_OF_RISE * rise


def _less_for_length(run: RunFacts) -> str:
    """Return a tenth of what the recipe pays for length, or less, or what to read where the recipe does not name it."""
    components = run.setting("scoring", "components", default=[])
    if len(components) == 1:
        weight = min(MAX_WEIGHT, float(components[0].get("weight", 1.0)) / 10)
        return f"--set scoring.components.0.weight={weight:g}"
    return "read long responses in rollouts.jsonl, and lower the weight of what pays for length"
