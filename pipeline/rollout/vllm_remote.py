"""A client of one vLLM server: prompts and responses as token ids, weights over a process group of its own."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from torch import Tensor

from verizero.pipeline.errors import EngineError
from verizero.pipeline.listening import address_towards
from verizero.pipeline.rollout.engine import Completion, Sampling
from verizero.pipeline.rollout.vllm_arguments import check_spans, finish_reason
from verizero.pipeline.rollout.vllm_records import kept_tokens, routing, unpacked

POLL_S = 0.0005
BACK_S = 5.0
"""Seconds in which a lost server must answer to be used again."""
REFUSALS = (400, 413, 422)
"""Statuses for a request that any server would refuse. Other errors mean that this server fails or lacks the route."""
T = TypeVar("T")


class ServerLost(Exception):
    """The server does not answer, or gives an answer that no working server would; others take over its work."""


class Channel(Protocol):
    """The connection on which weights go to a server's workers."""

    def send(self, bucket: Sequence[tuple[str, Tensor]]) -> None:
        """Send one piece of the weights. Raises: ServerLost, EngineError."""
        ...

    def leave(self) -> None:
        """End the connection; may take a while."""
        ...


class _ThreadState(threading.local):
    """The connection that a thread keeps between its requests."""

    connection: http.client.HTTPConnection | None = None


class RemoteServer:
    """The server at `url`. Any number of threads may call it at once; each keeps a connection of its own."""

    def __init__(self, url: str, timeout_s: float, health_timeout_s: float, connect: Connect) -> None:
        """Wait `timeout_s` at most for an answer; check the health after every `health_timeout_s` of silence.

        `connect` makes the channel for weights at the first update, and again after a restart of the server.
        """
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise EngineError(f"rollout.vllm.urls: {url!r} is not the address of a server; write http://host:port")
        self.url, self.timeout_s, self.health_timeout_s = url.rstrip("/"), timeout_s, health_timeout_s
        self._address = (parts.hostname, parts.port or 80)
        self._thread = _ThreadState()
        self._connect_weights = connect
        self._channel: Channel | None = None
        self._last_version: str | None = None
        """The version that the server reported last; another one means a restart, or another run."""

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the answer's JSON, None for an empty answer.

        Raises: ServerLost if the server does not answer or fails; EngineError if it refuses the request.
        """
        data = None if body is None else json.dumps(body).encode()
        try:
            status, reply = self._exchange(method, path, data)
        except (OSError, http.client.HTTPException) as exc:
            raise ServerLost(f"{self.url}{path}: {type(exc).__name__}: {exc}") from exc
        # Another server may succeed where this one fails, but not with a request that is wrong itself.
        if status >= 400 and status not in REFUSALS:
            raise ServerLost(f"{self.url}{path}: status {status}: {reply[:300].decode(errors='replace')}")
        if status >= 400:
            raise EngineError(f"{self.url}{path} refused: status {status}: {reply[:500].decode(errors='replace')}")
        try:
            return json.loads(reply) if reply else None
        except ValueError as exc:
            raise ServerLost(f"{self.url}{path} did not answer with JSON: {reply[:100]!r}; is it vLLM 0.32?") from exc

    def ask_for(self, name: str, method: str, path: str) -> Any:
        """Return one field of the answer. Raises: as `ask`, and ServerLost for an answer without that field."""
        answer = self.ask(method, path)
        if not isinstance(answer, dict) or name not in answer:
            raise ServerLost(f"{self.url}{path} answered {str(answer)[:100]!r}, without {name!r}; is it vLLM 0.32?")
        return answer[name]

    def generate(
        self, prompt_ids: Sequence[int], options: Mapping[str, Any], version: str, sampling: Sampling
    ) -> Completion:
        """Return one response. Raises: as `ask`, and ServerLost if weights of another version drew it."""
        body = {"token_ids": list(prompt_ids), "sampling_params": dict(options)}
        answer = self.ask("POST", "/inference/v1/generate", body)
        (choice,) = answer["choices"]
        logprobs = tuple(float(c["logprob"]) for c in (choice["logprobs"] or {}).get("content") or ())
        drawn = tuple(choice["token_ids"])
        if len(logprobs) != len(drawn):
            raise EngineError(f"{self.url} gave {len(logprobs)} log-probs for {len(drawn)} tokens; is it vLLM 0.32?")
        # Weights may change amid a response; each stretch must be of the version asked for.
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
        """The version of its weights, as the server reports it now."""
        self._last_version = str(self.ask_for("weight_version", "GET", "/weight_info"))
        return self._last_version

    def was_restarted(self) -> bool:
        """True if the server answers and reports another version than last time."""
        # A short timeout of its own, as most servers asked here are gone.
        connection, before = http.client.HTTPConnection(*self._address, timeout=BACK_S), self._last_version
        try:
            connection.request("GET", "/weight_info")
            self._last_version = str(json.loads(connection.getresponse().read())["weight_version"])
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
            return False
        finally:
            connection.close()
        return self._last_version != before

    def start_update(self) -> None:
        """Prepare the server for weights; connect with its workers if that was not done."""
        before = self._last_version
        # A server that was restarted since has workers that are not in our group: they must meet again.
        if self._channel is not None and self.version != before:
            self.close()
        if self._channel is None:
            # An update that broke off would make the server refuse to start another one.
            self.ask("POST", "/collective_rpc", {"method": "forget_update"})
            self._channel = self._connect_weights(self)
        self.ask("POST", "/start_weight_update")

    def send(self, bucket: Sequence[tuple[str, Tensor]]) -> None:
        """Send one piece of the weights, by tensors on the device that the channel reads."""
        assert self._channel is not None
        self._channel.send(bucket)

    def finish_update(self, version: str) -> None:
        """End the update and call the weights `version`. Raises: ServerLost if the server does not confirm it."""
        self.ask("POST", "/finish_weight_update", {"weight_version": version})
        self._confirm(version)

    def take_folder(self, folder: str, version: str) -> None:
        """Have the server load the weights in a folder as `version`. Raises: ServerLost if it does not confirm it."""
        self.ask("POST", "/collective_rpc", {"method": "load_folder", "args": [folder]})
        self.ask("POST", "/update_weight_version", {"new_version": version})
        self._confirm(version)

    def _confirm(self, version: str) -> None:
        """Drop cached keys and values of the old weights, and have the server report the new version."""
        if not self.ask_for("success", "POST", "/reset_prefix_cache"):
            raise ServerLost(f"{self.url} kept its prefix cache, which is of older weights")
        if (actual := self.version) != version:
            raise ServerLost(f"{self.url} has weights of version {actual} after version {version} was published")

    def close(self) -> Future[None]:
        """Leave the channel in a thread, and return its future; the server itself keeps running."""
        # Destroying a group waits for its sends, and a send to a server that hangs takes the whole timeout.
        channel, self._channel = self._channel, None
        return in_thread(channel.leave if channel is not None else lambda: None)

    def address_here(self) -> str:
        """Return the address of this machine on the route to the server."""
        return address_towards(*self._address)

    def _exchange(self, method: str, path: str, data: bytes | None) -> tuple[int, bytes]:
        """Return status and body. If the server has closed this thread's old connection, try once more on a new one."""
        # Taken out until the answer is read whole: after an exception no request may find half an answer on it.
        kept, self._thread.connection = self._thread.connection, None
        for connection in ([] if kept is None else [kept]) + [self._connect()]:
            try:
                self._in_time(connection.request, method, path, data, {"Content-Type": "application/json"})
                self._await(connection)
                reply = self._in_time(connection.getresponse)
            except (ConnectionError, http.client.RemoteDisconnected, http.client.CannotSendRequest):
                connection.close()
                # A server closes idle connections without notice. A new connection that breaks means that it fails.
                if connection is not kept:
                    raise
                continue
            body = self._in_time(reply.read)
            self._thread.connection = connection
            return reply.status, body
        raise AssertionError("the last connection is never the kept one")

    def _in_time(self, act: Callable[..., T], *arguments: Any) -> T:
        """Return act(*arguments). Raises: TimeoutError if the server stops in the middle of a request or an answer."""
        try:
            return act(*arguments)
        except TimeoutError:
            waited = f"rollout.vllm.health_timeout_s={self.health_timeout_s:g}"
            raise TimeoutError(f"an exchange broke off: nothing more within {waited}") from None

    def _await(self, connection: http.client.HTTPConnection) -> None:
        """Return when the answer begins. Raises: TimeoutError if the server is not healthy, or takes too long."""
        until = time.monotonic() + self.timeout_s
        while True:
            try:
                connection.sock.recv(1, socket.MSG_PEEK)  # waits for the first byte, and leaves it there
                return
            except TimeoutError:
                if time.monotonic() > until:
                    raise TimeoutError(f"no answer within rollout.vllm.request_timeout_s={self.timeout_s:g}") from None
            self._check_health()

    def _check_health(self) -> None:
        connection = self._connect()
        try:
            connection.request("GET", "/health")
            # A busy server is slow to answer, but /health answers at once; so silence alone is no failure.
            if (status := connection.getresponse().status) != 200:
                raise http.client.HTTPException(f"no answer, and /health returns status {status}")
        except TimeoutError:
            waited = f"rollout.vllm.health_timeout_s={self.health_timeout_s:g}"
            raise TimeoutError(f"no answer, and none to /health within {waited}") from None
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        """Return a connection whose every read waits `health_timeout_s` at most."""
        return http.client.HTTPConnection(*self._address, timeout=min(self.health_timeout_s, self.timeout_s))


Connect = Callable[[RemoteServer], Channel]


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Run `work` in a daemon thread and return its future: if it hangs, the process can still end."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as exc:
            result.set_exception(exc)

    threading.Thread(target=run, daemon=True).start()
    return result
