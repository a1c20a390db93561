"""The package bitsandbytes: AdamW with moments in 8 bits. This is the one module that imports it."""

from __future__ import annotations

import logging
import sys
from functools import cache
from typing import Any

from verizero.pipeline.errors import ConfigError


@cache
def _library() -> Any:
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    # On some processors bitsandbytes asks the package `kernels` for a program of the hub, which nothing here does.
    before = sys.modules.get("kernels")
    sys.modules["kernels"] = None  # type: ignore[assignment]
    try:
        import bitsandbytes
    finally:
        del sys.modules["kernels"]
        if before is not None:
            sys.modules["kernels"] = before
    return bitsandbytes


def library(field: str) -> Any:
    """Return the package bitsandbytes, for the recipe's `field`. Raises: ConfigError if it does not import."""
    try:
        return _library()
    except ImportError as exc:
        raise ConfigError(
            f"{field} needs bitsandbytes, which does not import ({exc}); pip install 'verizero[quantized]', or leave "
            "it out"
        ) from exc
