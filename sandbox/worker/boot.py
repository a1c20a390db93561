"""The first steps of a worker: start again with a large stack, and load the rest."""

from __future__ import annotations

import os
import resource
import sys

STACK_MIB = 256
_ADDR_NO_RANDOMIZE = 0x0040000


def boot() -> None:
    """Become a worker. The kernel fixes the size of the main stack at exec: deep recursion needs a second exec."""
    if sys.argv[-1] != "again":
        _, hard = resource.getrlimit(resource.RLIMIT_STACK)
        wanted = STACK_MIB << 20
        resource.setrlimit(resource.RLIMIT_STACK, (wanted if hard == -1 else min(wanted, hard), hard))
        if not sys.flags.hash_randomization:
            _fix_addresses()
        os.execv(sys.orig_argv[0], [*sys.orig_argv, "again"])
    from .main import main

    main()


def _fix_addresses() -> None:
    """Have the next program loaded at the same addresses as ever, which some outputs show. See personality(2)."""
    import ctypes

    ctypes.CDLL(None).personality(_ADDR_NO_RANDOMIZE)
