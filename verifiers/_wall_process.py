"""The program of the process in which users' verifiers grade.

It ends when its standard input does, or when nothing ends a call that takes far too long.
"""

from __future__ import annotations

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
from verizero.verifiers import _wall
from verizero.verifiers.base import BoundVerifier, load

Choice = tuple[str | None, str | None, Path | None, dict[str, Any], float]
"""(name, path, base, params, time_s) of a verifier."""
Request = tuple[int, Choice, list[Any]]
"""(number, verifier, attempts)."""


class Answers:
    """Grades requests, several at a time."""

    def __init__(self, out: IO[bytes], dump: int) -> None:
        """`dump`: descriptor of the file to which stacks are written before the process is killed."""
        self._out, self._dump, self._writing = out, dump, threading.Lock()
        self._requests: SimpleQueue[Request] = SimpleQueue()
        self._main = threading.Lock()
        """Held while the main thread has something to do."""

    def read(self, source: IO[bytes]) -> None:
        """Take requests until their end; then end the process, whatever its verifiers are doing."""
        try:
            while True:
                request: Request = pickle.load(source)
                # The main thread if it is free: a verifier may set alarms, which others cannot.
                if self._main.acquire(blocking=False):
                    self._requests.put(request)
                else:
                    threading.Thread(target=self._answer, args=(request,), daemon=True).start()
        finally:
            os._exit(0)

    def run(self) -> None:
        """Answer in the main thread."""
        while True:
            self._answer(self._requests.get())
            self._main.release()

    def _answer(self, request: Request) -> None:
        number, (name, path, base, params, time_s), attempts = request
        try:
            bound = _bound(name, path, base, pickle.dumps(params), time_s)
        except BaseException as exc:
            self._write(number, "refused", f"does not load: {type(exc).__name__}: {exc}"[:300])
            return
        self._write(number, "ready", None)
        # Should nobody be left to end a call that never returns to Python.
        faulthandler.dump_traceback_later(_wall.START_S + bound.time_s * len(attempts), exit=True, file=self._dump)
        for v in bound.verdicts_here(attempts):
            self._write(number, "verdict", tuple(getattr(v, f.name) for f in fields(v)))
        faulthandler.cancel_dump_traceback_later()

    def _write(self, number: int, kind: str, value: Any) -> None:
        with self._writing:
            pickle.dump((number, kind, value), self._out)
            self._out.flush()


@lru_cache(maxsize=256)
def _bound(name: str | None, path: str | None, base: Path | None, params: bytes, time_s: float) -> BoundVerifier[Any]:
    return load(name, path).bind(pickle.loads(params), base, time_s)


def main() -> None:
    """Answer requests of standard input."""
    _wall.is_inside = True
    source, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # prints must not mix with the answers
    # Written by a handler in C, also while the code is within a call that never returns to Python.
    dump = int(sys.argv[1])
    faulthandler.enable(dump)
    faulthandler.register(signal.SIGUSR1, dump)
    sys.path[:] = pickle.load(source)
    settings.take_over()
    answers = Answers(out, dump)
    threading.Thread(target=answers.read, args=(source,), daemon=True).start()
    answers.run()


if __name__ == "__main__":
    main()
