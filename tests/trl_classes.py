"""Classes of TRL, imported by the test that compares with them: the import costs every process five seconds."""

from __future__ import annotations

import importlib
from typing import Any


def trl_class(name: str) -> Any:
    """Return the class `trl.<name>`, for example "experimental.cpo.CPOTrainer"."""
    module, _, own = f"trl.{name}".rpartition(".")
    return getattr(importlib.import_module(module), own)
