"""Responses to rewards: a prompt's verifier gives a verdict, the recipe's table turns the verdict into a reward.

A verifier that fails is asked again. A response that still has no verdict has no reward, which is not a reward of zero:
it leaves its group and is counted, and too many of them are reported.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from verizero.pipeline.config.choices import ENVIRONMENT, VerifierChoice
from verizero.pipeline.config.scoring import ScoringConfig
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.scoring.early_grading import EarlyGrading, attempt_in
from verizero.pipeline.scoring.grader_process import GraderProcess
from verizero.pipeline.scoring.purity import is_pure, may_leave
from verizero.pipeline.scoring.steps import step_tokens
from verizero.pipeline.scoring.verdict_cache import VerdictCache
from verizero.pipeline.types import INFRASTRUCTURE, STATUSES, Attempt, Prompt, Rollout, ScoredRollout, Verdict
from verizero.verifiers.base import BoundVerifier

COMPONENT = "component "
"""Prefix of the keys of components; no verifier's name has a space."""
CHUNK = 64
"""Attempts that a grading thread takes at once."""


class Grader(Protocol):
    """A verifier with its parameters."""

    def score(self, attempts: Sequence[Attempt]) -> list[Verdict]:
        """Return one verdict per attempt, in order."""
        ...


@dataclass(frozen=True, slots=True)
class GradingTally:
    """Numbers of one scoring, for the metrics."""

    statuses: Mapping[str, int]
    retried: int
    seconds: float
    """Seconds that graders took, summed over threads."""
    busy_s: float = 0.0
    """Seconds in which any grader worked, while responses were still being written or afterwards."""

    @property
    def total(self) -> int:
        """The number of verdicts."""
        return sum(self.statuses.values())

    @property
    def failure_rate(self) -> float:
        """The share of verdicts in which the grader failed."""
        failed = sum(self.statuses.get(status, 0) for status in INFRASTRUCTURE)
        return failed / self.total if self.total else 0.0


class Scorer:
    """Grades responses with the verifiers that prompts name."""

    def __init__(
        self,
        config: ScoringConfig,
        graders: Mapping[str, Grader],
        components: Sequence[Grader] = (),
        process: GraderProcess | None = None,
        decode: Callable[[Sequence[int]], str] | None = None,
    ) -> None:
        """`graders`: by key. `components`: the graders of `config.components`, in order.

        process: grades responses that end before others; None: a thread of this process grades them.
        decode: the text of tokens, by which steps of a response are found in its tokens; None: steps are not.
        """
        self.config = config
        self.decode = decode
        self.graders = {**graders, **{f"{COMPONENT}{i}": g for i, g in enumerate(components)}}
        self.cache = VerdictCache()
        self._process = process
        self._threads = ThreadPoolExecutor(config.workers, "grade") if config.workers > 1 else None
        self._early_thread = ThreadPoolExecutor(1, "grade-early")

    def grade_early(self, with_components: bool = False) -> EarlyGrading:
        """Return a grading that takes responses as they end; `score` then needs its result."""
        if self._process is not None:
            self._process.start()
        return EarlyGrading(
            self._components(with_components),
            lambda keys, attempts: self._grade(keys, attempts, self._process),
            self._early_thread,
        )

    def score(
        self,
        prompts: Mapping[str, Prompt],
        rollouts: Sequence[Rollout],
        with_components: bool = False,
        early: EarlyGrading | None = None,
    ) -> tuple[list[ScoredRollout], GradingTally]:
        """Return each rollout with verdict and reward, in order. `prompts`: by id; `early`: has graded some rollouts.

        With components the reward is the weighted sum of all, and the verdict is that of the prompt's verifier. If the
        grader of a component failed, the verdict is that failure, and there is no reward.
        """
        attempts = [attempt_in(prompts[r.prompt_id], r) for r in rollouts]
        keys = [prompts[r.prompt_id].verifier for r in rollouts]
        columns = [keys, *([name] * len(attempts) for name in self._components(with_components))]
        known: list[dict[int, Verdict]] = [{} for _ in columns]
        early_s = 0.0
        if early is not None:
            known, early_s = early.verdicts(keys, attempts), early.seconds
        outcomes = {i: v for i, r in enumerate(rollouts) if (v := outcome_of(prompts[r.prompt_id], r)) is not None}
        known[0] |= outcomes
        start = time.perf_counter()
        graded = [self._grade_and_retry(columns[0], attempts, known[0], outcomes)]
        graded += [self._grade_and_retry(c, attempts, k) for c, k in zip(columns[1:], known[1:], strict=True)]
        rows = zip(rollouts, *(verdicts for verdicts, _ in graded), strict=True)
        scored = [self._rewarded(rollout, verdict, others) for rollout, verdict, *others in rows]
        return scored, GradingTally(
            dict(Counter(m.verdict.status for m in scored)),
            sum(retried for _, retried in graded),
            sum(v.seconds for verdicts, _ in graded for v in verdicts),
            # Early grading has ended by now, so the two spans do not overlap.
            early_s + time.perf_counter() - start,
        )

    def verdicts(self, keys: Sequence[str], attempts: Sequence[Attempt]) -> list[Verdict]:
        """Return one verdict per attempt by the verifier of its key; verifiers that fail are asked again."""
        return self._grade_and_retry(keys, attempts, {})[0]

    def reward(self, rollout: Rollout, verdict: Verdict) -> float | None:
        """Return the reward of the recipe's table; None if the grader failed.

        A response that was cut at its length limit gets `truncated` for any verdict, unless that is None. An episode
        gets the reward that the recipe names for its ending, if it names one.
        """
        if verdict.is_left_out:
            return None
        if (of_table := self._of_table(rollout, verdict)) is not None:
            return of_table
        return verdict.score if verdict.reward is None else verdict.reward

    def _of_table(self, rollout: Rollout, verdict: Verdict) -> float | None:
        """Return the reward of the recipe's table for a response; None if it is what its verdict says."""
        ending = None if rollout.episode is None else rollout.episode.ending
        if ending is not None and (of_ending := self.config.endings.get(ending)) is not None:
            return of_ending
        is_cut = rollout.was_cut if ending is None else ending in ("tokens", "context")
        if is_cut and self.config.truncated is not None:
            return self.config.truncated
        if verdict.status == "no_answer":
            return self.config.no_answer
        if verdict.status == "timeout":
            return self.config.timeout
        return None

    def with_grader(self, grader: Grader) -> Scorer:
        """Return a scorer of the same table and components, with `grader` for every prompt's own verifier."""
        replaced = {key: grader for key in self.graders if not key.startswith(COMPONENT)}
        components = [g for key, g in self.graders.items() if key.startswith(COMPONENT)]
        return Scorer(self.config, replaced, components, decode=self.decode)

    def close(self) -> None:
        """End the grading threads and the process; early grading that has not begun is dropped."""
        # First the thread that asks the process, then the process itself.
        self._early_thread.shutdown(cancel_futures=True)
        if self._process is not None:
            self._process.close()
        if self._threads is not None:
            self._threads.shutdown()

    def _components(self, with_components: bool) -> list[str]:
        return [f"{COMPONENT}{i}" for i in range(len(self.config.components))] if with_components else []

    def _rewarded(self, rollout: Rollout, verdict: Verdict, others: Sequence[Verdict]) -> ScoredRollout:
        """Return the rollout with its reward; `others`: the verdicts of the components."""
        reward = self.reward(rollout, verdict)
        steps = self._steps(rollout, verdict)
        if reward is None or not others:
            return ScoredRollout(rollout, verdict, reward, steps=steps)
        total, components = reward, [reward]
        for config, other in zip(self.config.components, others, strict=True):
            part = self.reward(rollout, other)
            # Without this part the sum would be on another scale than those of the group.
            if part is None:
                failure = replace(other, reason=f"component {config.verifier.key}: {other.reason}")
                return ScoredRollout(rollout, failure, None)
            total += config.weight * part
            components.append(part)
        return ScoredRollout(rollout, verdict, total, tuple(components), steps)

    def _steps(self, rollout: Rollout, verdict: Verdict) -> tuple[tuple[int, float], ...]:
        """Return the steps of a response in tokens; none of an episode, whose turns are its steps.

        A response whose reward is of the recipe's table has none either: the steps say nothing of that reward.
        """
        if not verdict.steps or self.decode is None or rollout.episode is not None:
            return ()
        if verdict.is_left_out or self._of_table(rollout, verdict) is not None:
            return ()
        return step_tokens(rollout.response_ids, rollout.text, verdict.steps, self.decode)

    def _grade_and_retry(
        self,
        keys: Sequence[str],
        attempts: Sequence[Attempt],
        known: Mapping[int, Verdict],
        not_asked_again: Collection[int] = (),
    ) -> tuple[list[Verdict], int]:
        """Return one verdict per attempt, and the number of retries.

        `known`: verdicts by index. `not_asked_again`: indices of verdicts of environments, which no grader can repeat.
        """
        verdicts = dict(known)

        def grade(indices: Sequence[int]) -> None:
            graded = self._grade([keys[i] for i in indices], [attempts[i] for i in indices])
            verdicts.update(zip(indices, graded, strict=True))

        grade([i for i in range(len(attempts)) if i not in known])
        retried = 0
        for _ in range(self.config.retries):
            failed = [i for i in range(len(attempts)) if verdicts[i].is_infrastructure and i not in not_asked_again]
            if not failed:
                break
            # Only failures of graders are asked again; a timeout is the response's own and has a reward.
            retried += len(failed)
            grade(failed)
        return [verdicts[i] for i in range(len(attempts))], retried

    def _grade(
        self, keys: Sequence[str], attempts: Sequence[Attempt], process: GraderProcess | None = None
    ) -> list[Verdict]:
        """Return one verdict per attempt, by `process` if it has the verifier; failures are not tried again."""
        by_key: dict[str, list[int]] = {}
        for i, key in enumerate(keys):
            by_key.setdefault(key, []).append(i)
        # Without threads, one chunk has all attempts of a verifier: it grades equal attempts of a batch once.
        size = CHUNK if self._threads is not None else max(1, len(keys))
        chunks = [(key, ids[i : i + size]) for key, ids in by_key.items() for i in range(0, len(ids), size)]

        def ask(key: str, some: Sequence[Attempt]) -> list[Verdict]:
            grader = self.graders[key]
            verdicts = None
            # The process has the verifiers of the recipe: a grader that replaced one of them runs here.
            if process is not None and key in process.keys and may_leave(grader):
                verdicts = process.score(key, some)
            return [_checked(v) for v in (grader.score(some) if verdicts is None else verdicts)]

        def grade(chunk: tuple[str, list[int]]) -> list[Verdict]:
            key, some = chunk[0], [attempts[i] for i in chunk[1]]
            return self.cache.fill(key, some, ask) if is_pure(self.graders[key]) else ask(key, some)

        run: Callable[..., Any] = map if self._threads is None else self._threads.map
        verdicts: dict[int, Verdict] = {}
        # `map` yields in the order of the chunks, whichever thread ends first.
        for (_, indices), graded in zip(chunks, run(grade, chunks), strict=True):
            verdicts.update(zip(indices, graded, strict=True))
        return [verdicts[i] for i in range(len(keys))]


def outcome_of(prompt: Prompt, rollout: Rollout) -> Verdict | None:
    """Return the verdict that the rollout's environment gave; None if a verifier grades it."""
    episode = rollout.episode
    if episode is None:
        return None
    if episode.outcome is not None:
        return _checked(episode.outcome)
    if prompt.verifier != ENVIRONMENT:
        return None
    if episode.ending == "done":
        reason = f"environment {prompt.environment!r} ended the episode without a verdict; name a verifier for its rows"
        return Verdict("environment_error", reason=reason)
    return Verdict("no_answer", reason=f"ended: {episode.ending}")


def tells_right(verdict: Verdict) -> bool:
    """True unless the reward is outside [0, 1] and no threshold says from where on a response is right."""
    return verdict.reward is None or verdict.right is not None


def _checked(verdict: Verdict) -> Verdict:
    """Return the verdict, or a grader's failure if it is invalid: NaN as a reward would end the run at the update."""
    if verdict.status not in STATUSES:
        reason = f"status {verdict.status!r} is not one of {', '.join(STATUSES)}"
    # Written so that NaN, for which every comparison is false, is caught.
    elif verdict.status == "graded" and not 0.0 <= verdict.score <= 1.0:
        reason = f"score {verdict.score!r} is outside [0, 1]"
    elif verdict.reward is not None and not math.isfinite(verdict.reward):
        reason = f"reward {verdict.reward!r} is not finite"
    else:
        return verdict
    return Verdict("verifier_error", reason=reason, seconds=verdict.seconds)


def bind_verifiers(
    prompts: Sequence[Prompt], chosen: Mapping[str, VerifierChoice], base: Path | None = None
) -> dict[str, Grader]:
    """Return the verifiers that `prompts` name, by key. A key that is not in `chosen` is a verifier's name or path.

    Raises: DataError naming the first row whose verifier does not exist or has wrong parameters.
    """
    bound: dict[str, BoundVerifier[Any]] = {}
    for prompt in prompts:
        if prompt.verifier == ENVIRONMENT:
            continue
        try:
            if prompt.verifier not in bound:
                choice = chosen.get(prompt.verifier) or VerifierChoice.of_key(prompt.verifier, base)
                bound[prompt.verifier] = choice.bind(base)
            bound[prompt.verifier].require_columns(prompt.row)
        except (ConfigError, DataError) as exc:
            raise DataError(f"row {prompt.id!r}: {exc}") from exc
    return dict(bound)


def bind_components(config: ScoringConfig, base: Path | None = None) -> list[Grader]:
    """Return the verifiers of the recipe's components, in order. Raises: ConfigError if one does not exist."""
    return [c.verifier.bind(base) for c in config.components]
