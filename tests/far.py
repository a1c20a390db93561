"""A program that a test starts and signals as its own, and that is a fork of a process of `tests.warm`."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial

from tests.processes import until
from tests.warm import warm
from verizero.pipeline.host.child import die_with


class FarProgram:
    """`python -m PROGRAM` in a session of its own, which writes to `log`; used as a Popen is."""

    def __init__(self, modules, program, log, environment, folder):
        number = log.with_suffix(".pid")
        number.unlink(missing_ok=True)
        self._status = -signal.SIGKILL  # stays where the process of `tests.warm` was killed, and the program with it

        def run():
            self._status = warm(modules).call(run_to_end, list(program), log, number, dict(environment), folder)

        self._life = threading.Thread(target=run, daemon=True)
        self._life.start()
        until(lambda: number.exists() and number.read_text(), "the program's process")
        self.pid = int(number.read_text())

    def poll(self):
        """Return the program's status once it has ended."""
        return None if self._life.is_alive() else self._status

    def wait(self, timeout=None):
        """Return the program's status when it ends. Raises: TimeoutExpired."""
        self._life.join(timeout)
        if self._life.is_alive():
            raise subprocess.TimeoutExpired("the program", timeout or 0.0)
        return self._status

    def send_signal(self, number):
        """Send the program's first process a signal."""
        if self._life.is_alive():
            os.kill(self.pid, number)

    def kill(self):
        """Kill the program's group of processes."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def begin(owner):
    """End with the owner, and ignore Ctrl-C, as a program does that a shell has started in the background."""
    die_with(owner)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_to_end(program, log, number, environment, folder):
    """Start the program, write its process id to the file `number`, and return its status when it has ended."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", *program],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=partial(begin, os.getpid()),
        )
    unfinished = number.with_suffix(".new")
    unfinished.write_text(str(process.pid))
    unfinished.rename(number)
    return process.wait()
