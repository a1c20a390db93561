"""Start the interpreter again with a large stack, then run the worker."""

from __future__ import annotations

import os
import resource
import sys

STACK_MIB = 256
_ADDR_NO_RANDOMIZE = 0x0040000


def boot() -> None:
    """Become a worker. The kernel sets the size of the main stack at exec, so a larger one needs a second exec."""
    if sys.argv[-1] != "again":
        _, hard = resource.getrlimit(resource.RLIMIT_STACK)
        stack_bytes = STACK_MIB << 20
        resource.setrlimit(resource.RLIMIT_STACK, (stack_bytes if hard == -1 else min(stack_bytes, hard), hard))
        # The next program is loaded at fixed addresses, because outputs may show them: see personality(2).
        import ctypes

        ctypes.CDLL(None).personality(_ADDR_NO_RANDOMIZE)
        os.execv(sys.orig_argv[0], [*sys.orig_argv, "again"])
    from .main import main

    main()
