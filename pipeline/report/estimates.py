"""Estimates from held-out samples: pass@1, pass@k, maj@k, greedy and score with their intervals, and parts of a gain.

Every number of a domain is a mean over prompts of one value a prompt: the samples of one prompt are not independent of
each other, the prompts are. `intervals.py` has the intervals.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import lru_cache
from math import comb
from typing import Any

from verizero.pipeline.errors import DataError
from verizero.pipeline.report.intervals import mean_interval, rate_interval


@dataclass(frozen=True, slots=True)
class PromptSamples:
    """The samples of a held-out prompt, one entry for each, in order.

    `answers` are what the verifier extracted, None where it found nothing. `lengths` are in tokens. `scores` are the
    verifier's, in [0, 1]; empty: 1 for a right sample and 0 for another. Samples that the grader could not judge are
    left out by the caller, so prompts may differ in how many they have.
    """

    prompt_id: str
    correct: tuple[bool, ...]
    answers: tuple[str | None, ...]
    lengths: tuple[int, ...]
    truncated: tuple[bool, ...]
    greedy_correct: bool | None = None
    scores: tuple[float, ...] = ()
    rewards: tuple[float, ...] = ()
    """Rewards of a reward function, one a sample; empty: rewards are scores."""
    tells_right: bool = True
    """False if rewards say nothing of right and wrong: then only their mean is measured."""

    def __post_init__(self) -> None:
        sizes = {len(self.correct), len(self.answers), len(self.lengths), len(self.truncated)}
        if self.scores:
            sizes.add(len(self.scores))
        if len(sizes) > 1:
            raise DataError(
                f"prompt {self.prompt_id!r}: correct, answers, lengths, truncated and scores must be of one length, "
                f"got {len(self.correct)}, {len(self.answers)}, {len(self.lengths)}, {len(self.truncated)}, "
                f"{len(self.scores)}"
            )


@dataclass(frozen=True, slots=True)
class Gain:
    """A rise of pass@1 in two parts that sum to it exactly; see `decompose_gain`."""

    total: float
    sharpening: float
    new: float


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Return 1 - C(n - c, k) / C(n, k): the chance that a right one is among k of the n samples.

    Unbiased for the chance that k fresh samples do. Computed in integers, so no n is too large.

    Raises: DataError unless 0 <= c <= n and 1 <= k <= n.
    Source: 2107.03374, equation 1.
    """
    _check_k(num_samples, k)
    if not 0 <= num_correct <= num_samples:
        raise DataError(f"num_correct must be in [0, {num_samples}], the number of samples, got {num_correct}")
    total = comb(num_samples, k)
    # One division at the end: the integers may be too large for a float.
    return float(Fraction(total - comb(num_samples - num_correct, k), total))


def maj_at_k(correct: Sequence[bool], answers: Sequence[str | None], k: int) -> float:
    """Return the expected correctness of the majority answer among k of the n samples.

    Exact over all C(n, k) subsets, not sampled. Answers vote as stripped text: two spellings of one number are two
    answers, since merging only those known to be right would count wrong votes as split. None has no vote, and a
    subset without any vote is wrong. A tie gives the mean over the tied answers (a fair coin). An answer whose samples
    were judged differently (its format was part of the verdict, say) is worth the share that was right.

    Raises: DataError unless 1 <= k <= n and both sequences have n entries.
    """
    if len(correct) != len(answers):
        raise DataError(f"correct and answers must be of one length, got {len(correct)} and {len(answers)}")
    _check_k(len(correct), k)
    votes: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for is_right, answer in zip(correct, answers, strict=True):
        if answer is not None:
            votes[answer.strip()] += 1
            right[answer.strip()] += is_right
    # Only the counts matter; sorted, so that prompts of one pattern share an entry of the cache.
    ballots = tuple(sorted((votes[a], right[a]) for a in votes))
    return _majority(ballots, len(correct) - sum(votes.values()), k)


def decompose_gain(before_1: float, before_k: float, after_1: float, after_k: float) -> Gain:
    """Return the rise of pass@1 in two parts: sharpening (towards the first pass@k) and new (a rise of pass@k).

    pass@k is the model's reach: what it finds in k tries. pass@1 / pass@k is its sharpness: how much of its reach one
    try gets. Since pass@1 = reach * sharpness,

        sharpening = reach_before * (sharpness_after - sharpness_before)
        new        = (reach_after - reach_before) * sharpness_after

    sum to the rise exactly. Sharpening is what pass@1 would have gained had its reach stayed what it was, so it never
    lifts pass@1 above the pass@k it began with; new is what the changed reach brings at one try, and is negative where
    pass@k fell. A reach of zero has sharpness zero.

    Raises: DataError unless 0 <= pass@1 <= pass@k <= 1 on each side (but for rounding).
    """
    for name, of_1, of_k in (("before", before_1, before_k), ("after", after_1, after_k)):
        if not (0 <= of_1 <= of_k + 1e-9 and of_k <= 1 + 1e-9):
            raise DataError(f"{name}: expected 0 <= pass@1 <= pass@k <= 1, got pass@1={of_1} and pass@k={of_k}")
    # pass@1 is at most pass@k, so a reach of zero has no success that could be lost here.
    sharp_before = before_1 / before_k if before_k > 0 else 0.0
    sharp_after = after_1 / after_k if after_k > 0 else 0.0
    return Gain(after_1 - before_1, before_k * (sharp_after - sharp_before), (after_k - before_k) * sharp_after)


def prompt_values(samples: Sequence[PromptSamples], k: int) -> dict[str, dict[str, float]]:
    """Return each measure's value by prompt id, which `summarize_domain` averages and paired differences compare.

    A measure that a prompt cannot give is left out for it: pass@k and maj@k where it has fewer than k samples or k is
    1, greedy where there was none, everything sampled where no sample is left. maj@k is left out for all if right
    samples have no answer to vote for, as texts have none that meet demands in different words.
    """
    out: dict[str, dict[str, float]] = {
        name: {} for name in ("pass@1", "score", "pass@k", "maj@k", "greedy", "reward", "length", "truncated")
    }
    for own in samples:
        n = len(own.correct)
        if n:
            out["pass@1"][own.prompt_id] = sum(own.correct) / n
            out["score"][own.prompt_id] = sum(own.scores or own.correct) / n
            out["reward"][own.prompt_id] = sum(own.rewards or own.scores or own.correct) / n
            out["length"][own.prompt_id] = sum(own.lengths) / n
            out["truncated"][own.prompt_id] = sum(own.truncated) / n
        # The estimates are undefined for fewer samples than k, and of one sample they are pass@1 once more.
        if n >= k > 1:
            out["pass@k"][own.prompt_id] = pass_at_k(n, sum(own.correct), k)
            out["maj@k"][own.prompt_id] = maj_at_k(own.correct, own.answers, k)
        if own.greedy_correct is not None:
            out["greedy"][own.prompt_id] = float(own.greedy_correct)
    right = [answer for own in samples for ok, answer in zip(own.correct, own.answers, strict=True) if ok]
    if right and all(answer is None for answer in right):
        out["maj@k"].clear()
    if out["reward"] == out["score"]:
        out["reward"].clear()
    if not all(own.tells_right for own in samples):
        for name in ("pass@1", "score", "pass@k", "maj@k", "greedy"):
            out[name].clear()
    return out


def summarize_domain(samples: Sequence[PromptSamples], k: int) -> dict[str, Any]:
    """Return each measure as {"value", "low", "high"}, with counts: an entry of an evaluation's "domains".

    Measures: pass@1 (mean over all samples of a prompt), score (the same of the verifier's scores: more than pass@1
    where credit is partial), pass@k, maj@k, greedy, length (tokens), truncated (share). A measure that no prompt gives
    is absent. The counts are "num_prompts", "by_prompt" ([prompt id, pass@1] of each prompt, what a paired difference
    of two evaluations is made of), "score_by_prompt" where it is not the same, and, where some prompts have too few
    samples for pass@k, "num_short": how many were left out of it. "reward" (any numbers) is there for a reward function
    whose rewards are no scores; where nothing tells which of them is right, pass@1 and what rests on it are absent.

    Raises: DataError for k < 1, no prompts, or a prompt id that occurs twice.
    """
    if k < 1:
        raise DataError(f"k must be >= 1, got {k}; set evaluation.k")
    if not samples:
        raise DataError("an evaluation needs at least one prompt, got none; check data.evaluation")
    twice = [p for p, times in Counter(s.prompt_id for s in samples).items() if times > 1]
    if twice:
        raise DataError(f"prompt id {twice[0]!r} occurs more than once in an evaluation; give every prompt its own id")
    summary: dict[str, Any] = {}
    by_name = prompt_values(samples, k)
    for name, values in by_name.items():
        if values:
            each = list(values.values())
            bounds = {"length": (0.0, math.inf), "reward": (-math.inf, math.inf)}.get(name)  # all others are shares
            estimate = rate_interval(each) if bounds is None else mean_interval(each, bounds)
            summary[name] = asdict(estimate)
    summary["num_prompts"] = len(samples)
    summary["by_prompt"] = [[prompt_id, value] for prompt_id, value in by_name["pass@1"].items()]
    if by_name["score"] != by_name["pass@1"]:
        summary["score_by_prompt"] = [[prompt_id, value] for prompt_id, value in by_name["score"].items()]
    num_short = sum(len(s.correct) < k for s in samples)
    if num_short:
        summary["num_short"] = num_short
    return summary


def _check_k(num_samples: int, k: int) -> None:
    if not 1 <= k <= num_samples:
        raise DataError(f"k must be in [1, {num_samples}], the number of samples, got {k}; lower k or sample more")


@lru_cache(maxsize=65536)
def _majority(ballots: tuple[tuple[int, int], ...], num_blank: int, k: int) -> float:
    """`maj_at_k` for answers given as (votes, right among them); cached, as prompts share few patterns.

    For each winning count v, walks over the answers keeping, for (votes used, answers tied at v), how many subsets
    there are and the summed worth of the tied answers in them.
    """
    total = Fraction(0)
    for v in range(1, min(k, max((c for c, _ in ballots), default=0)) + 1):
        states: dict[tuple[int, int], tuple[int, Fraction]] = {(0, 0): (1, Fraction(0))}
        for count, right in ballots:
            worth = Fraction(right, count)
            following: dict[tuple[int, int], tuple[int, Fraction]] = {}
            for (used, tied), (ways, credit) in states.items():
                # At most v votes: more would make another count the winning one.
                for take in range(min(v, count, k - used) + 1):
                    more = comb(count, take)
                    key = (used + take, tied + (take == v))
                    old_ways, old_credit = following.get(key, (0, Fraction(0)))
                    # An answer that reaches v is tied at the top, and adds its worth once for each subset so far.
                    gained = credit + ways * worth if take == v else credit
                    following[key] = (old_ways + ways * more, old_credit + gained * more)
            states = following
        for (used, tied), (_, credit) in states.items():
            if tied:
                # The rest of the k samples are blanks; without a tied answer v is not the winning count.
                total += credit * comb(num_blank, k - used) / tied
    return float(total / comb(sum(c for c, _ in ballots) + num_blank, k))
