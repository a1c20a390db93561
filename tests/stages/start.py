"""Policies that runs of the tiny recipe begin from, each trained once for all processes of one run of the tests."""

import hashlib
import json
import os
from pathlib import Path

from tests.stages.sessions import train_model
from tests.stages.tiny import SUMS, tiny
from tests.warm import FOLDER
from verizero.pipeline.host.disk import locked

ONLY_RL = ("stages=[rl]", "sft=null")
RIGHT = SUMS | {"noise": 0}
ABLE = ("sft.steps=240", f"data.train=[{{generator: {{name: arithmetic, params: {json.dumps(RIGHT)}}}}}]")
"""A policy that answers a third of its sums rightly: it fills a step with half as many groups."""


def start(*overrides: str) -> str:
    """Return the override that names the policy which SFT of the tiny recipe makes, with these overrides in it."""
    folder = Path(os.environ[FOLDER]) / hashlib.sha256(repr(overrides).encode()).hexdigest()[:8]
    with locked(folder, wait=True):
        if not (folder / "run" / "model").is_dir():
            config = tiny({"stages": ["sft"], "data": {"evaluation": []}}, overrides)
            train_model(config, folder, folder / "run")
    return f"model={{path: {folder / 'run' / 'model'}}}"


def started(*overrides: str) -> tuple[str, ...]:
    """Return overrides that begin with that policy, which a short SFT leaves about where it was."""
    return start(*overrides), "sft.steps=12", "sft.optimizer.learning_rate=1e-3"
