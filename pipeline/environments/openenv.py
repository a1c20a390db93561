"""An environment of the OpenEnv protocol, on a server that runs already: one WebSocket session is one episode.

A message of the policy becomes an action in the server's schema: its text, if an action has one plain field, else a
call of the tool `act`. An action that is invalid for the server is answered with the reason. An error of the server, a
lost connection and a full server are failures of the infrastructure. Needs the package websockets.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
import urllib.request
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from verizero.pipeline.environments.base import (
    EnvironmentParams,
    Reply,
    RewardRange,
    Start,
    ToolSchema,
    ToolUse,
    answer_of,
    verdict_of,
)
from verizero.pipeline.errors import ConfigError, EnvironmentFailed
from verizero.pipeline.types import Message, Prompt

EXAMPLE = Prompt("openenv/1", "", "environment", None)
TOOL = "act"
PROTOCOL_FIELDS = ("metadata",)
"""Fields of actions and observations that belong to the protocol."""
PLAIN: Mapping[str, type] = {"string": str, "integer": int, "number": float}
MAX_SIZE = 64 << 20
INVALID = "VALIDATION_ERROR"
FULL = "CAPACITY_REACHED"
POLL_S = 0.2
CLOSE_S = 2.0


class Params(EnvironmentParams):
    """The server, and the verdict that its rewards make."""

    url: str = Field(description="http://host:port of the server")
    reset: dict[str, Any] = Field({}, description="further arguments of the server's reset")
    deterministic: bool = Field(True, description="false: the server cannot repeat itself with equal seeds")
    score: Literal["last", "sum", "none"] = Field(
        "last", description="of the rewards, which is the verdict; none: the row's verifier grades the last message"
    )
    reward_range: RewardRange = Field((0.0, 1.0), description="lowest and highest of that reward")
    step_s: float = Field(60, gt=0, description="seconds for an answer of the server")
    wait_s: float = Field(10, ge=0, description="seconds to wait for a session of a full server")

    @field_validator("url")
    @classmethod
    def _address(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("expected http://host:port or https://host")
        return value.rstrip("/")


class WrongAction(Exception):
    """The policy's message is no action. The text of this exception is shown to the policy."""


class OpenEnv:
    """One session of the server."""

    def __init__(self, params: Params, prompt: Prompt, seed: int) -> None:
        """`seed` is the task's."""
        self.params, self.prompt = params, prompt
        self.deterministic = params.deterministic
        self._reset = {**params.reset, "seed": seed % 2**31}
        self._socket: Any = None
        self._schema: dict[str, Any] = {}
        self._rewards: list[float] = []

    def start(self) -> Start:
        """Open a session. Show the row's question, then the observation of the server's reset."""
        self._schema = schema_of(self.params)
        until = time.monotonic() + self.params.wait_s
        while True:
            self._socket = _connect(self.params)
            data = self._ask("reset", self._reset)
            if data.get("code") != FULL:
                break
            self.close()
            if time.monotonic() >= until:
                raise EnvironmentFailed(
                    f"{self.params.url} has no free session: {data.get('message')}; start it with more of them "
                    "(max_concurrent_envs), or lower episodes.max_open"
                )
            time.sleep(POLL_S)
        self._refuse_errors(data)
        parts = [self.prompt.asked, self._text(data)]
        messages: tuple[Message, ...] = (Message("user", "\n".join(p for p in parts if p)),)
        if self.prompt.system is not None:
            messages = (Message("system", self.prompt.system), *messages)
        return Start(messages, () if self._plain_field() else (self._tool(),))

    def step(self, message: Message) -> Reply:
        """Send an action."""
        try:
            action = self._action(message)
        except WrongAction as wrong:
            return self._reply(message, str(wrong), wrong=True)
        data = self._ask("step", action)
        if data.get("code") == INVALID:
            errors = data.get("errors") or [{"loc": (), "msg": data.get("message")}]
            words = "; ".join(f"{'.'.join(map(str, e.get('loc', ())))}: {e.get('msg')}" for e in errors)
            return self._reply(message, f"invalid action: {words}", wrong=True)
        self._refuse_errors(data)
        if (reward := data.get("reward")) is not None:
            if not isinstance(reward, (int, float)):  # true and false are rewards too
                raise EnvironmentFailed(f"{self.params.url} gives the reward {reward!r:.80}, which is no number")
            reward = float(reward)
            self._rewards.append(reward)
        if not data.get("done"):
            return self._reply(message, self._text(data), reward=reward)
        return Reply(done=True, reward=reward, outcome=self._outcome(), uses=self._uses(message))

    def close(self) -> None:
        """End the session."""
        connection, self._socket = self._socket, None
        if connection is not None:
            with contextlib.suppress(Exception):  # the server may be gone, or have ended the session
                connection.send(json.dumps({"type": "close"}))
                # The server closes the connection once the session is free for another episode.
                connection.recv(timeout=CLOSE_S)
            connection.close()

    def _outcome(self) -> Any:
        if self.params.score == "none" or not self._rewards:
            return None
        reward = self._rewards[-1] if self.params.score == "last" else sum(self._rewards)
        return verdict_of(reward, self.params.reward_range)

    def _ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the data of the server's answer. Raises: EnvironmentFailed."""
        from websockets.exceptions import ConnectionClosed, WebSocketException

        url = self.params.url
        try:
            # A full server sends its error and closes before any request; the error can still be read.
            with contextlib.suppress(ConnectionClosed):
                self._socket.send(json.dumps({"type": kind, "data": data}))
            answer = json.loads(self._socket.recv(timeout=self.params.step_s))
        except TimeoutError as exc:
            raise EnvironmentFailed(f"{url} took more than {self.params.step_s:g} s to {kind}; raise step_s") from exc
        except (OSError, WebSocketException, ValueError) as exc:
            raise EnvironmentFailed(f"{url} is lost: {type(exc).__name__}: {exc}") from exc
        content = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(content, dict) or answer.get("type") not in ("observation", "error"):
            raise EnvironmentFailed(f"{url} answers {kind} with {str(answer)[:80]}, which is no observation")
        return content

    def _refuse_errors(self, data: Mapping[str, Any]) -> None:
        if "code" in data:
            raise EnvironmentFailed(f"{self.params.url} fails: {data['code']}: {str(data.get('message'))[:200]}")

    def _text(self, data: Mapping[str, Any]) -> str:
        shown = {k: v for k, v in (data.get("observation") or {}).items() if k not in PROTOCOL_FIELDS}
        texts = [v for v in shown.values() if isinstance(v, str)]
        return texts[0] if len(shown) == len(texts) == 1 else json.dumps(shown, sort_keys=True, ensure_ascii=False)

    def _plain_field(self) -> tuple[str, str] | None:
        """Return name and type of the one field of an action; None if it has several, or one that is not plain."""
        fields = {k: v for k, v in (self._schema.get("properties") or {}).items() if k not in PROTOCOL_FIELDS}
        return next(((k, v["type"]) for k, v in fields.items() if len(fields) == 1 and v.get("type") in PLAIN), None)

    def _tool(self) -> ToolSchema:
        properties = self._schema.get("properties") or {}
        schema = {**self._schema, "properties": {k: v for k, v in properties.items() if k not in PROTOCOL_FIELDS}}
        return ToolSchema(TOOL, str(self._schema.get("description") or "Take an action."), schema)

    def _action(self, message: Message) -> dict[str, Any]:
        """Return a message as an action. Raises: WrongAction."""
        field = self._plain_field()
        if field is None:
            if len(message.calls) != 1 or message.calls[0].name != TOOL:
                raise WrongAction(f"call the tool {TOOL} once")
            return dict(message.calls[0].arguments)
        (name, kind), text = field, answer_of(message)
        try:
            return {name: PLAIN[kind](text)}
        except ValueError as exc:
            raise WrongAction(f"not of type {kind}: {text[:80]!r}") from exc

    def _uses(self, message: Message, wrong: bool = False) -> tuple[ToolUse, ...]:
        return (ToolUse(TOOL, wrong),) if wrong or message.calls else ()

    def _reply(self, message: Message, text: str, reward: float | None = None, wrong: bool = False) -> Reply:
        answers = tuple(Message("tool", text, answers=call.id, name=call.name) for call in message.calls)
        return Reply(answers or (Message("user", text),), reward=reward, uses=self._uses(message, wrong))


def environment(params: Params, prompt: Prompt, task_seed: int, sample_seed: int) -> OpenEnv:
    """Return a session that `start` opens. Raises: ConfigError without the package websockets."""
    try:
        import websockets  # noqa: F401
    except ImportError as exc:
        raise ConfigError(f"openenv needs the package websockets ({exc}); run: pip install 'websockets>=15'") from exc
    return OpenEnv(params, prompt, task_seed)


def _connect(params: Params) -> Any:
    """Return a connection to the server. Raises: EnvironmentFailed."""
    from websockets.exceptions import WebSocketException
    from websockets.sync.client import connect

    address = "ws" + params.url.removeprefix("http") + "/ws"
    try:
        # Without the proxies that environment variables name: the server may be on this machine.
        return connect(address, open_timeout=params.step_s, close_timeout=CLOSE_S, max_size=MAX_SIZE, proxy=None)
    except (OSError, WebSocketException) as exc:
        raise EnvironmentFailed(f"{address} does not answer: {type(exc).__name__}: {exc}") from exc


def schema_of(params: Params) -> dict[str, Any]:
    """Return the JSON schema of the server's actions. Raises: EnvironmentFailed."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{params.url}/schema", timeout=params.step_s) as answer:
            schema: dict[str, Any] = json.load(answer)["action"]
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as exc:
        raise EnvironmentFailed(f"{params.url}/schema has no schema: {type(exc).__name__}: {exc}") from exc
    return schema
