"""Servers of vLLM as the rollout engine: started by the run, or given by URL.

Responses go to whichever server has room. One that fails is dropped, and what it had not answered is sampled again
elsewhere, with the same seeds. Weights are broadcast over gloo, each server in a group of its own, so that a dead one
holds up no other; or through a folder that all see.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.config.sections import VllmConfig
from pipeline.errors import EngineError
from pipeline.rollout.engine import Completion, Request, Sampling, check_requests
from pipeline.rollout.vllm_engine import (
    ROOM,
    Policy,
    check_arguments,
    check_heads,
    device_arguments,
    engine_arguments,
    import_vllm,
)
from pipeline.rollout.vllm_process import ServerProcess
from pipeline.rollout.vllm_records import prepare
from pipeline.rollout.vllm_remote import RemoteServer, ServerLost
from pipeline.rollout.weights import Counted, Published, buckets

Job = tuple[int, int]
"""The index of a request and that of a seed in it."""


class VllmServerEngine:
    """Generates with servers of vLLM. Implements `Engine`."""

    def __init__(self, policy: Policy, config: VllmConfig, max_rows: int, folder: Path) -> None:
        """`folder`: where logs go, and weights on their way. Raises: EngineError where a server does not start."""
        self.policy, self.config = policy, config
        self.published: Published | None = None
        self.num_resampled = 0
        self.lost: list[str] = []
        """Why each server was dropped."""
        self._version = -1
        self._folder = folder
        self._processes: list[ServerProcess] = []
        self._model = tempfile.TemporaryDirectory(prefix="verizero-engine-")
        try:
            urls = config.urls or self._start(max_rows)
            self.servers = [RemoteServer(url, config.request_timeout_s, config.health_timeout_s) for url in urls]
        except BaseException:
            self._end_processes()
            raise

    @property
    def version(self) -> int:
        """The version of the weights that every server in use has confirmed; -1 before the first `publish`."""
        return self._version

    def publish(self, version: int) -> None:
        """Send the trainer's present weights to every server; one that does not confirm them is dropped.

        Raises: EngineError if none is left.
        """
        start = time.perf_counter()
        weights = Counted(self.policy.weights())
        if self.config.transfer == "gloo":
            self._each(lambda server: server.begin())
            for bucket in buckets(weights, self.config.bucket_mib * 2**20):
                ready = [(name, t.to("cpu").contiguous()) for name, t in bucket]
                self._each(lambda server, ready=ready: server.send(ready))  # type: ignore[misc]
            self._each(lambda server: server.finish(version))
        else:
            self._publish_folder(weights, version)
        self._version = version
        self.published = Published(self.config.transfer, time.perf_counter() - start, weights.num_bytes)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[list[Completion]]:
        """Per request, one completion per seed.

        Raises: EngineError for a prompt that leaves no room, or where no server is left.
        """
        check_requests(requests, sampling.max_tokens, self.config.max_model_tokens or self.policy.context, ROOM)
        open_jobs = deque((i, j) for i, r in enumerate(requests) for j in range(len(r.seeds)))
        made: dict[Job, Completion] = {}
        while open_jobs:
            self._work_off(open_jobs, requests, sampling, made)
        return [[made[i, j] for j in range(len(r.seeds))] for i, r in enumerate(requests)]

    def counts(self) -> dict[str, float]:
        """What servers did so far, for the metrics of a step."""
        return {
            "servers/alive": float(len(self.servers)),
            "servers/lost": float(len(self.lost)),
            "servers/resampled": float(self.num_resampled),
        }

    def close(self) -> None:
        """End the servers that this run started; leave the others."""
        for server in self.servers:
            server.close()
        self._end_processes()

    def _start(self, max_rows: int) -> tuple[str, ...]:
        worker = import_vllm()  # says what to install, and knows the device
        prepare(self.policy.records, worker.why_no_records())
        self.policy.model.config.save_pretrained(self._model.name)
        arguments = {"model": self._model.name, **engine_arguments(self.policy, self.config, max_rows)}
        arguments["weight_transfer_config"] = {"backend": worker.TRANSFER}
        arguments |= device_arguments(self.policy, self.config, max_rows, worker.on_cpu())
        check_arguments(self.config.arguments, worker.argument_names())
        check_heads(self.policy.model.config, worker.head_sizes())
        arguments |= self.config.arguments
        for number in range(self.config.servers):
            log = self._folder / "logs" / f"vllm-{number}.log"
            self._processes.append(ServerProcess(arguments, log))
        until = time.monotonic() + self.config.start_timeout_s
        for process in self._processes:
            process.wait(max(1.0, until - time.monotonic()))
        return tuple(p.url for p in self._processes)

    def _publish_folder(self, weights: Counted, version: int) -> None:
        from safetensors.torch import save_file

        with tempfile.TemporaryDirectory(dir=self._folder, prefix="weights-") as folder:
            for number, bucket in enumerate(buckets(weights, self.config.bucket_mib * 2**20)):
                tensors: dict[str, Tensor] = {name: t.to("cpu").contiguous() for name, t in bucket}
                save_file(tensors, str(Path(folder) / f"{number:05}.safetensors"))
            where = str(Path(folder).absolute())
            self._each(lambda server: server.take_folder(where, version))

    def _work_off(
        self, open_jobs: deque[Job], requests: Sequence[Request], sampling: Sampling, made: dict[Job, Completion]
    ) -> None:
        """Answer the jobs with the servers that there are; those of a server that fails are open again."""
        self._check_left()
        refused: list[EngineError] = []
        failures: dict[RemoteServer, str] = {}

        def work(server: RemoteServer) -> None:
            while server not in failures and not refused:
                try:
                    i, j = open_jobs.popleft()
                except IndexError:
                    return
                options = self.policy.options(sampling, requests[i].seeds[j])
                try:
                    made[i, j] = server.generate(requests[i].prompt_ids, options, self._version, sampling)
                except ServerLost as exc:
                    open_jobs.append((i, j))
                    self.num_resampled += 1
                    failures.setdefault(server, str(exc))
                except EngineError as exc:
                    refused.append(exc)

        most = min(self.config.concurrency, len(open_jobs))
        threads = [threading.Thread(target=work, args=(s,), daemon=True) for s in self.servers for _ in range(most)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if refused:
            raise refused[0]
        self._drop(failures)

    def _each(self, what: Callable[[RemoteServer], Any]) -> None:
        """Do it with all servers at once, and drop those that fail. Raises: EngineError if none is left."""
        failures: dict[RemoteServer, str] = {}

        def one(server: RemoteServer) -> None:
            try:
                what(server)
            except ServerLost as exc:
                failures[server] = str(exc)

        with ThreadPoolExecutor(max(1, len(self.servers))) as pool, torch.no_grad():
            list(pool.map(one, self.servers))
        self._drop(failures)
        self._check_left()

    def _check_left(self) -> None:
        if self.servers:
            return
        remedy = "start others (docs/engines.md) and name them in rollout.vllm.urls"
        if not self.config.urls:
            remedy = f"see why in {self._folder / 'logs'}/vllm-*.log"
        raise EngineError(
            f"no server of vLLM is left of {len(self.lost)}; {remedy}, then start the same command again: it goes on "
            "from the last checkpoint. Lost:\n  " + "\n  ".join(self.lost)
        )

    def _drop(self, failures: dict[RemoteServer, str]) -> None:
        """Ask them no more, and end those that this run started: a hung one would keep its memory."""
        for server, why in failures.items():
            self.servers.remove(server)
            self.lost.append(why)
            server.close()
            for process in [p for p in self._processes if p.url == server.url]:
                process.close()
                self._processes.remove(process)

    def _end_processes(self) -> None:
        for process in self._processes:
            process.close()
        self._processes = []
        self._model.cleanup()
