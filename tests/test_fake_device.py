"""Every recipe runs on a make-believe accelerator with no tensor left on the CPU, and waits for it no more than before.

All recipes run, whole, in one child process: the device is torch's for the life of a process, and functions of torch
are replaced for it. A tiny recipe takes less than a second.
"""

import json
import re
import subprocess
import sys

import pytest

from tests.fake_device_runs import names
from tests.source import ROOT
from tests.warm import LIBRARIES, warm

BUDGET = {
    "micro-batch, GRPO": 0,
    "micro-batch, GRPO, padded": 2,
    "micro-batch, GRPO, packed": 0,
    "micro-batch, PPO": 0,
    "micro-batch, PPO, padded": 5,
    "micro-batch, PPO, packed": 0,
    "micro-batch, texts": 1,
}
"""Waits of the host for its GPU. A GPU idles during each, so these numbers may only fall."""


@pytest.fixture(scope="module")
def outcome():
    """The recipes' outcomes, the waits, and the error of a planted mixture."""
    command = [sys.executable, "-m", "tests.fake_device_runs"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")  # as tests/test_gpu_benchmark.py, which has the same libraries loaded
        done = warm(LIBRARIES).call(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    word, text = done.stdout.strip().splitlines()[-1].split(" ", 1)
    assert word == "result"
    result = json.loads(text)
    return result


@pytest.mark.run
@pytest.mark.nightly
def test_no_recipe_leaves_a_tensor_on_the_cpu(outcome):
    assert {name: found for name in names() if (found := outcome["recipes"][name]["error"]) is not None} == {}


@pytest.mark.run
@pytest.mark.nightly
def test_a_planted_mixture_is_reported_with_its_line(outcome):
    place = re.fullmatch(r"Mixed: aten\.embedding\.default mixes gpux and cpu at ([\w/.]+):(\d+)", outcome["planted"])
    assert place is not None, outcome["planted"]
    line = (ROOT / place[1]).read_text().splitlines()[int(place[2]) - 1]
    assert "model.base_model(" in line, "the forward over a batch that was collated on the CPU"


@pytest.mark.run
@pytest.mark.nightly
@pytest.mark.parametrize("work", BUDGET)
def test_the_host_waits_no_more_often_than_its_budget(work, outcome):
    waits = outcome["waits"][work]
    total, details = sum(waits.values()), json.dumps(waits, indent=1)
    assert total <= BUDGET[work], f"{total:g} waits where {BUDGET[work]} are allowed; a GPU idles in each:\n{details}"
    assert total == BUDGET[work], f"{total:g} waits, fewer than {BUDGET[work]}: lower the budget to that:\n{details}"
