"""`verizero sandbox` as a user meets it: a real service in a process of its own."""

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tests.processes import alive, family
from tests.source import ROOT
from verizero import sandbox
from verizero.pipeline.cli import main
from verizero.sandbox.client import Client

PATIENCE_S = 60.0
TESTS = [{"input": "4", "output": "8"}]


@contextmanager
def serving(*options, **variables):
    words = ["-m", "verizero.pipeline.cli", "sandbox", "serve", "--port", "0", "--workers", "1", *options]
    env, pipe = {**os.environ, **variables}, subprocess.PIPE
    process = subprocess.Popen([sys.executable, *words], cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True)
    try:
        line = process.stdout.readline()
        found = re.fullmatch(r"sandbox at level ([0-3]) on (http://127\.0\.0\.1:\d+)\n", line)
        assert found, (line, process.stderr.read() if not line else "")
        yield process, found[2]
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


class TestServe:
    @pytest.mark.run
    def test_runs_programs_with_a_token_and_ends_with_its_workers(self):
        with serving("--token-env", "MINE", MINE="secret") as (process, url):
            programs = ("print(int(input()) * 2)", "while True: pass")
            trials = [sandbox.Trial(program, TESTS, limits=sandbox.Limits(cpu_s=0.5)) for program in programs]
            results = Client(url, "secret").run_many(trials)
            assert [r.status for r in results] == ["passed", "cpu_limit"]
            assert "401" in Client(url, "guess").run_many(trials)[0].error
            workers = family(process.pid) - {process.pid}
            assert workers
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
            assert not alive(workers)

    @pytest.mark.run
    def test_without_a_token_it_makes_one_and_prints_it(self):
        with serving(SANDBOX_TOKEN="") as (process, url):
            token = process.stdout.readline().split()[1]
            trials = [sandbox.Trial("print(8)", TESTS)]
            assert "401" in Client(url).run_many(trials)[0].error
            assert Client(url, token).run_many(trials)[0].passed
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0

    def test_what_cannot_be_served_is_said(self, capsys):
        assert main(["sandbox", "serve", "--port", "0", "--workers", "0"]) == 1
        heard = capsys.readouterr()
        assert heard.out == ""
        assert heard.err.startswith("verizero: ")
        assert "workers " in heard.err

    def test_a_port_in_use_is_named(self, capsys):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            assert main(["sandbox", "serve", "--port", str(port)]) == 1
        assert f"127.0.0.1:{port}" in capsys.readouterr().err
