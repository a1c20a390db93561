"""`verizero deploy` for work pools of a server that runs, and a real worker of a process pool."""

import json
import signal

import pytest

from tests.flows.served import SMALL, ServerAlone, until
from tests.processes import alive, family
from tests.stages.tiny import tiny
from verizero.pipeline.config.load import dump

pytestmark = [pytest.mark.run, pytest.mark.nightly]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    (folder / "recipes").mkdir()
    (folder / "recipes" / "small.yaml").write_text(dump(tiny({**SMALL, "name": "small"})))
    alone = ServerAlone(folder)
    try:
        alone.wait()
        yield alone
    finally:
        alone.stop()


def test_deploy_registers_the_same_flows_for_a_work_pool(server):
    lost = server.command("deploy", "--pool", "gpus")
    assert lost.returncode == 1
    assert "no such work pool" in lost.stderr
    assert "Traceback" not in lost.stderr
    server.post("/work_pools/", name="gpus", type="process")
    done = server.command("deploy", "--pool", "gpus", "--recipes", "recipes", "--srun=--gpus=8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("deployed ") == 4
    deployment = server.deployment("train")
    assert deployment["work_pool_name"] == "gpus"
    assert deployment["job_variables"]["command"].startswith("srun ")
    assert "small" in deployment["parameter_openapi_schema"]["properties"]["recipe"]["enum"]
    assert len(server.post("/automations/filter")) == 1, "made once"


@pytest.fixture
def worker(server, tmp_path):
    """Prefect's own worker of the pool `here`, started from another folder."""
    server.post("/work_pools/", name="here", type="process")
    done = server.command("deploy", "--pool", "here", "--recipes", "recipes")
    assert done.returncode == 0, done.stderr
    settings = {"PREFECT_API_URL": f"{server.address}/api", "PREFECT_HOME": str(tmp_path), "DO_NOT_TRACK": "1"}
    settings["PREFECT_API_AUTH_STRING"] = "tests:secret"
    log = tmp_path / "worker.log"
    process = server.program(["prefect", "worker", "start", "--pool", "here"], log, **settings)
    try:
        yield process
    finally:
        everyone = family(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
        print(log.read_text()[-3000:])
        until(lambda: not alive(everyone), "the end of the worker's flows")


def test_a_worker_runs_what_is_triggered_and_its_runs_die_with_it(server, worker):
    run = server.ended(server.start("train", recipe="small", folder="by-worker"))
    assert run["state"]["name"] == "Completed", run["state"]
    assert run["work_pool_name"] == "here"
    folder = server.folder / "runs" / "by-worker"
    assert json.loads((folder / "summary.json").read_text())["steps"] == 2, "where the command was given"
    assert "report" in server.artifacts(run["id"])
    server.start("train", recipe="small", folder="left", overrides={"rl.steps_per_round": 100_000})
    until(lambda: (server.folder / "runs" / "left" / "checkpoints").is_dir(), "a checkpoint")
    everyone = family(worker.pid)
    assert len(everyone) >= 2
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    until(lambda: not alive(everyone), "the end of what the worker had started")
