"""Two ranks equal one process, by torch and by FSDP, on responses and on episodes; and how ranks are started."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.launch.host import overrides, words_of
from tests.launch.runs import ROOT, assert_same_run, by_one, by_ranks, wait_for_end
from tests.processes import marked, until
from tests.warm import MARK
from verizero.pipeline.config.sections import LaunchConfig
from verizero.pipeline.errors import RunError
from verizero.pipeline.launch import Launcher, command_of, launch, served_here


@pytest.mark.run
def test_two_ranks_equal_one_also_where_a_callback_of_the_first_stops_them_together(recipe, alone):
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
    assert json.loads((found / "run.json").read_text())["num_ranks"] == 2
    assert "round 1 5/5" in (found / "logs" / "rank1.log").read_text()


@pytest.mark.run
def test_two_ranks_of_fsdp_train_all_weights_as_one_process_does(recipe, alone):
    assert_same_run(by_ranks(recipe, "divided", "train.backend=fsdp"), alone)


@pytest.mark.run
@pytest.mark.parametrize("quantize", [pytest.param("null", marks=pytest.mark.nightly), "nf4"])
def test_two_ranks_of_fsdp_train_adapters_as_one_process_does(recipe, quantize):
    lora = ("train.lora={rank: 4, alpha: 8}", f"model.quantize={quantize}", "rl.steps_per_round=2")
    one = by_one(recipe, f"lora_{quantize}", *lora)
    assert_same_run(by_ranks(recipe, f"divided_lora_{quantize}", "train.backend=fsdp", *lora), one)


GAMES = (
    "data.train=[{generator: {name: guess, params: {high: 6}}}]",
    *("data.evaluation=[]", "data.on_overlap=report", "rollout.max_response_tokens=8", "rl.group_size=4"),
    *("rl.select.keep=all", "rl.algorithm={name: dr_grpo, entropy_coef: 0.05}", "rl.steps_per_round=3"),
    *("episodes.max_tokens=24", "episodes.cut_turn=answer"),
)


@pytest.mark.run
@pytest.mark.parametrize("prompts", [pytest.param(5, marks=pytest.mark.nightly), 1])
def test_two_ranks_learn_from_episodes_what_one_does(recipe, prompts):
    """Of one prompt, the second rank has no episode; of five, it is done before the first in some turns."""
    changes = (*GAMES, f"rl.prompts_per_step={prompts}")
    two, one = by_ranks(recipe, f"two-{prompts}", *changes), by_one(recipe, f"one-{prompts}", *changes)
    assert_same_run(two, one)
    begun, learned = (load_file(f / "model" / "model.safetensors") for f in (recipe.parent / "start", two))
    assert any((learned[name] - begun[name]).abs().max() > 1e-3 for name in learned)


@pytest.mark.run
def test_no_rank_outlives_a_killed_launcher(recipe, owner):
    words = words_of(recipe, overrides(recipe, "orphans", "launch.kind=torchrun"))
    parent = subprocess.Popen([sys.executable, "-m", "verizero.pipeline.cli", *words], cwd=ROOT)
    until(lambda: len(marked(f"{MARK}={owner}")) == 4, "the command, torchrun and both ranks")
    parent.kill()
    assert parent.wait() == -signal.SIGKILL
    wait_for_end(owner)


def test_no_signal_goes_to_the_number_of_a_child_that_is_gone(tmp_path, monkeypatch):
    """Another program may have that number by then."""
    launcher, signalled = Launcher(LaunchConfig(), ["sleep", "600"], tmp_path, 0), list[int]()
    plain = os.killpg

    def killpg(group_id, number):
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

    def test_torchrun(self, monkeypatch):
        monkeypatch.setenv("NODE_RANK", "1")
        config = LaunchConfig(kind="torchrun", nodes=2, gpus_per_node=8, address="10.0.0.1", port=1234)
        assert command_of(config, self.WORDS)[4:] == [
            "--nnodes", "2", "--nproc-per-node", "8", "--node-rank", "1", "--master-addr", "10.0.0.1",
            "--master-port", "1234", "-m", "verizero.pipeline.cli", *self.WORDS,
        ]  # fmt: skip

    def test_slurm_starts_ranks_that_know_their_place(self, tmp_path, monkeypatch):
        config = LaunchConfig(kind="slurm", nodes=2, gpus_per_node=1, port=1234)
        with pytest.raises(RunError, match=r"launch\.kind=slurm"):
            command_of(config, self.WORDS)
        (tmp_path / "scontrol").write_text("#!/bin/sh\necho n17\necho n18\n")
        (tmp_path / "scontrol").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        monkeypatch.setenv("SLURM_JOB_NODELIST", "n[17-18]")
        command = command_of(config, self.WORDS)
        assert command[:7] == ["srun", "--nodes", "2", "--ntasks-per-node", "1", "--kill-on-bad-exit=1", "--wait=0"]
        assert "MASTER_ADDR=n17" in command[8]
        assert command[-5:] == ["verizero.pipeline.cli", *self.WORDS]

    def test_of_slurm_tasks_on_a_node_that_only_generates_the_first_serves(self, tmp_path, monkeypatch):
        config, served = LaunchConfig(kind="slurm", nodes={"train": 2, "generate": 1}, gpus_per_node=8), []
        monkeypatch.setattr("verizero.pipeline.launch.serve_as_node", lambda *how: served.append((how[0], how[3])))
        monkeypatch.setenv("MASTER_ADDR", "n17")
        for node, task, serves in (("1", "0", False), ("2", "0", True), ("2", "1", True)):
            monkeypatch.setenv("SLURM_NODEID", node)
            monkeypatch.setenv("SLURM_LOCALID", task)
            assert served_here(config, tmp_path) is serves
        assert served == [(2, "n17")]

    def test_a_launcher_that_is_not_installed_is_named(self, tmp_path, monkeypatch):
        (tmp_path / "scontrol").write_text("#!/bin/sh\necho n17\n")
        (tmp_path / "scontrol").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
        monkeypatch.setenv("SLURM_JOB_NODELIST", "n17")
        with pytest.raises(RunError, match=r"srun .* launch\.kind"):
            launch(LaunchConfig(kind="slurm"), self.WORDS, tmp_path)
