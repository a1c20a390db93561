"""Servers of vLLM that a run starts; each has a log, and ends with the run however the run ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from verizero.pipeline.errors import ConfigError, EngineError
from verizero.pipeline.own_programs import module_command
from verizero.pipeline.rollout.child_process import GRACE_S

ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # opens the routes that take weights; the server listens on this machine only
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # several servers would bind their threads to the same cores
    "VLLM_NO_USAGE_STATS": "1",
}
HOST = "127.0.0.1"
LAST_LINES = 15
POLL_S = 0.25
END_S = 2 * GRACE_S
"""Twice the time after which child_process kills the server itself."""


class ServerProcess:
    """One server on this machine; `url` answers once `wait` has returned."""

    def __init__(self, arguments: Mapping[str, Any], log: Path, environment: Mapping[str, str] = {}) -> None:
        """`environment`: variables of the server next to this process's own."""
        self.log = log
        # Another process may take the port first; the server then ends, and `wait` reports its log.
        port = free_port()
        self.url = f"http://{HOST}:{port}"
        command = [*module_command("vllm.entrypoints.openai.api_server"), "--host", HOST, "--port", str(port)]
        command += ["--enable-scale-out", *flags(arguments)]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            self.process = start_child(command, out, environment)

    def wait(self, timeout_s: float) -> None:
        """Wait until the server answers.

        Raises: EngineError with the log's last lines if the server ends, or does not answer in time.
        """
        until = time.monotonic() + timeout_s
        while not _answers(self.url):
            if self.process.poll() is not None:
                raise EngineError(f"a server of vLLM ended with status {self.process.returncode}; {self.tail()}")
            if time.monotonic() > until:
                raise EngineError(
                    f"a server of vLLM did not answer within rollout.vllm.start_timeout_s={timeout_s:g}; {self.tail()}"
                )
            time.sleep(POLL_S)

    def tail(self) -> str:
        """Return the last lines of the log, for a message."""
        lines = self.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return f"{self.log} ends:\n" + "\n".join(lines)

    def close(self) -> None:
        """End the server and all that it started; kill what does not end in time."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        # start_new_session made its process id the id of its group.
        with suppress(ProcessLookupError):  # the group is left if child_process itself hangs or was killed
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def start_child(command: Sequence[str], out: Any, more: Mapping[str, str] = {}) -> subprocess.Popen[bytes]:
    """Start the command under child_process, which ends it, and all that it starts, when this process dies."""
    parent = [sys.executable, str(Path(__file__).with_name("child_process.py")), str(os.getpid()), *command]
    return subprocess.Popen(
        parent, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment(more), start_new_session=True
    )


def environment(more: Mapping[str, str] = {}) -> dict[str, str]:
    """Return the variables of a server: this process's, those that every server has, and `more`."""
    variables = {**os.environ, **ENVIRONMENT, **more}
    variables.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)  # set for an engine in this process only
    return variables


def visible(devices: Sequence[int], num_seen: int, environment: Mapping[str, str] = os.environ) -> str:
    """Return CUDA_VISIBLE_DEVICES of a server on these GPUs, which are numbered as this process sees them.

    `num_seen`: how many this process sees. Raises: ConfigError for one that it does not see.
    """
    names = environment.get("CUDA_VISIBLE_DEVICES", "")
    seen = [name.strip() for name in names.split(",")] if names.strip() else [str(i) for i in range(num_seen)]
    if missing := [gpu for gpu in devices if gpu >= len(seen)]:
        raise ConfigError(
            f"rollout.vllm.devices names GPU {missing[0]}, and rank 0 sees {len(seen)} "
            + (f"(CUDA_VISIBLE_DEVICES={names})" if names else "on this machine")
            + "; name GPUs below that number, or start rank 0 where it sees those of the servers too"
        )
    return ",".join(seen[gpu] for gpu in devices)


def flags(arguments: Mapping[str, Any]) -> list[str]:
    """Return the arguments of vLLM's engine as options of its command line."""
    out: list[str] = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            out.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            text = json.dumps(value) if isinstance(value, dict | list | tuple) else str(value)
            out += [f"--{flag}", text]
    return out


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def free_port(host: str = HOST) -> int:
    """Return a port that nothing uses now at this address; "": at every address of this machine."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
