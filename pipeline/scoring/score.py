"""Responses to rewards: a prompt's verifier gives a verdict, the recipe's table turns the verdict into a reward.

A verifier that fails is asked again. A response that still has no verdict has no reward, which is not a reward of zero:
it leaves its group and is counted, and too many of them are reported.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from verizero.pipeline.config.choices import ENVIRONMENT, VerifierChoice
from verizero.pipeline.config.scoring import ScoringConfig
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.types import (
    INFRASTRUCTURE,
    MAX_REWARD,
    STATUSES,
    Attempt,
    EndedResponse,
    FinishReason,
    Message,
    Prompt,
    Rollout,
    ScoredRollout,
    Verdict,
)
from verizero.verifiers._steps import step_ends
from verizero.verifiers.base import BoundVerifier

Grade = Callable[[Sequence[str], Sequence[Attempt]], list[Verdict]]
"""(keys of verifiers, attempts) -> one verdict per attempt, in order."""


def attempt_of(
    prompt: Prompt,
    text: str,
    finish_reason: FinishReason,
    messages: tuple[Message, ...] = (),
    response_ids: Sequence[int] = (),
) -> Attempt:
    """Return a response to `prompt` as verifiers see it; with `messages`, it is the last one of an episode."""
    ids = () if prompt.row is None else tuple(response_ids)  # only what takes columns can ask for tokens
    return Attempt(text, prompt.reference, prompt.question, finish_reason == "length", messages, prompt.row, ids)


def attempt_in(prompt: Prompt, rollout: Rollout) -> Attempt:
    """Return a rollout as verifiers see it."""
    messages = () if rollout.episode is None else rollout.episode.messages
    return attempt_of(prompt, rollout.answer, "length" if rollout.was_cut else "stop", messages, rollout.response_ids)


class EarlyGrading:
    """Grades in a thread the responses that `add` receives; `verdicts` waits for them.

    Responses that end while graders are busy are graded together afterwards. So slow graders get larger batches, and
    equal responses that end together are graded once.
    """

    def __init__(self, components: Sequence[str], grade: Grade, thread: Executor) -> None:
        """`components`: keys of further verifiers that grade every response. `thread` must run one call at a time."""
        self._components, self._grade, self._thread = components, grade, thread
        self._lock = threading.Lock()
        self._waiting: list[EndedResponse] = []
        self._rounds: list[Future[None]] = []
        self._graded: dict[int, tuple[str, Attempt]] = {}
        """By index: the verifier's key and the attempt that were graded."""
        self._verdicts: list[dict[int, Verdict]] = [{} for _ in range(1 + len(components))]
        self.seconds = 0.0
        """Seconds in which graders worked."""

    def add(self, ended: Sequence[EndedResponse], offset: int = 0) -> None:
        """Grade these responses soon. `offset` is added to their indices: each `generate_rollouts` counts from 0."""
        with self._lock:
            self._waiting += [replace(e, index=e.index + offset) for e in ended]
        # One round per call: rounds that find nothing to do, as an earlier one took all that waited, end at once.
        self._rounds.append(self._thread.submit(self._grade_waiting))

    def verdicts(self, keys: Sequence[str], attempts: Sequence[Attempt]) -> list[dict[int, Verdict]]:
        """Return verdicts by index into `attempts`: first those of `keys`, then those of each component.

        Waits for all responses added. An index has no verdict if another attempt was graded there.
        """
        for future in self._rounds:
            future.result()
        # No lock is needed: the thread that writes these has ended its rounds.
        same = {i for i, pair in self._graded.items() if i < len(attempts) and pair == (keys[i], attempts[i])}
        return [{i: verdict for i, verdict in column.items() if i in same} for column in self._verdicts]

    def _grade_waiting(self) -> None:
        with self._lock:
            ended, self._waiting = self._waiting, []
        if not ended:
            return
        start = time.perf_counter()
        attempts = [attempt_of(e.prompt, e.text, e.finish_reason, e.messages, e.response_ids) for e in ended]
        keys = [e.prompt.verifier for e in ended]
        indices = [e.index for e in ended]
        columns = [keys, *([name] * len(attempts) for name in self._components)]
        for verdicts, column in zip(self._verdicts, columns, strict=True):
            verdicts.update(zip(indices, self._grade(column, attempts), strict=True))
        self._graded.update(zip(indices, zip(keys, attempts, strict=True), strict=True))
        self.seconds += time.perf_counter() - start


CONTEXT = 8
"""Tokens decoded before those that are measured, since some tokenizers drop the blank of a text's first token."""
PIECE = 16
"""Tokens of the first piece in which a step's end is looked for; each further one is twice as long."""


def step_tokens(
    ids: Sequence[int], text: str, steps: Iterable[tuple[str, float]], decode: Callable[[Sequence[int]], str]
) -> tuple[tuple[int, float], ...]:
    """Return (number of tokens up to its end, reward) for each step of the response with these tokens and this text.

    A step ends with the token that has its last character; the last step ends with the response. Two steps may end
    with the same token. Raises: ValueError for a step that is not in the text.
    """
    ends = step_ends(text, steps)
    out: list[tuple[int, float]] = []
    num_tokens = num_chars = 0  # the tokens looked through so far, and their characters
    for end, reward in ends[:-1]:
        begin = max(0, num_tokens - CONTEXT)
        before = num_chars - _num_chars(ids[begin:num_tokens], decode)

        def chars(stop: int, begin: int = begin, before: int = before) -> int:
            return before + _num_chars(ids[begin:stop], decode)

        stop, size = num_tokens, PIECE
        while stop < len(ids) and chars(stop) < end:
            stop, size = min(len(ids), stop + size), 2 * size
        num_tokens = min(len(ids), bisect_left(range(stop + 1), end, lo=num_tokens, key=chars))
        num_chars = chars(num_tokens)
        out.append((num_tokens, reward))
    return (*out, (len(ids), ends[-1][1])) if ends else ()


def _num_chars(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> int:
    """Return the number of whole characters of the tokens: a last character may miss bytes."""
    return len(decode(ids).rstrip("\N{REPLACEMENT CHARACTER}"))


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
        decode: Callable[[Sequence[int]], str] | None = None,
    ) -> None:
        """`graders`: by key. `components`: the graders of `config.components`, in order.

        decode: the text of tokens, by which steps of a response are found in its tokens; None: steps are not.
        """
        self.config = config
        self.decode = decode
        self.graders = {**graders, **{f"{COMPONENT}{i}": g for i, g in enumerate(components)}}
        self._threads = ThreadPoolExecutor(config.workers, "grade") if config.workers > 1 else None
        self._early_thread = ThreadPoolExecutor(1, "grade-early")

    def grade_early(self, with_components: bool = False) -> EarlyGrading:
        """Return a grading that takes responses as they end; `score` then needs its result."""
        return EarlyGrading(self._components(with_components), self._grade, self._early_thread)

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
        """End the grading threads; early grading that has not begun is dropped."""
        self._early_thread.shutdown(cancel_futures=True)
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

    def _grade(self, keys: Sequence[str], attempts: Sequence[Attempt]) -> list[Verdict]:
        """Return one verdict per attempt; failures are not tried again."""
        by_key: dict[str, list[int]] = {}
        for i, key in enumerate(keys):
            by_key.setdefault(key, []).append(i)
        # Without threads, one chunk has all attempts of a verifier: it grades equal attempts of a batch once.
        size = CHUNK if self._threads is not None else max(1, len(keys))
        chunks = [(key, ids[i : i + size]) for key, ids in by_key.items() for i in range(0, len(ids), size)]

        def grade(chunk: tuple[str, list[int]]) -> list[Verdict]:
            key, indices = chunk
            return [_checked(v) for v in self.graders[key].score([attempts[i] for i in indices])]

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
    elif verdict.reward is not None and not abs(verdict.reward) <= MAX_REWARD:
        reason = f"reward {verdict.reward!r} is no number up to {MAX_REWARD:g}"
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
