"""Classes of TRL, imported by the test that compares with them: the import costs every process three seconds."""

import importlib
from typing import Any
from unittest.mock import patch


def trl_class(name: str) -> Any:
    """Return the class `trl.<name>`, for example "experimental.cpo.CPOTrainer".

    TRL is told that vLLM is absent: it would else import it, for three seconds more, and no loss needs it.
    """
    module, _, own = f"trl.{name}".rpartition(".")
    with patch("trl.import_utils.is_vllm_available", lambda *_, **__: False):
        return getattr(importlib.import_module(module), own)
