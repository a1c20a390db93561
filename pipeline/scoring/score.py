"""Responses to rewards: each prompt's verifier gives a verdict, the recipe's table says what a verdict is worth.

A failing grader is retried, and what still fails has no reward: it leaves its group, is counted, and past a rate is
reported. It is never a zero.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, get_args

from pipeline.config.data import VerifierChoice
from pipeline.config.scoring import ScoringConfig
from pipeline.errors import ConfigError, DataError
from pipeline.scoring.early_grading import Ahead, attempt_of
from pipeline.scoring.purity import is_pure
from pipeline.scoring.verdict_cache import Remembered
from pipeline.types import Attempt, Prompt, Rollout, ScoredRollout, Status, Verdict
from verifiers.base import load

COMPONENT = "component "
"""Begins the keys of components; no verifier's name has a space."""
CHUNK = 64
"""Attempts handed to a grading thread at once."""
STATUSES: tuple[str, ...] = get_args(Status)


class Bound(Protocol):
    """A verifier with its parameters."""

    def score(self, attempts: Sequence[Attempt]) -> list[Verdict]:
        """One verdict per attempt, in order."""
        ...


class Elsewhere(Protocol):
    """Another process that grades by the verifiers of these keys."""

    keys: frozenset[str]

    def begin(self) -> None:
        """Be ready soon."""
        ...

    def score(self, key: str, attempts: Sequence[Attempt]) -> list[Verdict] | None:
        """One verdict per attempt, in order; None where it cannot."""
        ...

    def close(self) -> None:
        """End it."""
        ...


@dataclass(frozen=True, slots=True)
class Tally:
    """What one scoring saw, for the metrics."""

    statuses: Mapping[str, int]
    retried: int
    seconds: float
    """Of graders, summed over threads."""
    busy_s: float = 0.0
    """In which graders were at work, while responses were still being written or after that."""

    @property
    def total(self) -> int:
        """All verdicts."""
        return sum(self.statuses.values())

    @property
    def failure_rate(self) -> float:
        """Share of verdicts in which the grader failed."""
        failed = self.statuses.get("verifier_error", 0) + self.statuses.get("sandbox_error", 0)
        return failed / self.total if self.total else 0.0


class Scorer:
    """Grades responses with the verifiers that prompts name."""

    def __init__(
        self,
        config: ScoringConfig,
        bound: Mapping[str, Bound],
        components: Sequence[Bound] = (),
        apart: Elsewhere | None = None,
    ) -> None:
        """`components` are the verifiers of `config.components`, in order; `apart` grades what ends early."""
        self.config = config
        self.bound = {**bound, **{f"{COMPONENT}{i}": b for i, b in enumerate(components)}}
        self._threads = ThreadPoolExecutor(config.workers, "grade") if config.workers > 1 else None
        self._beside = ThreadPoolExecutor(1, "grade-ahead")
        self._apart = apart
        self.remembered = Remembered()
        self._pure = {key: one for key, one in self.bound.items() if is_pure(one)}
        self._known_apart = {key: self.bound[key] for key in apart.keys} if apart is not None else {}

    @property
    def leaves_the_process(self) -> bool:
        """All that is graded ahead is graded by another process: no grader stands in the way of this one's threads."""
        return self._apart is not None and self._apart.keys >= set(self.bound)

    def ahead(self, with_components: bool = False) -> Ahead:
        """Takes responses as they end and begins to grade them; to be handed to `score`."""
        columns = self._columns(with_components)
        if self._apart is not None:
            self._apart.begin()
        return Ahead(columns, self._grade_ahead, self._beside)

    def score(
        self,
        prompts: Mapping[str, Prompt],
        rollouts: Sequence[Rollout],
        with_components: bool = False,
        ahead: Ahead | None = None,
    ) -> tuple[list[ScoredRollout], Tally]:
        """Each rollout with verdict and reward, in order. `prompts` by id. What `ahead` has graded is not graded again.

        With components the reward is the weighted sum of all, and the verdict is the row's own; where the grader of a
        component failed, the verdict is that failure, and there is no reward.
        """
        asked = [attempt_of(prompts[r.prompt_id], r.text, r.finish_reason) for r in rollouts]
        keys = [prompts[r.prompt_id].verifier for r in rollouts]
        names = self._columns(with_components)
        known: list[dict[int, Verdict]] = [{} for _ in range(1 + len(names))]
        busy = 0.0
        if ahead is not None:
            known, busy = ahead.known(keys, asked), ahead.seconds
        start = time.perf_counter()
        verdicts, retried = self._graded(keys, asked, known[0])
        rewards = [self.reward(r, v) for r, v in zip(rollouts, verdicts, strict=True)]
        scored = [ScoredRollout(*row) for row in zip(rollouts, verdicts, rewards, strict=True)]
        seconds = sum(v.seconds for v in verdicts)
        if names:
            columns = [
                self._graded([name] * len(asked), asked, found) for name, found in zip(names, known[1:], strict=True)
            ]
            retried += sum(again for _, again in columns)
            seconds += sum(v.seconds for found, _ in columns for v in found)
            scored = [self._summed(m, v) for m, *v in zip(scored, *(found for found, _ in columns), strict=True)]
        statuses: dict[str, int] = {}
        for m in scored:
            statuses[m.verdict.status] = statuses.get(m.verdict.status, 0) + 1
        return scored, Tally(statuses, retried, seconds, busy + time.perf_counter() - start)

    def _columns(self, with_components: bool) -> list[str]:
        return [f"{COMPONENT}{i}" for i in range(len(self.config.components))] if with_components else []

    def _summed(self, member: ScoredRollout, verdicts: Sequence[Verdict]) -> ScoredRollout:
        """The member with its components, and their weighted sum as reward."""
        if member.reward is None:
            return member
        for config, verdict in zip(self.config.components, verdicts, strict=True):
            if verdict.is_infrastructure:
                failure = replace(verdict, reason=f"component {config.verifier.key}: {verdict.reason}")
                return ScoredRollout(member.rollout, failure, None)
        found = [self.reward(member.rollout, v) for v in verdicts]
        components = (member.reward, *(r for r in found if r is not None))
        weights = (1.0, *(c.weight for c in self.config.components))
        total = sum(w * r for w, r in zip(weights, components, strict=True))
        return ScoredRollout(member.rollout, member.verdict, total, components)

    def _graded(
        self, keys: Sequence[str], asked: Sequence[Attempt], known: Mapping[int, Verdict]
    ) -> tuple[list[Verdict], int]:
        """One verdict per attempt, failures of graders tried again; and how many were. `known`: verdicts by place."""
        missing = [i for i in range(len(asked)) if i not in known]
        found = {**known, **dict(zip(missing, self._grade(keys, asked, missing), strict=True))}
        verdicts = [found[i] for i in range(len(asked))]
        retried = 0
        for _ in range(self.config.retries):
            failed = [i for i, v in enumerate(verdicts) if v.is_infrastructure]
            if not failed:
                break
            retried += len(failed)
            for i, again in zip(failed, self._grade(keys, asked, failed), strict=True):
                verdicts[i] = again
        return verdicts, retried

    def instead(self, judge: Bound) -> Scorer:
        """A scorer of the same table and components with `judge` in place of every prompt's own verifier."""
        own = {key: judge for key in self.bound if not key.startswith(COMPONENT)}
        return Scorer(self.config, own, [b for key, b in self.bound.items() if key.startswith(COMPONENT)])

    def verdicts(self, keys: Sequence[str], asked: Sequence[Attempt]) -> list[Verdict]:
        """One verdict for each attempt by the verifier of that key, failures of graders tried again."""
        return self._graded(keys, asked, {})[0]

    def reward(self, rollout: Rollout, verdict: Verdict) -> float | None:
        """What the recipe's table gives; None where the grader failed."""
        if verdict.is_infrastructure:
            return None
        if rollout.finish_reason == "length" and self.config.truncated is not None:
            return self.config.truncated
        if verdict.status == "no_answer":
            return self.config.no_answer
        return self.config.timeout if verdict.status == "timeout" else verdict.score

    def close(self) -> None:
        """End the grading threads; what was to be graded ahead is left."""
        self._beside.shutdown(cancel_futures=True)
        if self._apart is not None:
            self._apart.close()
        if self._threads is not None:
            self._threads.shutdown()

    def _grade_ahead(self, keys: Sequence[str], asked: Sequence[Attempt]) -> list[Verdict]:
        """As `_grade`, by the other process where it may."""
        return self._grade(keys, asked, range(len(asked)), self._apart)

    def _grade(
        self, keys: Sequence[str], asked: Sequence[Attempt], rows: Sequence[int], apart: Elsewhere | None = None
    ) -> list[Verdict]:
        by_key: dict[str, list[int]] = {}
        for i in rows:
            by_key.setdefault(keys[i], []).append(i)
        jobs = [(key, some) for key, all_rows in by_key.items() for some in self._chunks(all_rows)]

        def ask(key: str, these: Sequence[Attempt]) -> list[Verdict]:
            same = self._known_apart.get(key) is self.bound[key]  # else another has taken its place here
            verdicts = apart.score(key, these) if apart is not None and same else None
            return [_checked(v) for v in (self.bound[key].score(these) if verdicts is None else verdicts)]

        def grade(job: tuple[str, list[int]]) -> list[Verdict]:
            key, these = job[0], [asked[i] for i in job[1]]
            if self._pure.get(key) is not self.bound[key]:
                return ask(key, these)
            return self.remembered.fill(key, these, ask)

        run: Callable[..., Any] = map if self._threads is None else self._threads.map
        found: dict[int, Verdict] = {}
        for (_, some), verdicts in zip(jobs, run(grade, jobs), strict=True):
            found.update(zip(some, verdicts, strict=True))
        return [found[i] for i in rows]

    def _chunks(self, rows: list[int]) -> list[list[int]]:
        """One piece without threads: a verifier answers duplicates of a batch once."""
        size = CHUNK if self._threads is not None else len(rows)
        return [rows[i : i + size] for i in range(0, len(rows), size)]


def _checked(verdict: Verdict) -> Verdict:
    """The verdict; a grader's failure where it is none: NaN as a reward would end the run at the next update."""
    if verdict.status not in STATUSES:
        reason = f"status {verdict.status!r} is none of {', '.join(STATUSES)}"
    elif verdict.status == "graded" and not 0.0 <= verdict.score <= 1.0:
        reason = f"score {verdict.score!r} is outside [0, 1]"
    else:
        return verdict
    return Verdict("verifier_error", reason=reason, seconds=verdict.seconds)


def bind_verifiers(
    prompts: Sequence[Prompt], chosen: Mapping[str, VerifierChoice], base: Path | None = None
) -> dict[str, Bound]:
    """The verifiers that `prompts` name, by key; keys not in `chosen` are plain names.

    Raises: DataError naming the first row whose verifier does not exist, ConfigError for bad parameters.
    """
    bound: dict[str, Bound] = {}
    for prompt in prompts:
        if prompt.verifier in bound:
            continue
        choice = chosen.get(prompt.verifier)
        try:
            if choice is None:
                bound[prompt.verifier] = load(prompt.verifier).bind()
            else:
                bound[prompt.verifier] = load(choice.name, choice.path, base).bind(choice.params, base)
        except ConfigError as exc:
            raise DataError(f"row {prompt.id!r}: {exc}") from exc
    return bound


def bind_components(config: ScoringConfig, base: Path | None = None) -> list[Bound]:
    """The verifiers of the recipe's components, in order. Raises: ConfigError for one that does not exist."""
    return [load(c.verifier.name, c.verifier.path, base).bind(c.verifier.params, base) for c in config.components]
