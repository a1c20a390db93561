"""Packages that are hidden from a library, which imports them where they are installed."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def absent(*names: str) -> Iterator[None]:
    """Make imports of these packages fail within the block, as if they were not installed."""
    before = {name: sys.modules.get(name) for name in names}
    sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name, module in before.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module


def without_triton() -> None:
    """Have torch's compiler, which transformers imports, do without triton on a machine that it compiles nothing for.

    Its library takes 70 MiB of memory, and torch asks once whether it is there.
    """
    if not torch.accelerator.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        with absent("triton"):
            importlib.import_module("torch._dynamo")
