"""A group of ranks on this machine, each one a program that prints what it found."""

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.models.kernels.interpreted import ENVIRONMENT
from tests.source import ROOT
from tests.warm import warm
from verizero.pipeline.host.network import free_port

installed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed: make install-engines"
)


def run(module: str, size: int, *words: str) -> list[dict[str, Any]]:
    """What each of `size` ranks of `python -m module words` found."""
    found: list[dict[str, Any]] = warm().call(answers, module, size, *words)
    return found


def run_interpreted(module: str, size: int, *words: str) -> list[dict[str, Any]]:
    """As `run`, where Triton interprets its kernels: by a process of its own, which chooses that before any import."""
    program = (
        f"import json; from tests.train.rank_group import run; print(json.dumps(run({module!r}, {size}, *{words!r})))"
    )
    command, environment = [sys.executable, "-c", program], {**os.environ, **ENVIRONMENT}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def answers(module: str, size: int, *words: str) -> list[dict[str, Any]]:
    """Start the ranks and return what each prints behind the word "found"."""
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", module, *words],
            cwd=ROOT,
            env={
                **os.environ,
                "RANK": str(r),
                "LOCAL_RANK": str(r),
                "WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(size)
    ]
    found = []
    try:
        for process in ranks:
            out, error = process.communicate(timeout=900)
            assert process.returncode == 0, error[-3000:]
            said = next(line for line in out.splitlines() if line.startswith("found "))
            found.append(json.loads(said.removeprefix("found ")))
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return found
