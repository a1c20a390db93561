"""Servers of vLLM that a run starts; each has a log, and ends with the run however the run ends."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verizero.pipeline.child import GRACE_S, NotReady, end, start, tail_of, wait_until, watched
from verizero.pipeline.errors import ConfigError, EngineError
from verizero.pipeline.listening import LOOPBACK, answers, free_port
from verizero.pipeline.own_programs import module_command

ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # opens the routes that take weights; the server listens on this machine only
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # several servers would bind their threads to the same cores
    "VLLM_NO_USAGE_STATS": "1",
}


class ServerProcess:
    """One server on this machine; `url` answers once `wait` has returned."""

    def __init__(self, arguments: Mapping[str, Any], log: Path, environment: Mapping[str, str] = {}) -> None:
        """`environment`: variables of the server next to this process's own."""
        self.log = log
        # Another process may take the port first; the server then ends, and `wait` reports its log.
        port = free_port()
        self.url = f"http://{LOOPBACK}:{port}"
        command = [*module_command("vllm.entrypoints.openai.api_server"), "--host", LOOPBACK, "--port", str(port)]
        command += ["--enable-scale-out", *flags(arguments)]
        log.parent.mkdir(parents=True, exist_ok=True)
        self.process = start(watched(command), env=variables(environment), log=log)

    def wait(self, timeout_s: float) -> None:
        """Wait until the server answers.

        Raises: EngineError with the log's last lines if the server ends, or does not answer in time.
        """
        try:
            wait_until(lambda: answers(f"{self.url}/health"), self.process, self.log, timeout_s)
        except NotReady as exc:
            remedy = "raise rollout.vllm.start_timeout_s, or see why: " if exc.status is None else ""
            raise EngineError(f"a server of vLLM {exc.what}; {remedy}{exc.tail}") from exc

    def tail(self) -> str:
        """Return the last lines of the log, for a message."""
        return tail_of(self.log)

    def close(self) -> None:
        """End the server and all that it started; kill what does not end in time."""
        end(self.process, grace_s=2 * GRACE_S)  # twice the time after which its watcher kills it


def variables(more: Mapping[str, str] = {}) -> dict[str, str]:
    """Return the variables of a server: this process's, those that every server has, and `more`."""
    own = {**os.environ, **ENVIRONMENT, **more}
    own.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)  # set for an engine in this process only
    return own


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
