"""One server of vLLM as its routes show it: token ids out, token ids in, weights by a group of its own."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar
from urllib.parse import urlsplit

from torch import Tensor

from pipeline.errors import EngineError
from pipeline.rollout.engine import Completion, Sampling
from pipeline.rollout.vllm_engine import check_spans, finish_reason
from pipeline.rollout.vllm_records import kept_tokens, routing, unpacked
from pipeline.rollout.weight_group import begin_broadcast, group, meeting

POLL_S = 0.0005
BACK_S = 5.0
"""How long a publish waits for word of servers that were lost."""
REFUSALS = (400, 413, 422)
"""What was asked is wrong, and would be elsewhere. Any other error is the server's: it failed, or has no such route."""
T = TypeVar("T")


class ServerLost(Exception):
    """The server does not answer, or answers what no working one would. Its work goes elsewhere."""


class RemoteServer:
    """A server at `url`. Any number of threads may ask it at once; each keeps a connection of its own."""

    def __init__(self, url: str, timeout_s: float, health_timeout_s: float) -> None:
        """`timeout_s`: for one answer. One that is waited for `health_timeout_s` is asked for its health meanwhile."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise EngineError(f"rollout.vllm.urls: {url!r} is no address of a server; write http://host:port")
        self.url, self.timeout_s, self.health_timeout_s = url.rstrip("/"), timeout_s, health_timeout_s
        self._address = (parts.hostname, parts.port or 80)
        self._threads = threading.local()
        self._group: Any = None
        self._said: str | None = None
        """The version that it said last; one that then says another was started again, or serves somebody else too."""

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer's JSON, None for an empty one.

        Raises: ServerLost where it does not answer or fails; EngineError where it refuses what was asked.
        """
        data = None if body is None else json.dumps(body).encode()
        try:
            status, said = self._exchange(method, path, data)
        except (OSError, http.client.HTTPException) as exc:
            raise ServerLost(f"{self.url}{path}: {type(exc).__name__}: {exc}") from exc
        if status >= 400 and status not in REFUSALS:
            raise ServerLost(f"{self.url}{path}: status {status}: {said[:300].decode(errors='replace')}")
        if status >= 400:
            raise EngineError(f"{self.url}{path} refused: status {status}: {said[:500].decode(errors='replace')}")
        try:
            return json.loads(said) if said else None
        except ValueError as exc:
            raise ServerLost(f"{self.url}{path} says no JSON: {said[:100]!r}; is it vLLM 0.32?") from exc

    def ask_for(self, name: str, method: str, path: str) -> Any:
        """One field of the answer. Raises: as `ask`, and ServerLost where it has no such field."""
        answer = self.ask(method, path)
        if not isinstance(answer, dict) or name not in answer:
            raise ServerLost(f"{self.url}{path} says {str(answer)[:100]!r}, without {name!r}; is it vLLM 0.32?")
        return answer[name]

    def generate(
        self, prompt_ids: Sequence[int], options: Mapping[str, Any], version: str, sampling: Sampling
    ) -> Completion:
        """One response. Raises: as `ask`, and ServerLost for one drawn by weights of another version."""
        body = {"token_ids": list(prompt_ids), "sampling_params": dict(options)}
        answer = self.ask("POST", "/inference/v1/generate", body)
        (choice,) = answer["choices"]
        logprobs = tuple(float(c["logprob"]) for c in (choice["logprobs"] or {}).get("content") or ())
        drawn = tuple(choice["token_ids"])
        if len(logprobs) != len(drawn):
            raise EngineError(f"{self.url} gave {len(logprobs)} log-probs for {len(drawn)} tokens; is it vLLM 0.32?")
        spans = [(s["version"], s["start"], s["end"]) for s in choice.get("weight_versions") or ()]
        try:
            check_spans(spans, version)
            reason = finish_reason(choice["finish_reason"])
        except EngineError as exc:
            raise ServerLost(f"{self.url}: {exc}") from exc
        kept = kept_tokens(choice.get("sampling_mask"), drawn, sampling)
        experts = unpacked(choice.get("routed_experts"))
        return Completion(drawn, logprobs, reason, kept, routing(experts, len(prompt_ids), len(drawn), sampling))

    @property
    def version(self) -> str:
        """The version of its weights, as it says."""
        self._said = str(self.ask_for("weight_version", "GET", "/weight_info"))
        return self._said

    def is_back(self) -> bool:
        """It answers, and says another version than when it was last heard of: somebody started it again."""
        connection, before = http.client.HTTPConnection(*self._address, timeout=BACK_S), self._said
        try:
            connection.request("GET", "/weight_info")
            self._said = str(json.loads(connection.getresponse().read())["weight_version"])
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
            return False
        finally:
            connection.close()
        return self._said != before

    def begin(self) -> None:
        """Weights are about to come by gloo. Its workers and this process find each other, unless they have before."""
        before = self._said
        if self._group is not None and self.version != before:
            self.close()
        if self._group is None:
            self._meet()
        self.ask("POST", "/start_weight_update")

    def send(self, bucket: Sequence[tuple[str, Tensor]]) -> None:
        """One piece, on the CPU."""
        info = {
            "names": [name for name, _ in bucket],
            "dtypes": [str(t.dtype).removeprefix("torch.") for _, t in bucket],
            "shapes": [list(t.shape) for _, t in bucket],
        }
        taken = aside(lambda: self.ask("POST", "/update_weights", {"update_info": info}))
        under_way = [begin_broadcast(self._group, tensor) for _, tensor in bucket]
        try:
            while not all(work.is_completed() for work in under_way):
                if taken.done():
                    taken.result()  # a server that failed takes no more: waiting for it would take the whole timeout
                time.sleep(POLL_S)
            for work in under_way:
                work.wait()
        except RuntimeError as exc:
            raise ServerLost(f"{self.url}: sending weights: {exc}") from exc
        taken.result()

    def finish(self, version: str) -> None:
        """The last piece was sent; the weights are `version`."""
        self.ask("POST", "/finish_weight_update", {"weight_version": version})
        self.settle(version)

    def take_folder(self, folder: str, version: str) -> None:
        """Weights from a folder that the server sees; they are `version`."""
        self.ask("POST", "/collective_rpc", {"method": "load_folder", "args": [folder]})
        self.ask("POST", "/update_weight_version", {"new_version": version})
        self.settle(version)

    def settle(self, version: str) -> None:
        """Nothing of the old weights is used any more. Raises: ServerLost where the server does not say so."""
        if not self.ask_for("success", "POST", "/reset_prefix_cache"):
            raise ServerLost(f"{self.url} kept its prefix cache, which is of older weights")
        if (said := self.version) != version:
            raise ServerLost(f"{self.url} has weights of version {said} after version {version} was published")

    def close(self) -> Future[None]:
        """Leave the group; the server stays. A send to one that hangs ends when it may: wait for it or do not."""
        held, self._group = [self._group], None
        return aside(held.clear)

    def _meet(self) -> None:
        self.ask("POST", "/collective_rpc", {"method": "forget_update"})
        world = 1 + int(self.ask_for("world_size", "GET", "/get_world_size"))
        store = meeting(here := _address_towards(self._address), 0, world, self.timeout_s, True)
        info = {"host": here, "port": store.port, "world_size": world, "timeout_s": self.timeout_s}
        joined = aside(lambda: self.ask("POST", "/init_weight_transfer_engine", {"init_info": info}))
        met = aside(lambda: group(store, 0, world, self.timeout_s))
        try:
            while not met.done():
                if joined.done():
                    joined.result()  # a server that refuses never comes
                time.sleep(POLL_S)
            self._group = met.result()
        except RuntimeError as exc:
            raise ServerLost(f"{self.url}: meeting its workers for weights: {exc}") from exc
        joined.result()

    def _exchange(self, method: str, path: str, data: bytes | None) -> tuple[int, bytes]:
        """Status and body. A kept connection may have been closed meanwhile: then once more, on a new one."""
        kept: http.client.HTTPConnection | None = getattr(self._threads, "connection", None)
        self._threads.connection = None
        for connection in ([] if kept is None else [kept]) + [self._connect()]:
            try:
                connection.request(method, path, data, {"Content-Type": "application/json"})
                self._await(connection)
                reply = connection.getresponse()
            except (ConnectionError, http.client.RemoteDisconnected, http.client.CannotSendRequest):
                connection.close()
                if connection is not kept:
                    raise
                continue
            said = reply.read()
            self._threads.connection = connection
            return reply.status, said
        raise AssertionError("the last connection is never the kept one")

    def _await(self, connection: http.client.HTTPConnection) -> None:
        """Return when the answer begins. Raises: TimeoutError where the server is not healthy, or takes too long."""
        until = time.monotonic() + self.timeout_s
        while True:
            try:
                connection.sock.recv(1, socket.MSG_PEEK)
                return
            except TimeoutError:
                if time.monotonic() > until:
                    raise TimeoutError(f"no answer within rollout.vllm.request_timeout_s={self.timeout_s:g}") from None
            self._check_health()

    def _check_health(self) -> None:
        connection = self._connect()
        try:
            connection.request("GET", "/health")
            if (status := connection.getresponse().status) != 200:
                raise http.client.HTTPException(f"no answer, and /health says status {status}")
        except TimeoutError:
            waited = f"rollout.vllm.health_timeout_s={self.health_timeout_s:g}"
            raise TimeoutError(f"no answer, and none to /health within {waited}") from None
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        """A connection that waits for each piece as long as for health."""
        return http.client.HTTPConnection(*self._address, timeout=min(self.health_timeout_s, self.timeout_s))


def aside(work: Callable[[], T]) -> Future[T]:
    """The result of what a thread of its own does; one that hangs does not hold up the end of the process."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as exc:
            result.set_exception(exc)

    threading.Thread(target=run, daemon=True).start()
    return result


def _address_towards(address: tuple[str, int]) -> str:
    """Our own address on the way there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        host: str = probe.getsockname()[0]
        return host
