"""Whole runs over servers of vLLM: started or given, asked by one rank or two, that hang, die and come back."""

import json
import os
import signal
import subprocess
import sys
from functools import partial

import pytest

from tests.launch.hosts import HOSTS, enter, two_hosts
from tests.stages.servers import ROOT, GivenServer, strike
from tests.stages.sessions import replacing, run_all, train_model
from tests.stages.sevens import learned, recipe, rows
from tests.stages.vllm_runs import HELD, STEPS, assert_same_run, by_two, folder_of_runs, trained
from tests.warm import VLLM, warm
from verizero.pipeline.errors import EngineError
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.run.opening import open_run
from verizero.pipeline.run.saving import save_final

pytestmark = [pytest.mark.run, pytest.mark.nightly]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return folder_of_runs(tmp_path_factory)


@pytest.fixture(scope="module")
def given(base):
    """Two servers that no run started; a test may find one of them dead."""
    servers = [GivenServer(recipe("vllm"), base / name) for name in ("first", "second")]
    for server in servers:
        server.start()
    try:
        yield servers
    finally:
        for server in servers:
            server.kill()


@pytest.fixture(scope="module")
def whole(base):
    return trained(recipe("vllm", STEPS), base / "whole")


def over(*urls, **vllm):
    """The section of a run over these servers, which the run starts where there are none."""
    how = {"concurrency": 8, "health_timeout_s": 10, "request_timeout_s": 120}
    return {"engine": "vllm_server", "vllm": {**how, "urls": urls, **vllm}}


def run_with(config, base, folder, generate):
    with open_run(config, base, folder, "auto", Progress()) as session:
        run_all(session, replacing(generate=partial(generate, session)))
        save_final(session.run, session.workers.backend)


def counted(folder):
    return [(r["servers/alive"], r["servers/lost"]) for r in rows(folder)]


def assert_sound(folder, whole):
    """The run learned what the whole one did, and its engine was the trainer throughout."""
    assert [r["policy/version"] for r in rows(folder)] == list(range(1, STEPS + 1))
    assert all(r["mismatch/p99"] < 1e-3 and r["masked/mismatch"] == 0 for r in rows(folder))
    assert json.loads((folder / "parity.json").read_text())["differs"] is False
    assert learned(folder) > 0.3
    assert_same_run(folder, whole)


def test_two_ranks_over_the_same_servers_learn_as_one_does_though_one_loses_a_server(base, given, whole, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for server in given:
        server.start()
        server.wait()
    rollout, second = over(*(s.url for s in given)), given[1]
    two = by_two(
        base / "zero3",
        rollout=rollout,
        steps=STEPS,
        train={"backend": "deepspeed", "zero": 3},
        strike={"step": 4, "at": {"url": second.url, "group": second.group}},
    )
    for rank in (0, 1):
        found = json.loads((two / f"found{rank}.json").read_text())
        assert found == [{"version": v, "equal": True} for v in HELD]
    assert json.loads((two / "run.json").read_text())["num_ranks"] == 2
    assert_sound(two, whole)
    assert counted(two) == [(2, 0)] * 4 + [(1, 1)] * 4
    assert rows(two)[-1]["servers/resampled"] >= 1


def test_two_nodes_train_and_two_generate_whose_server_is_killed_and_comes_back(base, whole, monkeypatch):
    """Each command is the same but for NODE_RANK. Nodes 0 and 2 are one network namespace, 1 and 3 another."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder, nodes = base / "nodes", {"train": 2, "generate": 2}
    how = {"kind": "torchrun", "nodes": nodes, "address": HOSTS[0], "port": 29500, "phase_timeout_s": 500}
    changes = {"launch": how, "rollout": over(), "steps": STEPS, "held": HELD, "strike": {"step": 4, "node": 3}}
    with two_hosts() as hosts:
        words = ["tests.stages.vllm_rank", str(folder), json.dumps(changes)]
        ended = warm(VLLM).call(statuses, [hosts[i % 2] for i in range(4)], words)
    assert ended == [0, 0, 0, 0]
    for rank in (0, 1):
        found = json.loads((folder / f"found{rank}.json").read_text())
        assert found == [{"version": v, "equal": True} for v in HELD]
    assert_sound(folder, whole)
    assert counted(folder) == [(2, 0)] * 4 + [(1, 1)] * 2 + [(2, 1)] * 2
    assert not (folder / "servers" / "order.json").exists()


def statuses(hosts, words):
    """Run the program on all nodes, each in its network namespace; return how each ended."""
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=ROOT,
            env={**os.environ, "NODE_RANK": str(number), "GLOO_SOCKET_IFNAME": cable},
            preexec_fn=partial(enter, space),
        )
        for number, (space, cable) in enumerate(hosts)
    ]
    try:
        return [node.wait(timeout=500) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
            node.wait()


def test_given_servers_that_die_are_dropped_and_come_back_with_the_weights(base, given, whole):
    first, second = given
    first.start()
    second.kill()
    first.wait()
    config = recipe("vllm", STEPS, rollout=over(first.url, second.url))
    folder = base / "given"
    asked = {}

    def generate(session, plain, *arguments):
        step, engine = session.state.rl_step, session.workers.rollouts.engine
        if step == 1:  # it has the weights of the beginning, and is healthy
            second.start()
            second.wait()
        if step in (3, 5):
            struck = first if step == 3 else second
            strike(engine, struck.url, struck.group, signal.SIGKILL)
        rollouts = plain(*arguments)
        if step == 1:
            assert second.version == "default"
        asked[step] = [s.url for s in engine.servers]
        return rollouts

    with pytest.raises(EngineError, match="no server of vLLM is left of 2; start them again, or others") as said:
        run_with(config, base, folder, generate)
    assert list(asked.values()) == [[first.url], [first.url], [first.url, second.url], [second.url], [second.url]]
    assert counted(folder) == [(1, 1), (2, 1), (2, 1), (1, 2), (1, 2)]
    assert rows(folder)[-1]["servers/resampled"] >= 1
    lost = str(said.value).splitlines()[1:]
    for line, server in zip(lost, (second, first, second), strict=True):
        assert line.strip().startswith(server.url)

    first.kill()
    first.start()
    first.wait()
    assert first.version == "default"
    train_model(config, base, folder)
    assert counted(folder)[5:] == [(1, 1)] * 3
    assert_sound(folder, whole)
