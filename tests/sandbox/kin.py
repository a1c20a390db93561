"""Acts of a session against the sessions that it was forked from or with, which began as copies of one process.

As in `across`, a program that returns without raising has succeeded.
"""

# ruff: noqa: E501  (one program, one line)

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.sandbox import across
from tests.sandbox.processes import descendants, wait_gone, wait_until
from verizero import sandbox

BEFORE = "import os, signal, threading, time\nos.mkdir('d'); os.chdir('d'); x = [1]"
"""The past that all kin share; their working folder is a folder of the common files."""

PYTHON = {
    "read by the working folder": f"assert '{across.KEY}' in open('late').read()",
    "read above the working folder": f"assert '{across.KEY}' in open('../key').read()",
    "list by the working folder": "assert 'late' in os.listdir('.')",
    "see the other's variable": "assert x != [1]",
    "an open descriptor": "assert [fd for fd in range(5, 64) if os.path.exists(f'/dev/fd/{fd}') or os.dup(fd)]",
    "clone as the keeper does": "import ctypes\np = ctypes.CDLL(None).syscall(56, 0x30020011, 0, 0, 0, 0)\nif p == 0: os._exit(0)\nassert p > 0",
    "bury another's child": "import ctypes; assert ctypes.CDLL(None).syscall(61, -1, 0, 1, 0) >= 0",
    "take descriptors": "import ctypes; b = ctypes.create_string_buffer(56); assert ctypes.CDLL(None).syscall(47, 3, b, 64) >= 0",
    "keep capabilities": "import ctypes; assert ctypes.CDLL(None).syscall(126, b'\\x22\\x05\\x08\\x20' + bytes(4), bytes(24)) == 0",
    "signal the next numbers": "for p in range(2, 64):\n  try: os.kill(p, 0)\n  except OSError: continue\n  break\nelse: raise OSError",
    "signal its parent": "os.kill(os.getppid(), 0); assert os.getppid()",
    "be traced": "import ctypes; assert ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0",
}
"""Acts that need what a copy has of its model. They must fail between any two of kin."""


class Family:
    """A session, two forks of it, and a fork of the first fork, each of which has had a call since."""

    def __init__(self, pool: sandbox.Pool) -> None:
        self.root = across.open_session(pool)
        assert self.root.python(BEFORE).passed
        self.first, self.second = self.root.fork(2)
        self.first.python("y = 1")
        (self.grandchild,) = self.first.fork(1)
        self.all = {"root": self.root, "first": self.first, "second": self.second, "grandchild": self.grandchild}
        for member in self.all.values():
            assert member.python("z = 1").passed

    def close(self) -> None:
        """Close all."""
        for member in self.all.values():
            member.close()


def act_complaints(pool: sandbox.Pool) -> Iterator[str]:
    """Yield the acts that succeed between kin. Each has a turn as the victim, whose files and variables are its own."""
    for name in ("root", "first", "second", "grandchild"):
        family = Family(pool)
        try:
            yield from _against(name, family)
            if any(member.folds for member in family.all.values()):
                yield f"one of the kin was lost in acts against {name}"
        finally:
            family.close()


def _against(name: str, family: Family) -> Iterator[str]:
    victim = family.all[name]
    victim.write("key", across.KEY)
    victim.write("doomed", "x")
    victim.write("d/late", across.KEY)
    victim.python(f"x = ['{across.KEY}']; held = open('late')")
    folder, pid = across.folder_of(victim, newest_folder(victim.pool)), str(process_of(victim))
    for who, attacker in family.all.items():
        for act, code in (PYTHON | across.PYTHON).items():
            filled = code.replace("FOLDER", folder).replace("OTHER", pid).replace("MARK", f"k{pid}")
            if attacker is not victim and "PWNED" in attacker.python(f"{filled}\nprint('PWNED')").stdout:
                yield f"{who} against {name}: {act}"
    seen = victim.python("print(x, held.read(), sorted(os.listdir('..')), os.listdir('.'))").stdout
    if seen != f"['{across.KEY}'] {across.KEY} ['d', 'doomed', 'key'] ['late']\n":
        yield f"{name} has changed: {seen}"


def process_of(session: sandbox.Session) -> int:
    """Return the process of a session's interpreter: the one whose processor time grows by a call.

    An ordinary user may not list the descriptors of another session's process, but may read its times.
    """
    keeper = session.pool.keeper().worker.process.pid
    before = {pid: _ticks(pid) for pid in across.pool_children(keeper)}
    assert session.python("import time\nt = time.process_time()\nwhile time.process_time() < t + 0.06: pass").passed
    return max(before, key=lambda pid: _ticks(pid) - before[pid])


def _ticks(pid: int) -> int:
    """Return the processor time of a process, in ticks of 10 ms (fields 14 and 15 of its stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def newest_folder(pool: sandbox.Pool) -> int:
    """Return the number of the folder in which the keeper has mounted the newest session's files."""
    rows = [line.split() for line in Path(f"/proc/{pool.keeper().worker.process.pid}/mounts").read_text().splitlines()]
    return max((int(row[1].rsplit("/", 1)[1]) for row in rows if row[1].startswith("/in/")), default=1)


def wall_complaints(pool: sandbox.Pool) -> Iterator[str]:
    """Yield the differences between the walls of a copy and those of a fresh session, as the host sees them."""
    if pool.keeper().level < 3:
        return
    keeper = pool.keeper().worker.process.pid
    with across.open_session(pool) as fresh:
        fresh.python("1")
        (model,) = across.pool_children(keeper)
        expected = _walls(model)
    wait_gone([model])
    own, family = set[str](), Family(pool)
    try:
        pids = across.pool_children(keeper)
        if len(pids) != 4:
            yield f"{len(pids)} interpreters of 4 sessions"
        for pid in pids:
            if (walls := _walls(pid)) != expected:
                yield f"a copy has other walls: {set(walls.items()) ^ set(expected.items())}"
            spaces = {os.readlink(f"/proc/{pid}/ns/{kind}") for kind in ("user", "pid", "mnt")}
            if spaces & own:
                yield f"two copies share namespaces: {spaces & own}"
            own |= spaces
        streams = [os.stat(f"/proc/{pid}/fd/{fd}").st_ino for pid in pids for fd in (1, 2, 3, 4)]
        if len(set(streams)) != len(streams):
            yield "two copies share a stream"
    finally:
        family.close()


def _walls(pid: int) -> dict[str, object]:
    """Return what bounds a process."""
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    kept = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters",
            "SigBlk", "SigIgn", "SigCgt", "TracerPid", "Threads", "Umask", "Cpus_allowed")  # fmt: skip
    limits = [line[26:46].strip() for line in Path(f"/proc/{pid}/limits").read_text().splitlines()]
    mounts = sorted(line.split()[4] for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
    files = sorted(os.listdir(f"/proc/{pid}/fd"))
    return {k: status[k].split()[-1:] and status[k] for k in kept if k in status} | {
        "limits": tuple(limits), "mounts": tuple(mounts), "files": tuple(files), "last pid": status["NSpid"].split()[-1],
    }  # fmt: skip


def ends_of_kin(pool: sandbox.Pool) -> Iterator[str]:
    """Yield the ends of a session that harm its kin."""
    ends = {
        "closed": lambda s: s.close(),
        "ended": lambda s: s.python("import os; os._exit(0)"),
        "killed by its CPU limit": lambda s: s.python("while True: pass", cpu_s=0.03),
        "crashed": lambda s: s.python("import ctypes; ctypes.string_at(0)"),
        "folded": lambda s: s.fold(),
        "out of memory": lambda s: s.python("b = bytearray(10 ** 10)"),
    }  # fmt: skip
    for how, end in ends.items():
        for name in ("root", "first", "second", "grandchild"):
            family = Family(pool)
            try:
                end(family.all[name])  # type: ignore[no-untyped-call]
                for other, member in family.all.items():
                    if other != name and member.python("print(x, z)").stdout != "[1] 1\n":
                        yield f"{other} suffers when {name} is {how}"
                    if member.folds and other != name:
                        yield f"{other} was lost when {name} was {how}"
            finally:
                family.close()


def starving_kin(pool: sandbox.Pool) -> Iterator[str]:
    """Yield what one of kin takes from another's threads, memory or files."""
    family = Family(pool)
    hog = (
        "e = threading.Event()\nfor i in range(12): threading.Thread(target=e.wait, daemon=True).start()\n"
        "b = bytearray(60 << 20); open('f', 'wb').write(b'x' * (6 << 20)); print('fits')"
    )
    try:
        for name, member in family.all.items():
            if (result := member.python(hog)).stdout != "fits\n":
                yield f"{name} has too little: {result}"
        for name, member in family.all.items():
            code = "try:\n  for i in range(9): threading.Thread(target=e.wait, daemon=True).start()\nexcept RuntimeError: print('bound')"
            if pool.keeper().level == 3 and member.python(code).stdout != "bound\n":
                yield f"{name} has no bound of threads"
    finally:
        family.close()


_TRAPS = {
    "its instruction of calls changed": "import ctypes\nl = ctypes.CDLL(None); a = ctypes.cast(l.syscall, ctypes.c_void_p).value\n"
    "l.mprotect(ctypes.c_void_p(a & ~4095), 8192, 7); s = ctypes.string_at(a, 64).find(b'\\x0f\\x05')\n"
    "ctypes.memmove(a + s, b'\\xeb\\xfe', 2)",
    "its instruction in a shared page": "import ctypes, mmap\nl = ctypes.CDLL(None); l.mmap.restype = ctypes.c_void_p\n"
    "a = ctypes.cast(l.syscall, ctypes.c_void_p).value & ~4095; s = ctypes.string_at(a, 4096)\n"
    "p = l.mmap(None, 4096, 7, 0x21, -1, 0); ctypes.memmove(p, s, 4096)\n"
    "l.mremap.restype = ctypes.c_void_p; l.mremap(ctypes.c_void_p(p), 4096, 4096, 3, ctypes.c_void_p(a))",
    "handlers of all signals": "import signal\nhits = []\nfor s in range(1, 65):\n  try: signal.signal(s, lambda s, _: hits.append(s))\n  except (OSError, ValueError): pass",
    "all signals ignored": "import signal\nfor s in range(1, 65):\n  try: signal.signal(s, signal.SIG_IGN)\n  except (OSError, ValueError): pass",
    "a thread": "threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "a timer": "import signal; signal.signal(signal.SIGALRM, signal.SIG_IGN); signal.setitimer(signal.ITIMER_REAL, 100, 100)",
    "an open file": "held = open('held', 'w+'); held.write('x'); held.flush()",
    "shared memory": "import mmap; held = mmap.mmap(-1, 4096); held[0] = 1",
    "a file mapped for itself": "import mmap; open('m', 'wb').write(b'x' * 4096)\nwith open('m', 'rb') as f: held = mmap.mmap(f.fileno(), 4096, access=mmap.ACCESS_COPY)",
    "its output mapped": "import mmap, sys; sys.stdout.write('x' * 4096); sys.stdout.flush(); held = mmap.mmap(1, 4096, access=mmap.ACCESS_COPY)",
    "its output instead of its errors": "os.dup2(1, 2)",
    "a closed stream": "os.close(0)",
    "a removed working folder": "os.rmdir('../d')",
    "a working folder of a long name": "for i in range(12): os.mkdir('n' * 200); os.chdir('n' * 200)",
}
"""What a past can leave so that a copy would share something, or that its keeper would be caught by."""
_LIVE = ("handlers of all signals", "all signals ignored")


def traps(pool: sandbox.Pool) -> Iterator[str]:
    """Yield the pasts that harm a fork, the session itself, or the others of their keeper."""
    with across.open_session(pool) as other:
        other.python("x = 1")
        for name, code in _TRAPS.items():
            with across.open_session(pool) as session:
                session.python(BEFORE)
                if not (result := session.python(f"{code}\nw = 5")).passed:
                    yield f"{name}: it never began: {result}"
                begun = time.monotonic()
                made = session.fork(2)
                ways = set(session.forked)
                if pool.keeper().level == 3 and ("live" in ways) != (name in _LIVE):
                    yield f"{name}: forked by {ways}"
                if other.python("print(x)").stdout != "1\n" or time.monotonic() - begun > 20:
                    yield f"{name}: the keeper suffers"
                for fork in [*made, session]:
                    # A call starts with SIGCONT, and nothing of the copying may reach the program as a signal.
                    seen = fork.python("w += 1; print(w, {*globals().get('hits', ())} - {18})").stdout
                    if seen != "6 set()\n" and name != "its instruction of calls changed":
                        yield f"{name}: a fork or the session is lost: {seen!r}"
                for fork in made:
                    fork.close()
        if other.folds:
            yield "a trap folded another session"


def leftovers(pool: sandbox.Pool) -> Iterator[str]:
    """Yield what is left of a family that was closed, in any order."""
    keeper = pool.keeper().worker.process.pid

    def count() -> tuple[int, int, int]:
        mounts = Path(f"/proc/{keeper}/mounts").read_text().count("\n")
        return len(os.listdir(f"/proc/{keeper}/fd")), mounts, len(descendants(keeper))

    Family(pool).close()
    wait_until(lambda: not across.pool_children(keeper), 10)
    time.sleep(0.3)
    before = count()
    for first in ("root", "first", "second", "grandchild"):
        family = Family(pool)
        family.all[first].close()
        for _ in range(20):  # the dead of a template are buried
            for fork in family.all["root" if first != "root" else "second"].fork(1):
                fork.close()
        family.close()
    if not wait_until(lambda: count() == before, 10):
        yield f"descriptors, mounts and processes of the keeper: {count()} after {before}"


ALL: dict[str, Callable[[sandbox.Pool], Iterator[str]]] = {
    "acts between kin": act_complaints,
    "walls of copies": wall_complaints,
    "ends of kin": ends_of_kin,
    "starving kin": starving_kin,
    "traps for the keeper": traps,
    "leftovers of kin": leftovers,
}


def complaints(pool: sandbox.Pool) -> list[str]:
    """Return everything that kin can do to each other and must not."""
    return [complaint for attack in ALL.values() for complaint in attack(pool)]


def count() -> int:
    """Return the number of attacks of each of kin on each other."""
    return sum(map(len, (PYTHON, _TRAPS, ALL)))
