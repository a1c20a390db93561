"""A verifier that says what the response tells it to, and rollouts to give to it."""

import threading
import time

from verizero.pipeline.scoring.score import Scorer
from verizero.pipeline.types import Prompt, Rollout, Verdict
from verizero.sandbox.isolation import Isolation


class Scripted:
    """Answers "graded 0.5" with that verdict; "flaky n" fails n times, then is right. Notes what it was asked."""

    def __init__(self, delay_s=0.0):
        self.delay_s = delay_s
        self.asked = []
        self.batches = []
        self.threads = set()
        self._lock = threading.Lock()

    def score(self, attempts):
        with self._lock:
            self.batches.append(len(attempts))
            self.threads.add(threading.current_thread().name)
            before = list(self.asked)
            self.asked += attempts
        if self.delay_s and attempts[0].reference == "slow":
            time.sleep(self.delay_s)
        return [self._one(a, sum(b == a for b in before)) for a in attempts]

    def _one(self, attempt, times):
        word, _, number = attempt.response.partition(" ")
        if word == "flaky":
            fails = times < int(number)
            return Verdict("sandbox_error", seconds=0.25) if fails else Verdict("graded", 1.0, "right", seconds=0.25)
        status = word
        return Verdict(status, float(number or 0), attempt.response, seconds=0.25)


def scorer_of(config, *names, delay_s=0.0):
    """A scorer whose verifiers, by those names, are scripted."""
    fakes = {name: Scripted(delay_s) for name in names or ("a",)}
    return Scorer(config, fakes), fakes


def prompts_of(*verifiers, reference="x"):
    """Prompt p0 for the first verifier, p1 for the second, and so on."""
    return {f"p{i}": Prompt(f"p{i}", f"question {i}", v, reference) for i, v in enumerate(verifiers)}


def rollout(text, prompt="p0", sample=0, finish="stop"):
    return Rollout(prompt, sample, (3,), (4, 1), (-0.1, -0.2), text, finish, 0)


def low_walls(monkeypatch):
    """Make the sandbox find nothing but limits on this machine."""
    stands = {"namespaces": False, "landlock": False, "seccomp": False, "rlimits": True}
    monkeypatch.setattr(
        "verizero.sandbox.pool.examine", lambda *_: Isolation(1, stands, {"landlock": "not in this kernel"})
    )
