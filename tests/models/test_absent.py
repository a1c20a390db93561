"""Packages that take memory and that nothing here needs are not imported with those that look for them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from verizero.pipeline.models.absent import absent

PROGRAM = """
import sys
from verizero.pipeline.models.load import quiet

quiet()
from tests.models.families import tiny
from verizero.pipeline.models.lora import Adapted

Adapted(tiny("llama"), 3, 6.0, (), 5)
print([name for name in ("bitsandbytes", "torch._dynamo", "triton") if name in sys.modules])
import triton
Adapted(tiny("llama"), 3, 6.0, (), 5, quantize_on="cpu")
from peft.import_utils import is_bnb_available
print(is_bnb_available(), "bitsandbytes" in sys.modules)
"""


@pytest.mark.integration
def test_a_policy_with_adapters_imports_no_package_that_it_does_not_need() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['torch._dynamo']", "True True"], "only NF4 needs one of them"


def test_a_package_is_absent_within_the_block_alone() -> None:
    import json

    with absent("json", "no_such_package"):
        with pytest.raises(ImportError):
            import json
    import json as again

    assert again is json
    assert "no_such_package" not in sys.modules
