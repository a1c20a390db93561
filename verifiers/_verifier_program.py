"""The process of users' verifiers. It ends with its standard input, or when nothing ends a call that is too long."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import pickle
import signal
import sys
import threading
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from verizero.sandbox import settings
from verizero.verifiers import _verifier_process
from verizero.verifiers.base import BoundVerifier, load

Choice = tuple[str | None, str | None, Path | None, dict[str, Any], float]
"""(name, path, base, params, time_s) of a verifier."""
Request = tuple[Choice, list[Any]]
"""(verifier, attempts)."""


class Answers:
    """Grades requests, one at a time and in the main thread: a verifier may set alarms, which other threads cannot."""

    def __init__(self, out: IO[bytes], dump: int) -> None:
        """`dump`: descriptor of the file to which stacks are written before the process is killed."""
        self._out, self._dump, self._process = out, dump, os.getpid()
        self._requests: SimpleQueue[Request] = SimpleQueue()

    def read(self, source: IO[bytes]) -> None:
        """Take requests until their end; then end the process, whatever its verifiers are doing."""
        try:
            while True:
                self._requests.put(pickle.load(source))
        finally:
            os._exit(0)

    def run(self) -> None:
        """Answer in this thread."""
        while True:
            self._answer(*self._requests.get())

    def _answer(self, choice: Choice, attempts: list[Any]) -> None:
        name, path, base, params, time_s = choice
        try:
            asyncio.get_event_loop()
        except RuntimeError:  # another verifier's asyncio.run has left none
            asyncio.set_event_loop(asyncio.new_event_loop())
        try:
            bound = _bound(name, path, base, pickle.dumps(params), time_s)
        except BaseException as exc:
            self._write("refused", f"does not load: {type(exc).__name__}: {exc}"[:300])
            return
        self._write("ready", None)
        # Should nobody be left to end a call that never returns to Python.
        faulthandler.dump_traceback_later(
            _verifier_process.START_S + bound.time_s * len(attempts), exit=True, file=self._dump
        )
        for v in bound.verdicts_here(attempts):
            self._write("verdict", tuple(getattr(v, f.name) for f in fields(v)))
        faulthandler.cancel_dump_traceback_later()

    def _write(self, kind: str, value: Any) -> None:
        if os.getpid() != self._process:  # a verifier's fork has returned: the answer is its parent's
            os._exit(0)
        pickle.dump((kind, value), self._out)
        self._out.flush()


@lru_cache(maxsize=256)
def _bound(name: str | None, path: str | None, base: Path | None, params: bytes, time_s: float) -> BoundVerifier[Any]:
    return load(name, path).bind(pickle.loads(params), base, time_s)


def main() -> None:
    """Answer requests of standard input."""
    _verifier_process.is_inside = True
    source, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # prints must not mix with the answers
    # Written by a handler in C, also while the code is within a call that never returns to Python.
    dump = int(sys.argv[1])
    faulthandler.enable(dump)
    faulthandler.register(signal.SIGUSR1, dump)
    sys.path[:] = pickle.load(source)
    settings.take_over()
    asyncio.set_event_loop(None)  # else Python 3.12 warns where it makes one
    answers = Answers(out, dump)
    threading.Thread(target=answers.read, args=(source,), daemon=True).start()
    answers.run()


if __name__ == "__main__":
    main()
