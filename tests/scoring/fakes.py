"""A verifier that says what the response tells it to, and rollouts to give to it."""

import threading
import time
from collections.abc import Sequence

import pytest

from verizero.pipeline.config.scoring import ScoringConfig
from verizero.pipeline.scoring.score import Scorer
from verizero.pipeline.types import Attempt, FinishReason, Prompt, Rollout, Status, Verdict
from verizero.sandbox.isolation import Isolation


class Scripted:
    """Answers "graded 0.5" with that verdict; "flaky n" fails n times, then is right. Notes what it was asked."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.asked: list[Attempt] = []
        self.batches: list[int] = []
        self.threads: set[str] = set()
        self._lock = threading.Lock()

    def score(self, attempts: Sequence[Attempt]) -> list[Verdict]:
        with self._lock:
            self.batches.append(len(attempts))
            self.threads.add(threading.current_thread().name)
            before = list(self.asked)
            self.asked += attempts
        if self.delay_s and attempts[0].reference == "slow":
            time.sleep(self.delay_s)
        return [self._one(a, sum(b == a for b in before)) for a in attempts]

    def _one(self, attempt: Attempt, times: int) -> Verdict:
        word, _, number = attempt.response.partition(" ")
        if word == "flaky":
            fails = times < int(number)
            return Verdict("sandbox_error", seconds=0.25) if fails else Verdict("graded", 1.0, "right", seconds=0.25)
        status: Status = word
        return Verdict(status, float(number or 0), attempt.response, seconds=0.25)


def scorer_of(config: ScoringConfig, *names: str, delay_s: float = 0.0) -> tuple[Scorer, dict[str, Scripted]]:
    """A scorer whose verifiers, by those names, are scripted."""
    fakes = {name: Scripted(delay_s) for name in names or ("a",)}
    return Scorer(config, fakes), fakes


def prompts_of(*verifiers: str, reference: str = "x") -> dict[str, Prompt]:
    """Prompt p0 for the first verifier, p1 for the second, and so on."""
    return {f"p{i}": Prompt(f"p{i}", f"question {i}", v, reference) for i, v in enumerate(verifiers)}


def rollout(text: str, prompt: str = "p0", sample: int = 0, finish: FinishReason = "stop") -> Rollout:
    return Rollout(prompt, sample, (3,), (4, 1), (-0.1, -0.2), text, finish, 0)


def low_walls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the sandbox find nothing but limits on this machine."""
    stands = {"namespaces": False, "landlock": False, "seccomp": False, "rlimits": True}
    monkeypatch.setattr(
        "verizero.sandbox.pool.examine", lambda *_: Isolation(1, stands, {"landlock": "not in this kernel"})
    )
