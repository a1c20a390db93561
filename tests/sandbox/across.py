"""Acts of one session against another, and against its own bounds.

`FOLDER` is the other session's folder as the keeper names it, `OTHER` the process of its interpreter, `KEY` what is
written in a file of it. As with acts of single runs, code that returns without raising has succeeded; those marked with
`*` must succeed where there are no walls.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from tests.sandbox import programs
from tests.sandbox.processes import descendants, stats, wait_gone, wait_until
from tests.sandbox.programs import tables
from tests.sandbox.scene import Scene
from verizero import sandbox
from verizero.sandbox.worker import cells

LIMITS = sandbox.Limits(wall_s=5, cpu_s=3, memory_mib=160, output_kib=256, disk_mib=8, processes=16)
KEY = "key-of-the-other"

_PROGRAMS = tables(
    "across",
    COUNTER="import threading, time\ndef f():\n  n = 0\n  while True:\n"
    "    n += 1; open('count', 'w').write(str(n)); time.sleep(0.001)\n",
    END=f"import os, struct; END = struct.Struct({cells.CALL_END.format!r})\n",
    TOKEN="import sys\nf = sys._getframe()\nwhile f is not None and 'token' not in f.f_locals: f = f.f_back\n"
    "token = f.f_locals['token']\n",
)
PYTHON, SHELL = _PROGRAMS["python"], _PROGRAMS["shell"]
"""Calls of Python, which are told everything that a session cannot know; lines of Bash that must fail."""
BETWEEN, FORGERIES = _PROGRAMS["between"], _PROGRAMS["forgeries"]
"""Calls that continue while no call is under way; calls that make up the answer of another one."""


def open_session(pool: sandbox.Pool, **settings: object) -> sandbox.Session:
    """Open a session with the bounds of this suite."""
    return sandbox.Session(pool, **({"limits": LIMITS} | settings))  # type: ignore[arg-type]


def within(session: sandbox.Session, code: str, **limits: float) -> sandbox.CallResult:
    """Run a cell within other limits."""
    kept, session.limits = session.limits, replace(session.limits, **limits)  # type: ignore[arg-type]
    try:
        return session.python(code)
    finally:
        session.limits = kept


def interpreter(session: sandbox.Session) -> int:
    """Return the process of a session's interpreter, as the host names it."""
    keeper = session.pool.keeper().worker.process.pid
    before = set(descendants(keeper))
    session.python("import time; time.sleep(0.05)")
    halted = pool_children(keeper)
    fresh = [p for p in halted if p not in before] or halted
    return max(fresh)


def folder_of(session: sandbox.Session, number: int) -> str:
    """Return the folder of the session with that number, as the keeper names it."""
    scratch = session._open_connection().scratch
    return scratch if scratch.rsplit("/", 1)[1].isdecimal() else f"/in/{number}"


class Pair:
    """A session to attack, in which a key lies, and one that attacks."""

    def __init__(self, pool: sandbox.Pool, number: int = 1) -> None:
        self.pool = pool
        self.victim = open_session(pool)
        self.victim.python(f"for name, text in ('key', {KEY!r}), ('doomed', 'x'): open(name, 'w').write(text)")
        self.folder, self.process = folder_of(self.victim, number), interpreter(self.victim)
        self.attacker = open_session(pool)

    def fill(self, code: str) -> str:
        """Return the code with the victim's folder and process in it."""
        for name, value in (
            ("FOLDER", self.folder), ("OTHER", self.process), ("MARK", f"m{self.process}"), ("KEY", KEY),
        ):  # fmt: skip
            code = code.replace(name, str(value))
        return code

    def close(self) -> None:
        """Close both."""
        self.attacker.close()
        self.victim.close()


def succeeds(pair: Pair, code: str) -> bool:
    """True if the act succeeds as a call of Python."""
    return "PWNED" in pair.attacker.python(f"{pair.fill(code)}\nprint('PWNED')").stdout


def act_complaints(pool: sandbox.Pool) -> Iterator[str]:
    """Yield the acts across sessions that succeed, and what they have changed."""
    pair = Pair(pool)
    try:
        yield from (f"across: {name}" for name, code in PYTHON.items() if succeeds(pair, code))
        if pool.tools:
            for name, line in SHELL.items():
                result = pair.attacker.shell(pair.fill(line))
                if result.passed or result.status == "sandbox_error":
                    yield f"across, in a shell: {name}: {result}"
        seen = pair.victim.python("import os; print(sorted(os.listdir('.')), open('key').read())").stdout
        if seen != f"['doomed', 'key'] {KEY}\n":
            yield f"across: the other session's files have changed: {seen}"
    finally:
        pair.close()


def scene_complaints(pool: sandbox.Pool) -> Iterator[str]:
    """Yield the acts of single runs that succeed within a session, and the harm that they do to the host."""
    scene = Scene()
    try:
        with open_session(pool) as session:
            for table in programs.ACTS.values():
                for name, code in table.items():
                    result = within(session, scene.program(code), wall_s=2)
                    if "PWNED" in result.stdout:
                        yield f"in a session: {name}"
                    if "attempt begins" not in result.stderr:
                        yield f"in a session: {name} never began: {result}"
        yield from scene.harm()
    finally:
        scene.close()


def starves(pool: sandbox.Pool) -> Iterator[str]:
    """Yield what one session can take from another's quota, processes, memory or descriptors."""
    with open_session(pool) as glutton, open_session(pool) as other:
        for code in (
            "f = open('f', 'wb')\ntry:\n  while True: f.write(bytes(65536)); f.flush()\nexcept OSError: print('full')",
            "i = 0\ntry:\n  while True: open(f'f{i}', 'w').close(); i += 1\nexcept OSError: print('full')",
            "import threading as t\ntry:\n  while True: t.Thread(target=t.Event().wait, daemon=True).start()\n"
            "except RuntimeError: print('full')",
            "held = []\ntry:\n  while True: held.append(bytearray(1 << 20))\nexcept MemoryError: print('full')",
            "import os\nfds = []\ntry:\n  while True: fds.extend(os.pipe())\nexcept OSError: print('full')",
        ):
            result = glutton.python(code)
            if result.passed and "full" not in result.stdout:
                yield f"a session was never full: {code[:40]!r} {result}"
            if not result.passed and result.status not in ("memory_limit", "runtime_error"):
                yield f"a session did not end at its bound: {code[:40]!r} {result}"
            works = other.python(
                "import threading, os\nopen('mine', 'wb').write(b'x' * (6 << 20)); os.remove('mine')\n"
                "for i in range(150): open(f'g{i}', 'w').close()\nfor i in range(150): os.remove(f'g{i}')\n"
                "t = [threading.Thread(target=threading.Event().wait, args=(0.01,)) for _ in range(8)]\n"
                "for x in t: x.start()\nfor x in t: x.join()\nb = bytearray(90 << 20); del b; print('works')"
            )
            if works.stdout != "works\n":
                yield f"another session suffers from {code[:40]!r}: {works}"


def act_between(pool: sandbox.Pool) -> Iterator[str]:
    """Yield the acts that continue while no call is under way."""
    for name, code in BETWEEN.items():
        with open_session(pool) as session:
            if not session.python(f"{code}\nimport time; time.sleep(0.1); open('count').close()").passed:
                yield f"between calls: {name} did not begin"
            folder = Path(f"/proc/{interpreter(session)}/cwd")
            if not os.access(folder, os.R_OK):  # the kernel shows an ordinary user none; root's pools are tried too
                continue
            time.sleep(0.05)  # what it was writing as it was halted
            first = (folder / "count").read_text()
            time.sleep(0.1)
            if (later := (folder / "count").read_text()) != first:
                yield f"between calls: {name} went on from {first!r} to {later!r}"
    if pool.tools:
        with open_session(pool) as session:
            late = "sleep 0.15; echo late > late"
            session.shell(f"setsid sh -c '{late}' & disown; ({late}) & nohup sh -c '{late}' > /dev/null & echo begun")
            time.sleep(0.3)
            if session.shell("ls").stdout != "":
                yield "between calls: a daemon of the shell went on"


def forge(pool: sandbox.Pool) -> Iterator[str]:
    """Yield the calls whose answer another call's program has made up."""
    for name, code in FORGERIES.items():
        with open_session(pool) as session, open_session(pool) as other:
            first = within(session, f"{code}\nprint('of the first', flush=True)", wall_s=1)
            if "Error" in first.error.replace("Bad file descriptor", "") and "closed" not in name:
                yield f"forged by {name}: it never began: {first}"
            for number in range(3):
                result = within(session, f"print('call {number}')\nassert {number} != 1", wall_s=1)
                wanted = "runtime_error" if number == 1 else "passed"
                if result.status == "timeout":  # it has cut itself off from its keeper, and pays for it
                    continue
                if (result.stdout, result.status) != (f"call {number}\n", wanted):
                    yield f"forged by {name}: {result}"
            if other.python("print('fine')").stdout != "fine\n":
                yield f"forged by {name}: the keeper suffers"


def bomb(pool: sandbox.Pool) -> Iterator[str]:
    """Yield what a flood of processes, threads or descriptors leaves or harms."""
    if not pool.tools:
        return
    keeper = pool.keeper().worker.process.pid
    with open_session(pool) as other, open_session(pool) as session:
        other.python("x = 1")
        before, stop = len(descendants(keeper)), threading.Event()
        failed: list[sandbox.CallResult] = []

        def calls() -> None:
            while not stop.wait(0.05):
                if not (result := other.python("print(x)")).passed:
                    failed.append(result)

        thread = threading.Thread(target=calls)
        thread.start()
        session.limits = replace(LIMITS, wall_s=1)
        result = session.shell("f() { f | f & }; f; sleep 9")
        stop.set()
        thread.join()
        if result.passed or failed:
            yield f"a fork bomb: {result}, {failed[:1]}"
        if not wait_until(lambda: len(descendants(keeper)) <= before + 1):
            yield "a fork bomb left processes"


def leftovers(pool: sandbox.Pool) -> Iterator[str]:
    """Yield what is left of sessions that were closed."""
    keeper = pool.keeper().worker.process.pid

    def count() -> tuple[int, int, int]:
        mounts = Path(f"/proc/{keeper}/mounts").read_text().count("\n")
        return len(os.listdir(f"/proc/{keeper}/fd")), mounts, len(os.listdir("/proc/self/fd"))

    with open_session(pool) as first:
        first.python("1")
    wait_until(lambda: len(pool_children(keeper)) == 0)
    time.sleep(0.3)  # the keeper may be closing it still
    before = count()
    pids: set[int] = set()
    for _ in range(3):
        made = [open_session(pool) for _ in range(4)]
        for session in made:
            session.python("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()")
            pids |= set(pool_children(keeper))
            session.close()
    if wait_gone(sorted(pids)):
        yield "processes of closed sessions"
    if not wait_until(lambda: count() == before):
        yield f"descriptors of the keeper, its mounts, our descriptors: {count()} after {before}"


def pool_children(keeper: int) -> list[int]:
    """Return the halted processes below the keeper: interpreters that sleep."""
    below, fields = descendants(keeper), stats()
    return [p for p in below if p in fields and fields[p][0] == "T"]


ALL: dict[str, Callable[[sandbox.Pool], Iterator[str]]] = {
    "acts across": act_complaints,
    "acts of single runs": scene_complaints,
    "starving others": starves,
    "acting between calls": act_between,
    "forging the end": forge,
    "fork bomb": bomb,
    "leftovers": leftovers,
}


def complaints(pool: sandbox.Pool) -> list[str]:
    """Return everything that sessions of this pool can do and must not."""
    return [complaint for attack in ALL.values() for complaint in attack(pool)]
