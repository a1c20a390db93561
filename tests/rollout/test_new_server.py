"""A kind of server from outside the package, as docs/engines.md names it, trains a round, and one of two is killed."""

import json
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from tests.source import ROOT
from tests.stages.servers import assert_gone, strike
from tests.stages.sessions import replacing, run_all
from tests.stages.sevens import recipe, rows, write_verifier
from tests.stages.tiny import tiny
from tests.warm import warm
from verizero.pipeline import registry
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.run.choose_checkpoint import recipe_fields
from verizero.pipeline.run.opening import open_run
from verizero.pipeline.run.saving import save_final

STEPS = 2
Patch = Callable[[Any, str, Any], None]


def install(folder: Path, patch: Patch = setattr) -> None:
    """Write the example's client and server into the folder, and give the client an entry point."""
    for name in ("toy_client.py", "toy_server.py"):
        shutil.copy(ROOT / "examples" / name, folder)
    entry = EntryPoint("toy", "toy_client:servers", "verizero.servers")
    patch(registry, "_installed", lambda kind, path: (entry,) if kind == "servers" else ())
    patch(sys, "path", [str(folder), *sys.path])


@pytest.fixture
def installed(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch.setattr)
    monkeypatch.delitem(sys.modules, "toy_client", raising=False)


def trained(folder: Path, num_servers: int, killed_in: int | None = None) -> set[int]:
    """Train a round; return the servers' groups of processes. In step `killed_in` one dies that owes answers."""
    install(folder.parent)
    config = recipe("toy", STEPS, rollout={"server": {"servers": num_servers, "concurrency": 4}})
    started: set[int] = set()

    def generate(session, plain, *arguments):
        engine = session.workers.rollouts.engine
        started.update(p.process.pid for p in engine._processes)
        if session.state.rl_step == killed_in:
            process = engine._processes[0]
            strike(engine, process.url, process.process.pid, signal.SIGKILL)
        return plain(*arguments)

    with open_run(config, folder.parent, folder, "auto", Progress()) as session:
        run_all(session, replacing(generate=partial(generate, session)))
        save_final(session.run, session.workers.backend)
    return started


@pytest.mark.run
def test_the_documents_servers_train_a_round_and_one_that_is_killed_leaves_no_trace(tmp_path, monkeypatch):
    write_verifier(tmp_path)
    monkeypatch.chdir(tmp_path)  # where `python -m toy_server` finds it
    one, two = tmp_path / "one", tmp_path / "two"
    assert len(warm().call(trained, one, 1)) == 1
    started = warm().call(trained, two, 2, 1)
    assert len(started) == 2
    assert_gone(started)
    counts = [(r["servers/alive"], r["servers/lost"], r["servers/resampled"] > 0) for r in rows(two)]
    assert counts == [(2, 0, False), (1, 1, True)]
    assert (two / "rollouts.jsonl").read_bytes() == (one / "rollouts.jsonl").read_bytes()
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (one, two)]
    assert weights[0] == weights[1]
    # the servers had the trainer's weights at every step
    assert all(r["mismatch/p99"] < 1e-4 for r in rows(two))
    assert json.loads((two / "parity.json").read_text())["differs"] is False
    assert (two / "logs" / "toy-0.log").exists()


@pytest.mark.parametrize(
    ("rollout", "more", "named"),
    [
        (
            {"engine": "tpy"},
            {},
            r"rollout\.engine: no engine has that name; did you mean toy.*verizero\.servers.*'tpy'",
        ),
        ({"server": {"thread": 2}}, {}, r"rollout\.server: no parameter 'thread'; did you mean threads"),
        ({"server": {"threads": 0}}, {}, r"rollout\.server: threads = 0"),
        ({"engine": "torch", "server": {"threads": 2}}, {}, r"rollout\.server=.*rollout\.engine=torch"),
        (
            {},
            {"model": {"quantize": "nf4"}, "train": {"lora": {"rank": 2}}},
            r"rollout\.engine=toy, which takes .* merged; set rollout\.engine: torch, vllm",
        ),
        (
            {"server": {"request_timeout_s": 1800}},
            {"launch": {"kind": "torchrun"}},
            r"rollout\.server\.request_timeout_s=1800 and launch\.phase_timeout_s",
        ),
        ({}, {"launch": {"kind": "slurm", "nodes": 2, "gpus_per_node": 1}}, r"named in rollout\.server\.urls"),
    ],
)
@pytest.mark.usefixtures("installed")
def test_what_does_not_fit_servers_is_refused(rollout, more, named):
    with pytest.raises(ConfigError, match=named):
        tiny({"rollout": {"engine": "toy", **rollout}, **more})


@pytest.mark.usefixtures("installed")
def test_where_servers_are_may_change_on_resume_and_what_they_compute_may_not():
    def fields(**server):
        return recipe_fields(tiny({"rollout": {"engine": "toy", "server": server}}).of_stage("rl"))

    assert fields() == fields(servers=3, threads=4, urls=["http://a:1"], health_timeout_s=9)
    other = tiny({"rollout": {"engine": "torch"}}).of_stage("rl")
    assert fields() != recipe_fields(other)
