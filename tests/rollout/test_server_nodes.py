"""Nodes that only generate: what the trainer and they write for each other."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.processes import until
from verizero.pipeline.config.sections import LaunchConfig
from verizero.pipeline.errors import EngineError, RunError
from verizero.pipeline.host.network import LOOPBACK, answers
from verizero.pipeline.launch import serve_as_node
from verizero.pipeline.rollout.server_nodes import OrderedServers, ServersOfNode, forget_orders

SERVER = """
import http.server, sys

class Well(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

http.server.HTTPServer((sys.argv[2], int(sys.argv[4])), Well).serve_forever()
"""
PROGRAM = ([sys.executable, "-c", SERVER], {**os.environ})
FIELD = "rollout.server.start_timeout_s"


@contextmanager
def looking(node: ServersOfNode) -> Iterator[None]:
    """A thread in which the node does what it does."""
    ends = threading.Event()

    def look() -> None:
        while not ends.wait(0.05):
            node.look()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
        node.close()


@pytest.mark.run
def test_a_server_that_ends_is_started_again_until_the_order_is_withdrawn(tmp_path):
    trainer, node = OrderedServers(tmp_path, range(2, 3)), ServersOfNode(tmp_path, 2, LOOPBACK)
    with looking(node):
        trainer.start([PROGRAM, PROGRAM], 300, FIELD)
        urls = trainer.urls()
        assert len(set(urls)) == 2
        process = node._servers[0].process
        os.killpg(process.pid, signal.SIGKILL)
        until(lambda: node._servers[0].process is not process and node._servers[0].is_up, "the server's return")
        assert trainer.urls() == urls
        again = OrderedServers(tmp_path, [2])
        again.start([PROGRAM], 300, FIELD)
        assert (len(again.urls()), trainer.urls()) == (1, ()), "a new start of the trainer has servers of its own"
        again.close()
        until(lambda: not any(map(answers, (f"{url}/health" for url in again.urls()))), "the servers' end")
        until(lambda: not node._servers, "the node's word")


@pytest.mark.run
def test_a_server_that_cannot_start_ends_the_run_with_its_last_lines(tmp_path):
    program = ([sys.executable, "-c", "import os; print(os.environ['MORE']); raise SystemExit(3)"], {"MORE": "no GPU"})
    with (
        looking(ServersOfNode(tmp_path, 4, LOOPBACK)),
        pytest.raises(EngineError, match=r"(?s)node 4, .* ended before it answered; .*server-4-0\.log ends:\nno GPU"),
    ):
        OrderedServers(tmp_path, [4]).start([program], 300, FIELD)


def test_nodes_that_nobody_started_are_named(tmp_path):
    with pytest.raises(
        EngineError, match=rf"no servers after 0\.1 s \({FIELD}\) on nodes 1, 2; start the same command"
    ):
        OrderedServers(tmp_path, [1, 2]).start([PROGRAM], 0.1, FIELD)


def test_a_node_ends_with_the_run_or_when_rank_0_is_silent_for_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr("verizero.pipeline.launch.SPARE_S", 0.0)
    phase = tmp_path / "logs" / "rank0.phase"
    phase.parent.mkdir()
    phase.write_text("round 1 step 1: update")
    order = OrderedServers(tmp_path, [1])
    with pytest.raises(EngineError):
        order.start([], 0.0, FIELD)
    config = LaunchConfig(kind="torchrun", nodes={"generate": 1}, address="n1", phase_timeout_s=0.5)
    with pytest.raises(RunError, match=r"node 1 .* rank 0 began no phase for 0\.5 s \(launch\.phase_timeout_s=0\.5\)"):
        serve_as_node(1, config, tmp_path, LOOPBACK)
    phase.write_text("end")
    serve_as_node(1, config, tmp_path, LOOPBACK)
    forget_orders(tmp_path)
    assert not (tmp_path / "servers").exists()
