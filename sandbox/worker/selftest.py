"""Try forbidden acts without each wall and with it: that a wall was put up without error proves nothing."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable

from . import kernel, walls
from .frames import CGROUP, LANDLOCK, NAMESPACES, SECCOMP, Record
from .walls import Jail

_TRIES = 3
_MEMFD = {"x86_64": 319, "aarch64": 279}


def _works(act: Callable[[], object]) -> bool:
    try:
        result = act()
    except (OSError, MemoryError, ValueError):  # ValueError: a limit that cannot be set
        return False
    if isinstance(result, int) and not isinstance(result, bool) and result > 2:
        os.close(result)
    return True


def _hidden_memory() -> int:
    return kernel.syscall(_MEMFD.get(kernel.MACHINE, -1), b"x", 0, what="memfd_create")


def _decoy(jail: Jail, host_file: str) -> str:
    return "/" + walls.DECOY if jail.has_namespaces else host_file


def try_without(jail: Jail, host_file: str, host_pid: int) -> dict[str, bool]:
    """Try acts before Landlock and seccomp are up. True for these two if the act works; for namespaces if it fails."""
    works = {LANDLOCK: _works(lambda: os.open(_decoy(jail, host_file), os.O_RDONLY)), SECCOMP: _works(_hidden_memory)}
    if jail.has_namespaces:
        works[NAMESPACES] = _is_alone(jail, host_file, host_pid)
    return works


def _is_alone(jail: Jail, host_file: str, host_pid: int) -> bool:
    """True if a child in its own namespaces is the first process there and reaches no file or process of the host.

    A child that is killed says nothing, and another is tried. Raises: InterruptedError if all are killed.
    """
    for _ in range(_TRIES):
        pid = kernel.fork(jail.clone_flags)
        if pid == 0:
            code = 1
            try:
                from _socket import if_nameindex  # only in this child: each library makes forks slower

                is_hidden = not os.path.exists(host_file) and not _works(lambda: os.kill(host_pid, 0))
                code = int(not (is_hidden and os.getpid() == 1 and if_nameindex() == [(1, "lo")]))
            finally:
                os._exit(code)
        status = os.waitpid(pid, 0)[1]
        if os.WIFEXITED(status):
            return os.WEXITSTATUS(status) == 0
    raise InterruptedError("each process that tried the namespaces was killed")


def run(
    jail: Jail, works_without: dict[str, bool], memory_mib: int, host_file: str, last_wall: Callable[[], None], log: int
) -> None:
    """Write to `log` which walls hold, and end this process, which has all walls but the one that `last_wall` adds."""
    is_bounded = not _works(lambda: bytearray((memory_mib + 300) << 20))
    holds = {"rlimits": is_bounded and resource.getrlimit(resource.RLIMIT_CORE)[1] == 0}
    if jail.has_namespaces:
        holds[NAMESPACES] = works_without[NAMESPACES] and os.getpid() == 1
    if CGROUP in jail.walls:
        holds[CGROUP] = _is_bounded(memory_mib)
    if LANDLOCK in jail.walls:
        decoy = _decoy(jail, host_file)
        holds[LANDLOCK] = works_without[LANDLOCK] and not _works(lambda: os.open(decoy, os.O_RDONLY))
    last_wall()
    if SECCOMP in jail.walls:
        import _socket

        forbidden: list[Callable[[], object]] = [
            _hidden_memory,
            lambda: _socket.socket().detach(),
            lambda: os.symlink("x", "y"),
            lambda: kernel.unshare(kernel.CLONE_NEWUTS),
            kernel.drop_capabilities,
        ]
        if not jail.tools:
            forbidden += [
                lambda: os.fork() or os._exit(0),
                lambda: os.kill(os.getppid(), 0),
                lambda: os.chmod(".", 0o700),
                lambda: kernel.prctl(kernel.PR_SET_PDEATHSIG, 0),
                lambda: resource.setrlimit(resource.RLIMIT_CPU, (1, 1)),
            ]
        holds[SECCOMP] = works_without[SECCOMP] and not any(_works(act) for act in forbidden)
    os.write(log, Record(0, 0, 0, 0, json.dumps(holds).encode()).pack())
    os._exit(0)


def _is_bounded(memory_mib: int) -> bool:
    """True if all processes together are bounded in memory and in number."""
    answer, allocated = os.pipe()
    if os.fork() == 0:
        memory = bytearray(b"x") * ((memory_mib + 128) << 20)
        os.write(allocated, b"x" if memory else b"")
        os._exit(0)
    os.close(allocated)
    memory_refused = os.read(answer, 1) == b""
    wait, release = os.pipe()
    process_refused = False
    for _ in range(64):
        try:
            if os.fork() == 0:
                os.close(release)
                os.read(wait, 1)  # until the first process has ended
                os._exit(0)
        except OSError:
            process_refused = True
            break
    return memory_refused and process_refused
