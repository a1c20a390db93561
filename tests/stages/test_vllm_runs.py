"""Whole runs with vLLM in this process: they learn as with the embedded engine, resume; and the parity check."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pipeline.config.sections import LaunchConfig
from pipeline.launch import launch
from pipeline.report.progress import Silent
from pipeline.run.opening import opened
from pipeline.whole_run import remaining, run_items, train
from tests.stages.sessions import replacing
from tests.stages.sevens import STEPS, learned, recipe, rows, write_verifier
from tests.warm import VLLM, warm

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    write_verifier(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def need_vllm() -> None:
    pytest.importorskip("vllm", reason="make install-engines")


@pytest.mark.integration
@pytest.mark.usefixtures("need_vllm")
def test_a_run_learns_with_vllm_as_with_the_embedded_engine(base: Path) -> None:
    for engine in ("torch", "vllm"):
        train(recipe(engine), base, base / engine, "auto", Silent())
    for engine in ("torch", "vllm"):
        assert len(rows(base / engine)) == STEPS
        assert learned(base / engine) > 0.3
    for row in rows(base / "vllm"):
        assert 0 <= row["mismatch/p50"] <= row["mismatch/p99"] < 1e-3
        assert 0 < row["mismatch/abs"] < 1e-4
        assert row["masked/mismatch"] == 0
    gate = json.loads((base / "vllm" / "parity.json").read_text())
    assert gate["differs"] is False
    assert gate["mean"] < 1e-4
    assert gate["num_tokens"] > 8
    assert not (base / "torch" / "parity.json").exists()


@pytest.mark.integration
@pytest.mark.usefixtures("need_vllm")
def test_a_run_that_goes_on_draws_and_learns_what_a_whole_one_does(base: Path) -> None:
    config = recipe("vllm", steps=4)
    train(config, base, base / "whole", "auto", Silent())

    class Cut(Exception):
        pass

    def break_off() -> None:
        with opened(config, base, base / "cut", "auto", Silent()) as session:

            def update(plain: Any, groups: Any) -> Any:
                if session.state.rl_step == 2:
                    raise Cut
                return plain(groups)

            run_items(session, remaining(session.run, session.state)[0][1], replacing(update=update))

    with pytest.raises(Cut):
        break_off()
    train(config, base, base / "cut", "must", Silent())
    ours, theirs = (load_file(base / name / "model" / "model.safetensors") for name in ("cut", "whole"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    drawn = [(base / name / "rollouts.jsonl").read_bytes() for name in ("cut", "whole")]
    assert drawn[0] == drawn[1]


@pytest.mark.integration
@pytest.mark.usefixtures("need_vllm")
def test_vllm_generates_ahead_of_the_update_and_the_same_bytes_again(base: Path) -> None:
    config = recipe("vllm", 4)
    ahead = config.model_copy(update={"rollout": config.rollout.model_copy(update={"max_staleness": 1})})
    for name in ("first", "again"):
        train(ahead, base, base / name, "auto", Silent())
        assert [row["staleness/max"] for row in rows(base / name)] == [0.0, 1.0, 1.0, 1.0]
    assert (base / "first" / "rollouts.jsonl").read_bytes() == (base / "again" / "rollouts.jsonl").read_bytes()


def by_two(folder: Path, **changes: Any) -> Path:
    """The run's folder after two ranks of this machine, each with an engine of its own, were started by torchrun."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    how = {"kind": "torchrun", "gpus_per_node": 2, "port": port, "phase_timeout_s": 300}
    words = [str(folder), json.dumps({**changes, "launch": how})]
    warm(VLLM).call(launch, LaunchConfig.model_validate(how), words, folder, "tests.stages.vllm_rank")
    return folder


def assert_same_run(found: Path, wanted: Path) -> None:
    """The same responses at every step, and weights that differ by rounding."""
    assert (found / "rollouts.jsonl").read_bytes() == (wanted / "rollouts.jsonl").read_bytes()
    ours, theirs = (load_file(folder / "model" / "model.safetensors") for folder in (found, wanted))
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=1e-5)


def cut_after(folder: Path, step: int) -> None:
    """Leave of a whole run what one would leave that was killed before its next checkpoint."""
    shutil.rmtree(folder / "model")
    for checkpoint in (folder / "checkpoints").iterdir():
        if json.loads((checkpoint / "state.json").read_text())["rl_step"] > step:
            shutil.rmtree(checkpoint)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.usefixtures("need_vllm")
def test_two_ranks_learn_as_one_does_with_an_engine_each_or_one_together(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    steps = 8
    train(recipe("vllm", steps), base, base / "one", "auto", Silent())
    ways: dict[str, dict[str, Any]] = {
        "together": {"rollout": {"vllm": {"tensor_parallel": 2}}},
        "zero3": {"train": {"backend": "deepspeed", "zero": 3}},
        "fsdp": {"train": {"backend": "fsdp"}},
    }
    for way, changes in ways.items():
        two = by_two(base / way, steps=steps, checkpoint={"keep": 2 * steps}, **changes)
        for rank in (0, 1):
            found = json.loads((two / f"found{rank}.json").read_text())
            assert found == [{"version": v, "equal": True} for v in range(1, steps + 1)]
        assert learned(two) > 0.3
        assert all(0 < row["mismatch/p99"] < 1e-3 and row["masked/mismatch"] == 0 for row in rows(two))
        assert json.loads((two / "parity.json").read_text())["differs"] is False
        assert json.loads((two / "run.json").read_text())["num_ranks"] == 2
        assert_same_run(two, base / "one")
        if way == "together":
            continue  # one rank alone is no such engine
        cut_after(two, 4)
        train(recipe("vllm", steps, **changes), base, two, "must", Silent())
        assert_same_run(two, base / "one")
        assert json.loads((two / "run.json").read_text())["num_ranks"] == 1
