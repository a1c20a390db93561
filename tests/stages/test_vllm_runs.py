"""Whole runs with vLLM in this process: they learn as with the embedded engine, go on where they were; and the gate."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pipeline.config.sections import VllmConfig
from pipeline.errors import ConfigError, RunError
from pipeline.stages.build import own_servers
from pipeline.stages.parity import TRUNCATED, action_of, corrected, hold_against_trainer
from pipeline.stages.progress import Silent
from pipeline.stages.stale import differences, recipe_fields
from pipeline.stages.steps import Steps, temperature
from pipeline.stages.train import opened, remaining, run_items, train
from pipeline.train.ranks import Ranks
from tests.stages.test_rl import Heard, session_of
from tests.stages.tiny import tiny

VERIFIER = """
from pipeline.types import Attempt, Verdict
from verifiers.base import VerifierParams, verifier


@verifier
def sevens(attempt: Attempt, params: VerifierParams) -> Verdict:
    share = attempt.response.count("7") / max(1, len(attempt.response))
    return Verdict("graded", share, "share")
"""
STEPS = 16


def recipe(engine: str, steps: int = STEPS, **changes: Any) -> Any:
    """Few steps of RL from random weights towards responses of sevens."""
    source = {"generator": {"name": "arithmetic", "params": {"digits": 1, "num_train": 30, "num_evaluation": 2}}}
    tree = {
        "stages": ["rl"],
        "sft": None,
        "model": {"create": {"config": {"hidden_size": 64, "num_attention_heads": 2}, "characters": "0123456789+-=7 "}},
        "data": {"train": [{**source, "verifier": {"path": "sevens.py:sevens"}}], "evaluation": []},
        "rl": {
            "algorithm": {"name": "grpo", "kl_target": None, "kl_horizon": None, "kl_coef": 0.0, "allow": []},
            "rounds": 1,
            "steps_per_round": steps,
            "prompts_per_step": 4,
            "group_size": 8,
            "optimizer": {"learning_rate": 1e-2},
        },
        "rollout": {"engine": engine, "max_response_tokens": 8, "vllm": {"kv_cache_gib": 0.1}},
        "scoring": {"truncated": None},
        "evaluation": {"before_training": False},
    }
    return tiny({**tree, **changes})


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["metrics"] for line in lines if line["kind"] == "step"]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "sevens.py").write_text(VERIFIER)
    return tmp_path


@pytest.fixture(scope="module")
def need_vllm() -> None:
    pytest.importorskip("vllm", reason="make install-engines")


@pytest.mark.integration
@pytest.mark.usefixtures("need_vllm")
def test_a_run_learns_with_vllm_as_with_the_embedded_engine(base: Path) -> None:
    for engine in ("torch", "vllm"):
        train(recipe(engine), base, base / engine, "auto", Silent())
    learned = {}
    for engine in ("torch", "vllm"):
        rewards = [row["reward/sampled"] for row in rows(base / engine)]
        assert len(rewards) == STEPS
        learned[engine] = sum(rewards[-4:]) / 4 - sum(rewards[:4]) / 4
    assert learned["torch"] > 0.3
    assert learned["vllm"] > 0.3
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

    def update(*arguments: Any) -> Any:
        if arguments[0].state.rl_step == 2:
            raise Cut
        return Steps().update(*arguments)

    with pytest.raises(Cut), opened(config, base, base / "cut", "auto", Silent()) as session:
        run_items(session, remaining(session)[0][1], Steps(update=update))
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


def living(group: int) -> list[str]:
    """Processes of that group that are no zombies."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of_group = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of_group) == group and state != "Z":
            found.append(path.parent.name)
    return found


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.usefixtures("need_vllm")
def test_a_run_learns_with_a_server_that_it_starts_and_ends(base: Path) -> None:
    pids: list[int] = []

    def update(session: Any, *arguments: Any) -> Any:
        pids.extend(p.process.pid for p in session.engine._processes if not pids)
        return Steps().update(session, *arguments)

    with opened(recipe("vllm_server"), base, base / "run", "auto", Silent()) as session:
        for _, items in remaining(session):
            run_items(session, items, Steps(update=update))
    seen = rows(base / "run")
    rewards = [row["reward/sampled"] for row in seen]
    assert sum(rewards[-4:]) / 4 - sum(rewards[:4]) / 4 > 0.3
    assert all(row["servers/alive"] == 1 and row["servers/resampled"] == 0 for row in seen)
    assert all(row["mismatch/p99"] < 1e-3 for row in seen)
    assert [row["policy/version"] for row in seen] == list(range(1, STEPS + 1))
    assert json.loads((base / "run" / "parity.json").read_text())["differs"] is False
    assert len(pids) == 1
    until = time.monotonic() + 60
    while living(pids[0]) and time.monotonic() < until:
        time.sleep(0.1)
    assert living(pids[0]) == []


def test_each_rank_has_servers_of_its_own() -> None:
    given = VllmConfig(urls=("http://a:1", "http://b:1", "http://c:1"))
    of_rank = [own_servers(given, SimpleNamespace(ranks=Ranks(rank, 2))).urls for rank in (0, 1)]
    assert of_rank == [("http://a:1", "http://c:1"), ("http://b:1",)]
    assert own_servers(given, None).urls == given.urls
    assert own_servers(VllmConfig(), SimpleNamespace(ranks=Ranks(1, 2))).urls == ()
    with pytest.raises(ConfigError, match="names 3 servers for 4 ranks"):
        own_servers(given, SimpleNamespace(ranks=Ranks(0, 4)))


def test_a_run_may_go_on_with_other_servers_but_not_with_another_engine() -> None:
    def asking(**rollout: Any) -> Any:
        return tiny({"rollout": rollout})

    begun = asking(engine="vllm_server", vllm={"urls": ["http://a:1"]})

    def changed(**rollout: Any) -> list[str]:
        before, now = (recipe_fields(c.of_stage("rl")) for c in (begun, asking(**rollout)))
        return differences(before, now)

    assert changed(engine="vllm_server", vllm={"servers": 3, "concurrency": 9, "sleep": False}) == []
    assert changed(engine="vllm") == ["rollout.engine was 'vllm_server', is 'vllm'"]
    found = changed(engine="vllm_server", vllm={"max_model_tokens": 48})
    assert found == ["rollout.vllm.max_model_tokens was None, is 48"]


class TestTheGate:
    """The scripted engine reports a log-prob of -0.5 for whatever it says, which no trainer agrees with."""

    def gap(self, folder: Path, action: str) -> tuple[Heard, Any]:
        with session_of(folder, rollout={"parity": {"action": action}}) as session:
            found = hold_against_trainer(session, temperature(session))
            assert isinstance(session.progress, Heard)
            return session.progress, found

    def test_off_is_the_default_of_the_embedded_engine(self, tmp_path: Path) -> None:
        assert self.gap(tmp_path, "auto")[1] is None
        assert not (tmp_path / "run" / "parity.json").exists()

    def test_a_difference_is_said_and_written_down(self, tmp_path: Path) -> None:
        heard, gap = self.gap(tmp_path, "warn")
        assert gap.p50 <= gap.p99 <= gap.largest
        assert gap.mean > 1
        (said,) = [line for line in heard.lines if "differ" in line]
        assert "rollout.parity.action: correct" in said
        written = json.loads((tmp_path / "run" / "parity.json").read_text())
        assert written["differs"] is True
        assert written["mean"] == gap.mean

    def test_a_difference_ends_the_run_where_the_recipe_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match=r"differ in log-probs.*tolerance=0\.001"):
            self.gap(tmp_path, "stop")

    def test_the_embedded_engine_passes(self, tmp_path: Path) -> None:
        config = tiny({"stages": ["rl"], "sft": None, "rollout": {"parity": {"action": "stop"}}})
        with opened(config, tmp_path, tmp_path / "run", "auto", Silent()) as session:
            gap = hold_against_trainer(session, temperature(session))
        assert gap is not None
        assert gap.mean < 1e-5

    def test_correction_is_on_for_vllm_unless_the_algorithm_has_its_own(self, tmp_path: Path) -> None:
        with session_of(tmp_path) as session:
            parts = session.parts
        assert parts is not None
        assert parts.mismatch.level == "none"
        vllm = tiny(overrides=["rollout.engine=vllm"]).rollout
        assert (action_of(tiny().rollout), action_of(vllm)) == ("off", "correct")
        assert corrected(parts, tiny().rollout) is parts
        assert corrected(parts, vllm).mismatch == TRUNCATED
        own = corrected(parts, vllm)
        assert corrected(own, vllm) is own
        assert corrected(parts, tiny(overrides=["rollout.engine=vllm", "rollout.parity.action=warn"]).rollout) is parts
