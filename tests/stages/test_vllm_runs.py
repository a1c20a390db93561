"""Whole runs with vLLM in this process: they learn as with the embedded engine, resume; and the parity check."""

import json

import pytest
import torch
from safetensors.torch import load_file

from tests.stages.sessions import replacing
from tests.stages.sevens import learned, recipe, rows
from tests.stages.vllm_runs import HELD, STEPS, assert_same_run, by_two, folder_of_runs, trained
from tests.warm import ROOT, VLLM, warm
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.run.opening import open_run
from verizero.pipeline.whole_run import items_by_stage, run_items


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return folder_of_runs(tmp_path_factory)


@pytest.fixture(scope="module")
def one(base):
    return trained(recipe("vllm", STEPS), base / "one")


@pytest.mark.run
def test_a_run_learns_with_vllm_as_with_the_embedded_engine(base, one):
    torch_run = trained(recipe("torch", STEPS), base / "torch")
    for folder in (torch_run, one):
        assert len(rows(folder)) == STEPS
        assert learned(folder) > 0.3
    for row in rows(one):
        assert 0 <= row["mismatch/p50"] <= row["mismatch/p99"] < 1e-3
        assert 0 < row["mismatch/abs"] < 1e-4
        assert row["masked/mismatch"] == 0
    gate = json.loads((one / "parity.json").read_text())
    assert gate["differs"] is False
    assert gate["mean"] < 1e-4
    assert gate["num_tokens"] > 8
    assert not (torch_run / "parity.json").exists()


class Cut(Exception):
    """Ends a run."""


def break_off(config, folder, step):
    """Train up to the update of an RL step, which does not come."""
    with open_run(config, folder.parent, folder, "auto", Progress()) as session:

        def update(plain, groups):
            if session.state.rl_step == step:
                raise Cut
            return plain(groups)

        run_items(session, items_by_stage(session.run, session.state)[0][1], replacing(update=update))


@pytest.mark.run
def test_a_run_that_goes_on_draws_and_learns_what_a_whole_one_does(base, one):
    config = recipe("vllm", STEPS)
    with pytest.raises(Cut):
        warm(VLLM).call(break_off, config, base / "cut", 2)
    trained(config, base / "cut", "must")
    ours, theirs = (load_file(folder / "model" / "model.safetensors") for folder in (base / "cut", one))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    drawn = [(folder / "rollouts.jsonl").read_bytes() for folder in (base / "cut", one)]
    assert drawn[0] == drawn[1]


@pytest.mark.run
def test_vllm_generates_ahead_of_the_update(base):
    ahead = recipe("vllm", 4, rollout={"engine": "vllm", "max_staleness": 1})
    assert [row["staleness/max"] for row in rows(trained(ahead, base / "ahead"))] == [0.0, 1.0, 1.0, 1.0]


@pytest.mark.run
@pytest.mark.nightly
def test_two_ranks_learn_as_one_does_with_an_engine_each_or_one_together(base, one, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    ways = {
        "together": {"rollout": {"vllm": {"tensor_parallel": 2}}, "train": {"backend": "deepspeed", "zero": 3}},
        "each": {"train": {"backend": "fsdp"}},
    }
    for way, changes in ways.items():
        two = by_two(base / way, steps=STEPS, **changes)
        for rank in (0, 1):
            found = json.loads((two / f"found{rank}.json").read_text())
            assert found == [{"version": v, "equal": True} for v in HELD]
        assert learned(two) > 0.3
        assert all(0 < row["mismatch/p99"] < 1e-3 and row["masked/mismatch"] == 0 for row in rows(two))
        assert json.loads((two / "parity.json").read_text())["differs"] is False
        assert json.loads((two / "run.json").read_text())["num_ranks"] == 2
        assert_same_run(two, one)
