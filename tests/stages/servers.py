"""Servers of vLLM as an operator starts them (docs/engines.md), with weights of their own; and signals that strike."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.models.load import save_folder
from pipeline.rollout.vllm_process import HOST, flags, start_child
from pipeline.run.build import build_policy, build_tokenizer

ARGUMENTS = {
    "enable_scale_out": True,
    "skip_tokenizer_init": True,
    "logprobs_mode": "processed_logprobs",
    "dtype": "float32",
    "enforce_eager": True,
    "worker_extension_cls": "pipeline.rollout.vllm_worker.WorkerExtension",
    "weight_transfer_config": {"backend": "verizero_gloo"},
    "generation_config": "vllm",
    "kv_cache_memory_bytes": 100 * 2**20,
    "disable_log_stats": True,
}


class GivenServer:
    """One server at `url`, of the model that a recipe begins with."""

    process: subprocess.Popen[bytes] | None

    def __init__(self, config: Any, folder: Path) -> None:
        tokenizer = build_tokenizer(config)
        save_folder(build_policy(config, tokenizer, None), tokenizer, folder / "model")
        self.folder, self.process = folder, None
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"http://{HOST}:{self.port}"

    @property
    def group(self) -> int:
        """Its group of processes."""
        assert self.process is not None
        return self.process.pid

    @property
    def version(self) -> str:
        """That of its weights, as it says."""
        with urllib.request.urlopen(f"{self.url}/weight_info", timeout=60) as reply:
            return str(json.load(reply)["weight_version"])

    def start(self) -> None:
        """Begin to start it, where it does not run; `wait` returns when it answers."""
        if self.process is not None and self.process.poll() is None:
            return
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", HOST, "--port", str(self.port)]
        with (self.folder / "server.log").open("ab") as out:
            self.process = start_child([*command, *flags({"model": str(self.folder / "model"), **ARGUMENTS})], out)

    def wait(self) -> None:
        """Return when it answers."""
        assert self.process is not None
        until = time.monotonic() + 400
        while time.monotonic() < until:
            assert self.process.poll() is None, (self.folder / "server.log").read_text()[-2000:]
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.25)
        raise AssertionError("the server does not answer")

    def kill(self) -> None:
        """End it with all its processes, as kill -9 does."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.group, signal.SIGKILL)
            self.process.wait()
            assert_gone({self.group})


def strike(engine: Any, url: str, group: int, number: signal.Signals) -> None:
    """At the next answer of the server at `url`, its processes are sent a signal: it owes others then."""
    (server,) = [s for s in engine.servers if s.url == url]
    once, answer = threading.Lock(), server.generate

    def struck(*asked: Any) -> Any:
        answered = answer(*asked)
        if once.acquire(blocking=False):
            os.killpg(group, number)
        return answered

    server.generate = struck


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


def assert_gone(groups: set[int]) -> None:
    """No process of them is left, or will be soon."""
    until = time.monotonic() + 60
    while any(map(living, groups)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(map(living, groups))
