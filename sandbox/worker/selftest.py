"""Try forbidden acts once without each wall and once with it: the return code of putting up a wall is no proof."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable

from . import jail as walls
from . import kernel
from .frames import CGROUP, LANDLOCK, NAMESPACES, SECCOMP, Record
from .jail import Jail

_MEMFD = {"x86_64": 319, "aarch64": 279}


def _works(act: Callable[[], object]) -> bool:
    try:
        result = act()
    except (OSError, MemoryError, ValueError):  # ValueError: a limit that cannot be set
        return False
    if isinstance(result, int) and not isinstance(result, bool) and result > 2:
        os.close(result)
    return True


def _allocate(mib: int) -> Callable[[], object]:
    return lambda: bytearray(mib << 20)


def _hidden_memory() -> int:
    return kernel.syscall(_MEMFD.get(kernel.MACHINE, -1), b"x", 0, what="memfd_create")


def _decoy(jail: Jail, host_file: str) -> str:
    return "/" + walls.DECOY if jail.has_namespaces else host_file


def try_without(jail: Jail, host_file: str, host_pid: int) -> dict[str, bool]:
    """Try acts before Landlock and seccomp are up. True for these if the act works, for namespaces if they hide it."""
    works = {
        LANDLOCK: _works(lambda: os.open(_decoy(jail, host_file), os.O_RDONLY)),
        SECCOMP: _works(_hidden_memory),
    }
    if jail.has_namespaces:
        works[NAMESPACES] = _is_alone(jail, host_file, host_pid)
    return works


def _is_alone(jail: Jail, host_file: str, host_pid: int) -> bool:
    """True if a child in its own namespaces is the first process there and reaches no file or process of the host."""
    pid = kernel.fork(jail.clone_flags)
    if pid == 0:
        code = 1
        try:
            from _socket import if_nameindex  # imported in a child, since each library makes forks slower

            shut = not os.path.exists(host_file) and not _works(lambda: os.kill(host_pid, 0))
            code = int(not (shut and os.getpid() == 1 and if_nameindex() == [(1, "lo")]))
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def run(
    jail: Jail, before: dict[str, bool], memory_mib: int, host_file: str, wall: Callable[[], None], log: int
) -> None:
    """Write to `log` which walls hold, in a child that has all walls but the last (`wall` puts it up), and end."""
    holds = {"rlimits": not _works(_allocate(memory_mib + 300)) and resource.getrlimit(resource.RLIMIT_CORE)[1] == 0}
    if jail.has_namespaces:
        holds[NAMESPACES] = before[NAMESPACES] and os.getpid() == 1
    if CGROUP in jail.walls:
        holds[CGROUP] = _is_bounded(memory_mib)
    if LANDLOCK in jail.walls:
        decoy = _decoy(jail, host_file)
        holds[LANDLOCK] = before[LANDLOCK] and not _works(lambda: os.open(decoy, os.O_RDONLY))
    wall()
    if SECCOMP in jail.walls:
        import _socket

        forbidden: list[Callable[[], object]] = [
            _hidden_memory,
            lambda: _socket.socket().detach(),
            lambda: os.symlink("x", "y"),
            lambda: kernel.unshare(kernel.CLONE_NEWUTS),
            kernel.keep_capabilities,
        ]
        if not jail.tools:
            forbidden += [
                _fork,
                lambda: os.kill(os.getppid(), 0),
                lambda: os.chmod(".", 0o700),
                lambda: kernel.prctl(kernel.PR_SET_PDEATHSIG, 0),
                lambda: resource.setrlimit(resource.RLIMIT_CPU, (1, 1)),
            ]
        holds[SECCOMP] = before[SECCOMP] and not any(_works(act) for act in forbidden)
    os.write(log, Record(0, 0, 0, 0, json.dumps(holds).encode()).pack())
    os._exit(0)


def _is_bounded(memory_mib: int) -> bool:
    """True if all processes together are bounded in memory and in number."""
    ready, done = os.pipe()
    if os.fork() == 0:
        held = bytearray(b"x") * ((memory_mib + 128) << 20)
        os.write(done, b"x" if held else b"")
        os._exit(0)
    os.close(done)
    starved = os.read(ready, 1) == b""
    wait, hold = os.pipe()
    refused = False
    for _ in range(64):
        try:
            if os.fork() == 0:
                os.close(hold)
                os.read(wait, 1)  # until the one that counts has ended
                os._exit(0)
        except OSError:
            refused = True
            break
    return starved and refused


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)
