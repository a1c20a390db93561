"""Two ranks equal one; the first that dies or hangs ends all and is named; other numbers of ranks continue the run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.launch.runs import ROOT, assert_same_run, by_one, by_ranks, processes_of
from tests.launch.words import overrides, words_of
from tests.processes import until
from verizero.pipeline.config.sections import LaunchConfig
from verizero.pipeline.errors import RunError
from verizero.pipeline.launch import Launcher, command_of, launch

LIMIT_S = 12
"""Seconds a phase may take where a rank hangs or is stopped: many times what a phase takes, as they are waited for."""


@pytest.mark.run
def test_two_ranks_equal_one(recipe: Path, alone: Path) -> None:
    found = by_ranks(recipe, "two")
    assert_same_run(found, alone)
    assert json.loads((found / "run.json").read_text())["num_ranks"] == 2
    assert "round 1 5/5" in (found / "logs" / "rank1.log").read_text()


@pytest.mark.run
def test_a_callback_of_the_first_rank_stops_all_together(recipe: Path, alone: Path) -> None:
    watch = recipe.parent / "watch.py"
    watch.write_text(
        "from os import environ\n"
        "import verizero as vz\n"
        "def on_step(event):\n"
        "    with open(__file__ + '.seen', 'a') as seen:\n"
        "        print(environ['RANK'], event.kind, event.step, len(event.groups), file=seen)\n"
        "    return vz.STOP if event.step == 2 else None\n"
    )
    found = by_ranks(recipe, "stopped", f"callbacks=[{watch}:on_step]")
    assert json.loads((found / "run.json").read_text())["ended"]["reason"] == "stopped"
    seen = [line.split() for line in Path(f"{watch}.seen").read_text().splitlines()]
    assert [(rank, step) for rank, kind, step, _ in seen if kind == "step"] == [("0", "1"), ("0", "2")]
    assert_same_run(by_ranks(recipe, "stopped"), alone)


def assert_deadline_named(message: str, act: str, where: str) -> None:
    """The message names the rank that ended, its phase and the limit, and where the other was.

    A rank that was stopped cannot end by itself. Where one hangs, either may be the first.
    """
    ended = re.match(rf"rank ([01]) \(process \d+\) ended with status 75 in {where}", message)
    assert ended is not None
    assert f"{where} within {LIMIT_S} s (launch.phase_timeout_s={LIMIT_S})" in message
    assert re.findall(rf"\nrank (\d) was in {where}: ", message) == [str(1 - int(ended[1]))]
    assert act == "hang" or ended[1] == "0"


@pytest.mark.run
@pytest.mark.nightly
def test_a_run_whose_ranks_hang_die_or_stop_is_continued_by_other_numbers_of_ranks(
    recipe: Path, alone: Path, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks train until one hangs, then one until it is killed, then two until one is stopped, then one to the end.

    Where rank 1 hangs or was stopped, rank 0 waits for it: for a sum of its update, or the responses of a step.
    """
    folder = recipe.parent / "runs" / "changing"
    log = folder / "logs" / "rank0.log"
    ends = [
        (2, "hang", "round 1 step 2: update", "in all_reduce"),
        (1, "kill", "round 1 step 3: update", "from checkpoint"),
        (2, "stop", "round 1 step 4: generate", "in all_gather_object"),
    ]
    for num_ranks, act, phase, logged in ends:
        monkeypatch.setenv("FUSE", f"{num_ranks - 1}|{phase}|1|{act}")
        begin = log.stat().st_size if log.exists() else 0
        with pytest.raises(RunError) as caught:
            by_ranks(recipe, folder.name, f"launch.gpus_per_node={num_ranks}", f"launch.phase_timeout_s={LIMIT_S}")
        if act == "kill":
            assert re.match(rf"rank 0 .* was ended by SIGKILL in '{phase}'", str(caught.value))
        else:
            assert_deadline_named(str(caught.value), act, f"'{phase}'")
        until(lambda: not processes_of(owner), f"the end of all processes after the {act}")
        assert logged in log.read_bytes()[begin:].decode()
        assert json.loads((folder / "run.json").read_text())["num_ranks"] == num_ranks
    assert_same_run(by_one(recipe, folder.name), alone)
    assert json.loads((folder / "run.json").read_text())["num_ranks"] == 1


@pytest.mark.run
def test_no_rank_outlives_a_killed_launcher(recipe: Path, owner: str) -> None:
    words = words_of(recipe, overrides(recipe, "orphans", "launch.kind=torchrun"))
    parent = subprocess.Popen([sys.executable, "-m", "verizero.pipeline.cli", *words], cwd=ROOT)
    until(lambda: len(processes_of(owner)) == 4, "the command, torchrun and both ranks")
    parent.kill()
    assert parent.wait() == -signal.SIGKILL
    until(lambda: not processes_of(owner), "the end of all processes")


def test_no_signal_goes_to_the_number_of_a_child_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program may have that number by then."""
    launcher, signalled = Launcher(LaunchConfig(), ["sleep", "600"], tmp_path, 0), list[int]()
    plain = os.killpg

    def killpg(group_id: int, number: int) -> None:
        signalled.append(group_id)
        plain(group_id, number)

    monkeypatch.setattr(os, "killpg", killpg)
    launcher.end()
    assert set(signalled) == {launcher.process.pid}
    signalled.clear()
    launcher.end()
    assert not signalled


class TestCommands:
    WORDS: Sequence[str] = ("train", "demo", "--set", "a=1")

    def test_torchrun(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NODE_RANK", "1")
        config = LaunchConfig(kind="torchrun", nodes=2, gpus_per_node=8, address="10.0.0.1", port=1234)
        assert command_of(config, self.WORDS)[4:] == [
            "--nnodes", "2", "--nproc-per-node", "8", "--node-rank", "1", "--master-addr", "10.0.0.1",
            "--master-port", "1234", "-m", "verizero.pipeline.cli", *self.WORDS,
        ]  # fmt: skip

    def test_slurm_starts_ranks_that_know_their_place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        config = LaunchConfig(kind="slurm", nodes=2, gpus_per_node=1, port=1234)
        with pytest.raises(RunError, match=r"launch\.kind=slurm"):
            command_of(config, self.WORDS)
        (tmp_path / "scontrol").write_text("#!/bin/sh\necho n17\necho n18\n")
        (tmp_path / "scontrol").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        monkeypatch.setenv("SLURM_JOB_NODELIST", "n[17-18]")
        command = command_of(config, self.WORDS)
        assert command[:6] == ["srun", "--nodes", "2", "--ntasks-per-node", "1", "--kill-on-bad-exit=1"]
        assert "MASTER_ADDR=n17" in command[7]
        assert command[-5:] == ["verizero.pipeline.cli", *self.WORDS]

    def test_a_launcher_that_is_not_installed_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "scontrol").write_text("#!/bin/sh\necho n17\n")
        (tmp_path / "scontrol").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
        monkeypatch.setenv("SLURM_JOB_NODELIST", "n17")
        with pytest.raises(RunError, match=r"srun .* launch\.kind"):
            launch(LaunchConfig(kind="slurm"), self.WORDS, tmp_path)

    @pytest.mark.parametrize(
        ("fields", "named"),
        [
            ({"kind": "none", "nodes": 2}, "torchrun or slurm"),
            ({"kind": "torchrun", "nodes": 2}, "launch.address"),
            ({"kind": "local"}, "launch.kind|'none', 'torchrun' or 'slurm'"),
        ],
    )
    def test_what_cannot_start_is_refused_while_loading(self, fields: dict[str, Any], named: str) -> None:
        with pytest.raises(ValueError, match=named):
            LaunchConfig.model_validate(fields)
