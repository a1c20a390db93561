"""Try what the walls forbid, once without each wall and once with it: what a return code says is not proof."""

from __future__ import annotations

import json
import os
import resource
import socket
from collections.abc import Callable

from . import jail as walls
from . import kernel
from .jail import Jail
from .wire import Order, Record

_MEMFD = {"x86_64": 319, "aarch64": 279}


def _works(act: Callable[[], object]) -> bool:
    try:
        result = act()
    except (OSError, MemoryError):
        return False
    if isinstance(result, int) and not isinstance(result, bool) and result > 2:
        os.close(result)
    return True


def _allocate(mib: int) -> Callable[[], object]:
    return lambda: bytearray(mib << 20)


def run(jail: Jail, order: Order, host_file: str, host_pid: int, log: int) -> None:
    """Put up the walls of this run one by one; write to `log` which of them held. Ends with the walls up."""
    decoy = "/" + walls.DECOY if jail.has_namespaces else host_file
    said: dict[str, bool] = {}
    # The walls of every run (file tree, ids, limits) are up when this is called; Landlock and seccomp are not.
    if jail.has_namespaces:
        interfaces = socket.if_nameindex()
        said[walls.NAMESPACES] = (
            not os.path.exists(host_file)
            and os.getpid() == 1
            and interfaces == [(1, "lo")]
            and not _works(lambda: os.kill(host_pid, 0))
        )
    said["rlimits"] = not _works(_allocate(order.memory_mib + 300)) and resource.getrlimit(resource.RLIMIT_CORE)[1] == 0
    before = _works(lambda: os.open(decoy, os.O_RDONLY))
    walls.restrict_files(jail)
    if walls.LANDLOCK in jail.walls:
        said[walls.LANDLOCK] = before and not _works(lambda: os.open(decoy, os.O_RDONLY))
    hidden_memory = lambda: kernel.syscall(_MEMFD.get(kernel.MACHINE, -1), b"x", 0, what="memfd_create")  # noqa: E731
    before = _works(hidden_memory)
    walls.restrict_calls(jail)
    if walls.SECCOMP in jail.walls:
        forbidden: list[Callable[[], object]] = [
            hidden_memory,
            lambda: socket.socket().detach(),
            lambda: os.symlink("x", "y"),
        ]
        said[walls.SECCOMP] = before and not any(_works(act) for act in forbidden)
        if not jail.tools:
            more: list[Callable[[], object]] = [_fork, lambda: os.kill(os.getppid(), 0), lambda: os.chmod(".", 0o700)]
            said[walls.SECCOMP] &= not any(_works(act) for act in more)
    os.write(log, Record(0, 0, 0.0, 0.0, 0, 0, json.dumps(said).encode()).pack())
    os._exit(0)


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)
