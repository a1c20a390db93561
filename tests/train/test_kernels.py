"""With sharded weights too, the kernel of log-probs gets whole output embeddings, and trains as torch alone does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models.kernels.interpreted import ENVIRONMENT
from tests.train.rank_group import installed

ROOT = Path(__file__).resolve().parents[2]


@installed
@pytest.mark.integration
@pytest.mark.slow
def test_sharded_backends_hand_the_kernel_plain_tensors_and_get_its_gradients() -> None:
    # A process of its own: the interpreter must be chosen before anything imports triton.
    program = (
        "import json; from tests.train.rank_group import run; print(json.dumps(run('tests.train.kernel_rank', 2)))"
    )
    command, environment = [sys.executable, "-c", program], {**os.environ, **ENVIRONMENT}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in json.loads(done.stdout.strip().splitlines()[-1]):
        assert rank.keys() == {"fsdp", "zero3"}
        for name, seen in rank.items():
            assert seen["weights"] < 1e-5, name
            assert seen["metrics"] < 1e-5, name
            assert seen["calls"] == seen["plain"] > 0, name
