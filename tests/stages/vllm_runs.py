"""Whole runs with vLLM that several test modules make: by one process, by two ranks, cut and compared."""

import json
from importlib.util import find_spec

import pytest
import torch
from safetensors.torch import load_file

from tests.stages.sessions import train_model
from tests.stages.sevens import write_verifier
from tests.warm import VLLM, warm
from verizero.pipeline.config.sections import LaunchConfig
from verizero.pipeline.host.network import free_port
from verizero.pipeline.launch import launch

STEPS = 8
"""RL steps of these runs."""
HELD = [1, 2, 5, STEPS]
"""Versions after whose publish each rank's engine is compared to the trainer: the first ones, one later, the last."""


def folder_of_runs(factory):
    """Return a new folder for runs of `sevens`, with their verifier in it; without vLLM the test is skipped."""
    if find_spec("vllm") is None:
        pytest.skip("vLLM is not installed: make install-engines")
    folder = factory.mktemp("runs")
    write_verifier(folder)
    return folder


def trained(config, folder, resume="auto"):
    """Train in a fork that has vLLM imported, in the folder `folder`; return that."""
    trained = warm(VLLM).call(train_model, config, folder.parent, folder, resume)
    return trained


def by_two(folder, **changes):
    """The run's folder after two ranks of this machine, each with an engine of its own, were started by torchrun."""
    how = {"kind": "torchrun", "gpus_per_node": 2, "port": free_port(), "phase_timeout_s": 300}
    words = [str(folder), json.dumps({**changes, "launch": how, "held": HELD})]
    warm(VLLM).call(launch, LaunchConfig.model_validate(how), words, folder, "tests.stages.vllm_rank")
    return folder


def assert_same_run(found, wanted):
    """The same responses at every step, and weights that differ by rounding."""
    assert (found / "rollouts.jsonl").read_bytes() == (wanted / "rollouts.jsonl").read_bytes()
    ours, theirs = (load_file(folder / "model" / "model.safetensors") for folder in (found, wanted))
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=1e-5)
