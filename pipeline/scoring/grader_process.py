"""A process for graders alone, below decoding in priority: they get what decoding leaves of the cores, not its lock.

What it grades runs the same code on the same attempts as in the trainer, so verdicts do not depend on where they were
made. It ends with its standard input, which closes with the trainer, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pipeline
from pipeline.config.data import VerifierChoice
from pipeline.config.sandbox import SandboxConfig
from pipeline.scoring.sandbox_setup import open_sandbox
from pipeline.types import Attempt, Verdict
from verifiers.base import load

NICENESS = 10
BROKEN = (OSError, EOFError, ValueError, pickle.PickleError, AttributeError)
"""What the other side's end looks like: pipes that are shut, answers that are cut."""


class Apart:
    """The trainer's end. Begins with the first attempts; one round at a time, from any thread."""

    def __init__(self, sandbox: SandboxConfig, base: Path, choices: Mapping[str, VerifierChoice]) -> None:
        """`choices`: by the key that graders are asked by; names only, as a path's file is imported here."""
        self._told = (sandbox.model_dump(), base, {key: (c.name, c.params) for key, c in choices.items()})
        self.keys = frozenset(choices)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def score(self, key: str, attempts: Sequence[Attempt]) -> list[Verdict] | None:
        """One verdict per attempt, in order; None where the process is gone: they are to be graded here."""
        with self._lock:
            if self._closed:
                return None
            try:
                process = self._process = self._process or self._start()
                assert process.stdin is not None
                assert process.stdout is not None
                pickle.dump((key, list(attempts)), process.stdin)
                process.stdin.flush()
                verdicts: list[Verdict] = pickle.load(process.stdout)
            except BROKEN:
                self._end()
                return None
            return verdicts

    def begin(self) -> None:
        """Have the process ready before it is needed."""
        with self._lock, contextlib.suppress(*BROKEN):
            if not self._closed:
                self._process = self._process or self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        root = str(Path(pipeline.__path__[0]).parent)
        found = {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
        process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=os.environ | found, start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None
        pickle.dump(self._told, process.stdin)
        process.stdin.flush()
        return process

    def close(self) -> None:
        """End the process; what is asked of it later is answered None."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        self._closed = True
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        process.terminate()  # one that is still beginning would first finish that
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def serve() -> None:
    """The process's side: answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a verifier prints is no answer
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    asked: Any = sys.stdin.buffer
    with contextlib.suppress(EOFError, BrokenPipeError):
        sandbox, base, choices = pickle.load(asked)
        bound = {key: load(name).bind(params, base) for key, (name, params) in choices.items()}
        signal.signal(signal.SIGTERM, _end)
        open_sandbox(SandboxConfig(**sandbox), bound.values(), lambda text: None)
        while True:
            key, attempts = pickle.load(asked)
            pickle.dump(bound[key].score(attempts), answers)
            answers.flush()
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # on the way out already: what ends the sandbox is not to be cut short


def _end(*_: object) -> None:
    """Exit, which ends the sandbox's workers too."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


if __name__ == "__main__":
    serve()
