"""How long torch's threads wait on a core: set before torch is imported, unless the user has chosen."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PRINT = (
    "import os, verizero; from verizero.pipeline.host.openmp import TOO_LATE;"
    "print(os.environ.get('GOMP_SPINCOUNT'), TOO_LATE)"
)


@pytest.mark.parametrize(
    ("chosen", "first", "shown"),
    [
        ({}, "", "1000 False"),
        ({}, "import torch; ", "1000 True"),
        ({"GOMP_SPINCOUNT": "7"}, "import torch; ", "7 False"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "", "None False"),
    ],
)
@pytest.mark.run
def test_the_package_chooses_before_torch_and_never_against_the_user(
    chosen: dict[str, str], first: str, shown: str
) -> None:
    clean = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", first + PRINT], env=clean | chosen, capture_output=True, text=True)
    assert done.stdout.strip() == shown, done.stderr
