"""Servers of vLLM as the rollout engine: started by the run, or given by URL.

Responses go to whichever server has room. One that fails is dropped, and what it had not answered is sampled again
elsewhere, with the same seeds. Weights are broadcast over gloo, each server in a group of its own, so that a dead one
holds up no other; or through a folder that all see.

All ranks of a group ask all servers. The first starts them and sends them the weights, once no rank asks any more; a
server that any rank lost is lost to all from then on.
"""

from __future__ import annotations

import secrets
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from pipeline.config.sections import VllmConfig
from pipeline.errors import EngineError, VerizeroError
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
LEAVE_S = 10.0
"""A process that ends while a group of gloo is given up in one of its threads is aborted; more would wait for a send
to a server that hangs, which does not end the process in that way."""
T = TypeVar("T")


class Peers(Protocol):
    """The ranks that ask the same servers."""

    @property
    def rank(self) -> int:
        """This one."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def gather(self, value: T) -> list[T]:
        """Every rank's value, by rank; all of them call this. It meets no collective of another thread."""
        ...


class VllmServerEngine:
    """Generates with servers of vLLM. Implements `Engine`."""

    def __init__(
        self, policy: Policy, config: VllmConfig, max_rows: int, folder: Path, peers: Peers | None = None
    ) -> None:
        """`folder`: where the first rank's logs go, and weights on their way. `peers`: None where there is one rank.

        Raises: EngineError where a server does not start.
        """
        self.policy, self.config = policy, config
        self.published: Published | None = None
        self._version = -1
        self._peers = peers
        self._is_first = peers is None or peers.rank == 0
        self._folder = folder
        self._processes: list[ServerProcess] = []
        self._model = tempfile.TemporaryDirectory(prefix="verizero-engine-")
        self._known: list[str] = []
        self._news: dict[str, str] = {}
        self._away: list[RemoteServer] = []
        self._leaving: list[Future[None]] = []
        self._resampled = self._resampled_by_others = 0
        try:
            urls, self._logs, self._run = self._told(
                lambda: (config.urls or self._start(max_rows), str(folder / "logs"), secrets.token_hex(4))
            )
            self.servers, self._num = [self._server(url) for url in urls], len(urls)
        except BaseException:
            self._end_processes()
            raise

    @property
    def version(self) -> int:
        """The version of the weights that every server in use has confirmed; -1 before the first `publish`."""
        return self._version

    @property
    def lost(self) -> list[str]:
        """Why each server was dropped, as far as this rank has heard."""
        return [*self._known, *self._news.values()]

    def publish(self, version: int) -> None:
        """Send the trainer's present weights to every server; one that does not confirm them is dropped.

        One given by URL that was dropped and started again since is tried again. All ranks call this: weights that
        are dealt out come together in step. Raises: EngineError if no server is left.
        """
        start = time.perf_counter()
        self._hear()
        weights = Counted(iter(self.policy.weights()))

        def send() -> tuple[list[str], list[str]]:
            self._take_back()
            self._send(weights, self._label(version))
            return [s.url for s in self.servers], self.lost

        urls, self._known = self._told(send, lambda: deque(weights, 0))
        self._news = {}
        have = {s.url: s for s in self.servers}
        self.servers = [have.get(url) or self._server(url) for url in urls]
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
        """What servers did so far, for the metrics of a step; with other ranks, as of the last publish."""
        return {
            "servers/alive": float(len(self.servers)),
            "servers/lost": float(len(self.lost)),
            "servers/resampled": float(self._resampled + self._resampled_by_others),
        }

    def close(self) -> None:
        """End the servers that this run started; leave the others."""
        self._leaving += [server.close() for server in self.servers]
        self._end_processes()
        wait(self._leaving, LEAVE_S)

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

    def _server(self, url: str) -> RemoteServer:
        return RemoteServer(url, self.config.request_timeout_s, self.config.health_timeout_s)

    def _label(self, version: int) -> str:
        """What servers call the weights: no other run's of the same number, nor those of a server started again."""
        return f"{version}@{self._run}"

    def _gather(self, value: T) -> list[T]:
        return [value] if self._peers is None else self._peers.gather(value)

    def _told(self, do: Callable[[], T], meanwhile: Callable[[], Any] = lambda: None) -> T:
        """What the first rank gets by `do`, on all; or what it raises. `meanwhile` is done by all, by the first after.

        Raises: VerizeroError.
        """
        said: list[T] | VerizeroError = []
        if self._is_first:
            try:
                said = [do()]
            except VerizeroError as exc:
                said = exc
        meanwhile()
        found = self._gather(said)[0]
        if isinstance(found, VerizeroError):
            raise found
        return found[0]

    def _hear(self) -> None:
        """Drop what any rank has lost; when this returns, no rank asks any server."""
        heard = self._gather((self._news, self._resampled))
        news = {url: why for theirs, _ in reversed(heard) for url, why in theirs.items()}
        self._drop({s: news[s.url] for s in self.servers if s.url in news})
        self._known, self._news = [*self._known, *news.values()], {}
        self._resampled_by_others = sum(number for _, number in heard) - self._resampled

    def _take_back(self) -> None:
        """Use servers again that were given by URL, lost and started again; they have not our weights yet."""
        with ThreadPoolExecutor(max(1, len(self._away))) as pool:
            back = [
                s for s, is_back in zip(self._away, pool.map(RemoteServer.is_back, self._away), strict=True) if is_back
            ]
        self._away = [s for s in self._away if s not in back]
        self.servers += back

    def _send(self, weights: Counted, label: str) -> None:
        self._check_left()
        most = self.config.bucket_mib * 2**20
        if self.config.transfer == "gloo":
            self._each(lambda server: server.begin())
            for bucket in buckets(weights, most):
                ready = [(name, t.to("cpu").contiguous()) for name, t in bucket]
                self._each(lambda server, ready=ready: server.send(ready))  # type: ignore[misc]
            self._each(lambda server: server.finish(label))
            return
        from safetensors.torch import save_file

        with tempfile.TemporaryDirectory(dir=self._folder, prefix="weights-") as folder:
            for number, bucket in enumerate(buckets(weights, most)):
                tensors: dict[str, Tensor] = {name: t.to("cpu").contiguous() for name, t in bucket}
                save_file(tensors, str(Path(folder) / f"{number:05}.safetensors"))
            where = str(Path(folder).absolute())
            self._each(lambda server: server.take_folder(where, label))

    def _work_off(
        self, open_jobs: deque[Job], requests: Sequence[Request], sampling: Sampling, made: dict[Job, Completion]
    ) -> None:
        """Answer the jobs with the servers that there are; those of a server that fails are open again."""
        self._check_left()
        label = self._label(self._version)
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
                    made[i, j] = server.generate(requests[i].prompt_ids, options, label, sampling)
                except ServerLost as exc:
                    open_jobs.append((i, j))
                    self._resampled += 1
                    failures.setdefault(server, str(exc))
                except EngineError as exc:
                    refused.append(exc)

        ranks = 1 if self._peers is None else self._peers.size
        most = min(-(-self.config.concurrency // ranks), len(open_jobs))
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
            except (ServerLost, EngineError) as exc:  # one that refuses weights was not started for them
                failures[server] = str(exc)

        with ThreadPoolExecutor(max(1, len(self.servers))) as pool, torch.no_grad():
            list(pool.map(one, self.servers))
        self._drop(failures)
        self._check_left()

    def _check_left(self) -> None:
        if self.servers:
            return
        remedy = "start them again, or others that rollout.vllm.urls then names (docs/engines.md)"
        if not self.config.urls:
            remedy = f"see why in {self._logs}/vllm-*.log"
        raise EngineError(
            f"no server of vLLM is left of {self._num}; {remedy}, then start the same command again: it goes on "
            "from the last checkpoint. Lost:\n  " + "\n  ".join(self.lost)
        )

    def _drop(self, failures: dict[RemoteServer, str]) -> None:
        """Ask them no more, and end those that this run started: a hung one would keep its memory."""
        for server, why in failures.items():
            self.servers.remove(server)
            self._news[server.url] = why
            self._leaving.append(server.close())
            if self.config.urls and self._is_first:
                self._away.append(server)
            for process in [p for p in self._processes if p.url == server.url]:
                process.close()
                self._processes.remove(process)

    def _end_processes(self) -> None:
        for process in self._processes:
            process.close()
        self._processes = []
        self._model.cleanup()
