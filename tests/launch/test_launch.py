"""Two ranks equal one; the first that dies or hangs ends all, by name; the run goes on, on other ranks too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from pipeline.config.load import load_recipe
from pipeline.config.sections import LaunchConfig
from pipeline.errors import RunError
from pipeline.launch import command_of, launch
from pipeline.stages.progress import Silent
from pipeline.stages.train import train
from tests.stages.tiny import TREE, tiny

ROOT = Path(__file__).resolve().parents[2]
CHANGES = (
    "stages=[rl]", "model.create=null", "rl.rounds=1", "rl.steps_per_round=5", "rl.prompts_per_step=5",
    "evaluation.before_training=false", "launch.gpus_per_node=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe of five RL steps from a policy that has learned a little."""
    folder = tmp_path_factory.mktemp("launch")
    train(
        tiny(overrides=["stages=[sft]", "evaluation.before_training=false"]), ROOT, folder / "start", "auto", Silent()
    )
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({**TREE, "output": str(folder / "runs")}))
    return path


@pytest.fixture(scope="module")
def alone(recipe: Path) -> Path:
    """The run's folder, trained by one process that nobody launched."""
    return by_one(recipe, "alone")


def overrides(recipe: Path, name: str, *more: str) -> list[str]:
    return [*CHANGES, f"model.path={recipe.parent / 'start' / 'model'}", f"name={name}", *more]


def by_one(recipe: Path, name: str) -> Path:
    config = load_recipe(recipe, overrides(recipe, name))
    folder = Path(config.output) / name
    train(config, ROOT, folder, "auto", Silent())
    return folder


def by_two(recipe: Path, name: str, *more: str) -> Path:
    """The run's folder after two local ranks. Raises: RunError as `launch` does."""
    changes = overrides(recipe, name, "launch.kind=local", *more)
    config = load_recipe(recipe, changes)
    folder = Path(config.output) / name
    words = ["train", str(recipe), "--no-prefect", *(w for c in changes for w in ("--set", c))]
    launch(config.launch, words, folder, "tests.launch.rank")
    return folder


def assert_same_run(found: Path, wanted: Path) -> None:
    ours, theirs = (load_file(f / "model" / "model.safetensors") for f in (found, wanted))
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=1e-5)
    assert (found / "rollouts.jsonl").read_bytes() == (wanted / "rollouts.jsonl").read_bytes()
    steps = [[r["metrics"] for r in rows(f) if r["kind"] == "step"] for f in (found, wanted)]
    assert len(steps[0]) == len(steps[1]) == 5
    for mine, other in zip(*steps, strict=True):
        assert mine == pytest.approx(other, abs=1e-5)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(autouse=True)
def _no_fuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FUSE", raising=False)
    monkeypatch.chdir(ROOT)


@pytest.mark.integration
def test_two_ranks_equal_one(recipe: Path, alone: Path) -> None:
    found = by_two(recipe, "two")
    assert_same_run(found, alone)
    assert json.loads((found / "run.json").read_text())["num_ranks"] == 2
    assert "round 1 5/5" in (found / "logs" / "rank1.log").read_text()


@pytest.mark.integration
@pytest.mark.slow
def test_killed_ranks_end_the_run_by_name_and_it_goes_on(
    recipe: Path, alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for fuse, name in (
        ("1 generate 2 kill", "rank 1"),
        ("0 update 1 kill", "rank 0"),
        ("1 checkpoint 1 kill", "rank 1"),
    ):
        monkeypatch.setenv("FUSE", fuse)
        phase = fuse.split()[1]
        with pytest.raises(
            RunError, match=rf"{name} .* was ended by SIGKILL in '.*{phase}'.*Last lines of .*rank"
        ) as said:
            by_two(recipe, "killed")
        assert children_left(said.value) == []
    assert_same_run(by_one(recipe, "killed"), alone)


@pytest.mark.integration
def test_a_rank_that_hangs_ends_the_run_at_the_deadline(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSE", "1 update 1 hang")
    with pytest.raises(RunError, match=r"rank \d .* ended with status 1 in '.*'"):
        by_two(recipe, "hung", "launch.phase_timeout_s=30")
    logs = [(recipe.parent / "runs" / "hung" / "logs" / f"rank{r}.log").read_text() for r in (0, 1)]
    assert any("Timeout" in log or "Timed out" in log or "timed out" in log.lower() for log in logs)


@pytest.mark.integration
def test_no_rank_outlives_a_killed_launcher(recipe: Path) -> None:
    changes = overrides(recipe, "orphans", "launch.kind=local")
    words = [w for c in changes for w in ("--set", c)]
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.launch.rank", "train", str(recipe), "--no-prefect", *words],
        cwd=ROOT, env={**os.environ, "FUSE": "1 update 1 hang"},
    )  # fmt: skip
    ranks = wait_for(lambda: children_of(parent.pid) if len(children_of(parent.pid)) == 2 else [])
    parent.kill()
    assert parent.wait() == -signal.SIGKILL
    assert wait_for(lambda: [True] if not any(map(alive, ranks)) else []) == [True]


def wait_for(look: Any, timeout_s: float = 120) -> list[Any]:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := look():
            return list(found)
        time.sleep(0.05)
    return []


def children_of(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False


def children_left(error: RunError) -> list[int]:
    """Ranks of this process that still run."""
    commands = [(p, Path(f"/proc/{p}/cmdline")) for p in children_of(os.getpid())]
    return [p for p, c in commands if c.exists() and b"tests.launch.rank" in c.read_bytes()]


class TestCommands:
    WORDS: Sequence[str] = ("train", "demo", "--set", "a=1")

    def test_torchrun(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NODE_RANK", "1")
        config = LaunchConfig(kind="torchrun", nodes=2, gpus_per_node=8, address="10.0.0.1", port=1234)
        assert command_of(config, self.WORDS)[3:] == [
            "--nnodes", "2", "--nproc-per-node", "8", "--node-rank", "1", "--master-addr", "10.0.0.1",
            "--master-port", "1234", "-m", "pipeline.cli", *self.WORDS,
        ]  # fmt: skip

    def test_deepspeed(self) -> None:
        config = LaunchConfig(kind="deepspeed", nodes=2, gpus_per_node=8, hostfile="hosts", port=1234)
        assert command_of(config, self.WORDS)[2:] == [
            "deepspeed.launcher.runner", "--hostfile", "hosts", "--num_nodes", "2", "--num_accelerators", "8",
            "--master_port", "1234", "--no_local_rank", "--module", "pipeline.cli", *self.WORDS,
        ]  # fmt: skip

    def test_slurm_starts_ranks_that_know_their_place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        config = LaunchConfig(kind="slurm", nodes=2, gpus_per_node=1, port=1234)
        with pytest.raises(RunError, match="outside a Slurm job; start it with sbatch or salloc"):
            command_of(config, self.WORDS)
        (tmp_path / "scontrol").write_text("#!/bin/sh\necho n17\necho n18\n")
        (tmp_path / "scontrol").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        monkeypatch.setenv("SLURM_JOB_NODELIST", "n[17-18]")
        command = command_of(config, self.WORDS)
        assert command[:6] == ["srun", "--nodes", "2", "--ntasks-per-node", "1", "--kill-on-bad-exit=1"]
        assert "MASTER_ADDR=n17" in command[7]
        assert command[-5:] == ["pipeline.cli", *self.WORDS]

    def test_a_launcher_that_is_not_installed_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "scontrol").write_text("#!/bin/sh\necho n17\n")
        (tmp_path / "scontrol").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
        monkeypatch.setenv("SLURM_JOB_NODELIST", "n17")
        with pytest.raises(RunError, match=r"srun is not installed here; choose another launch\.kind"):
            launch(LaunchConfig(kind="slurm"), self.WORDS, tmp_path)

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"kind": "local", "nodes": 2}, "use torchrun, deepspeed or slurm for several"),
            ({"kind": "torchrun", "nodes": 2}, "needs launch.address"),
            ({"kind": "deepspeed", "nodes": 2}, "needs launch.hostfile"),
        ],
    )
    def test_what_cannot_start_is_refused_while_loading(self, given: dict[str, Any], said: str) -> None:
        with pytest.raises(ValueError, match=said):
            LaunchConfig.model_validate(given)
