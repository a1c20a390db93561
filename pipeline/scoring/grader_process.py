"""A process that grades, with lower priority than decoding: it uses idle cores, and not the trainer's interpreter lock.

It runs the same verifiers on the same attempts as the trainer would, so verdicts do not depend on the process. It ends
when its standard input closes, which happens when the trainer ends in any way.
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

from verizero.pipeline.child import close_pipes, end, start
from verizero.pipeline.config.choices import VerifierChoice
from verizero.pipeline.config.sandbox import SandboxConfig
from verizero.pipeline.own_programs import import_path, module_command
from verizero.pipeline.scoring.sandbox_setup import open_sandbox
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.base import load

NICENESS = 10
BROKEN = (OSError, EOFError, ValueError, pickle.PickleError, AttributeError)
"""Errors that reading or writing raises once the other process is gone: closed pipes, incomplete answers."""


class GraderProcess:
    """The process, as the trainer uses it: it starts with the first attempts, and answers one thread at a time."""

    def __init__(self, sandbox: SandboxConfig, base: Path, choices: Mapping[str, VerifierChoice]) -> None:
        """Prepare for the verifiers `choices`, by key; each must be given by name, not by path."""
        self._setup = (sandbox.model_dump(), base, {key: (c.name, c.params) for key, c in choices.items()})
        self.keys = frozenset(choices)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def score(self, key: str, attempts: Sequence[Attempt]) -> list[Verdict] | None:
        """Return one verdict per attempt, in order; None if the process has ended: then the caller must grade."""
        with self._lock:
            if self._closed:
                return None
            try:
                process = self._process = self._process or self._launch()
                assert process.stdin is not None
                assert process.stdout is not None
                # One request and one answer under the lock: the pipe has no numbers to match them by.
                pickle.dump((key, list(attempts)), process.stdin)
                process.stdin.flush()
                verdicts: list[Verdict] = pickle.load(process.stdout)
            except BROKEN:
                self._end()
                return None
            return verdicts

    def start(self) -> None:
        """Start the process before it is needed."""
        # After a failure the first `score` returns None.
        with self._lock, contextlib.suppress(*BROKEN):
            if not self._closed:
                self._process = self._process or self._launch()

    def _launch(self) -> subprocess.Popen[bytes]:
        # In a session of its own: Ctrl-C reaches the trainer alone, which still needs verdicts while it ends.
        process = start(module_command(__name__), import_path(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None
        pickle.dump(self._setup, process.stdin)
        process.stdin.flush()
        return process

    def close(self) -> None:
        """End the process; `score` returns None from now on."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        self._closed = True
        process, self._process = self._process, None
        if process is not None:
            close_pipes(process)
            # With a signal: a process that still starts would see the closed pipe only after that.
            end(process, grace_s=10)


def serve() -> None:
    """Answer requests until standard input ends: the program of the process."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a verifier's prints must not mix with the answers
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    requests: Any = sys.stdin.buffer
    with contextlib.suppress(EOFError, BrokenPipeError):
        sandbox, base, choices = pickle.load(requests)
        graders = {key: load(name).bind(params, base) for key, (name, params) in choices.items()}
        # Before the sandbox starts workers: from now on a signal must end them too.
        signal.signal(signal.SIGTERM, _exit)
        open_sandbox(SandboxConfig(**sandbox), graders.values(), lambda text: None)
        while True:
            key, attempts = pickle.load(requests)
            pickle.dump(graders[key].score(attempts), answers)
            answers.flush()
    # The process exits now: a signal must not interrupt the exit handler that ends the sandbox's workers.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _exit(*_: object) -> None:
    """Exit by the usual handlers, which end the sandbox's workers too."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


if __name__ == "__main__":
    serve()
