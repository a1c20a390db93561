"""The gateway's APIs: requests read, answers written, refusals that name the field, retries, streams and keys."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.gateway import chat, messages, responses, server
from verizero.pipeline.environments.gateway.api import Answer, Refused, TurnRequest
from verizero.pipeline.environments.gateway.exchange import Exchange
from verizero.pipeline.environments.gateway.server import Gateway
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Call, Message

ADD = ToolSchema("add", "Return a + b.", {"type": "object", "properties": {"a": {"type": "integer"}}})
CALLS = (Call("0-0", "add", {"a": 27, "b": 58}),)
SAID = Message("assistant", "let me add", CALLS)
TALK = (
    Message("system", "be brief"),
    Message("user", "27+58?"),
    SAID,
    Message("tool", "85", answers="0-0"),
    Message("user", "sure?"),
)
"""One conversation, as each API writes it below."""
BODIES: dict[str, tuple[ModuleType, dict[str, Any]]] = {
    "chat/completions": (
        chat,
        {
            "model": "m",
            "messages": [
                {"role": "developer", "content": "be brief"},
                {"role": "user", "content": [{"type": "text", "text": "27+58"}, {"type": "text", "text": "?"}]},
                {
                    "role": "assistant",
                    "content": "let me add",
                    "tool_calls": [
                        {"id": "0-0", "type": "function", "function": {"name": "add", "arguments": '{"b":58, "a":27}'}}
                    ],
                },
                {"role": "tool", "tool_call_id": "0-0", "content": "85"},
                {"role": "user", "content": "sure?"},
            ],
            "tools": [
                {
                    "type": "function",
                    "function": {"name": "add", "description": ADD.description, "parameters": ADD.parameters},
                }
            ],
            "temperature": 0.2,
        },
    ),
    "messages": (
        messages,
        {
            "model": "m",
            "max_tokens": 9,
            "system": [{"type": "text", "text": "be brief"}],
            "messages": [
                {"role": "user", "content": "27+58?"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "x"},
                        {"type": "text", "text": "let me add"},
                        {"type": "tool_use", "id": "0-0", "name": "add", "input": {"a": 27, "b": 58}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "0-0", "content": [{"type": "text", "text": "85"}]},
                        {"type": "text", "text": "sure?"},
                    ],
                },
            ],
            "tools": [{"name": "add", "description": ADD.description, "input_schema": ADD.parameters}],
        },
    ),
    "responses": (
        responses,
        {
            "model": "m",
            "instructions": "be brief",
            "input": [
                {"role": "user", "content": "27+58?"},
                {"type": "reasoning", "id": "r", "summary": []},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "let me add"}]},
                {"type": "function_call", "call_id": "0-0", "name": "add", "arguments": '{"a": 27, "b": 58}'},
                {"type": "function_call_output", "call_id": "0-0", "output": "85"},
                {"role": "user", "content": [{"type": "input_text", "text": "sure?"}]},
            ],
            "tools": [
                {"type": "function", "name": "add", "description": ADD.description, "parameters": ADD.parameters}
            ],
            "max_output_tokens": 5,
        },
    ),
}


@pytest.mark.parametrize("path", BODIES)
def test_each_wire_reads_the_same_conversation(path: str) -> None:
    api, body = BODIES[path]
    request: TurnRequest = api.read(body)
    assert request.messages == TALK
    assert request.tools == (ADD,)
    names = {
        "chat/completions": {"temperature": 0.2},
        "messages": {"max_tokens": 9},
        "responses": {"max_output_tokens": 5},
    }
    assert request.decided == names[path]


@pytest.mark.parametrize(
    ("path", "change", "names"),
    [
        ("chat/completions", {"n": 2}, "n=2"),
        ("chat/completions", {"logit_bias": {"1": 5}}, "logit_bias"),
        ("chat/completions", {"presence_penalty": 0.5}, "presence_penalty=0.5"),
        ("chat/completions", {"tool_choice": "required"}, "tool_choice"),
        ("chat/completions", {"response_format": {"type": "json_object"}}, "response_format"),
        ("chat/completions", {"messages": []}, "messages is empty"),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
        ("chat/completions", {"messages": [{"role": "judge", "content": "x"}]}, "judge"),
        ("chat/completions", {"messages": "hi"}, "messages must be a list"),
        ("chat/completions", {"model": None}, "model"),
        ("messages", {"tool_choice": {"type": "any"}}, "tool_choice"),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "image"),
        ("messages", {"betas": ["x"]}, "betas"),
        ("responses", {"background": True}, "background"),
        ("responses", {"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ("responses", {"tools": [{"type": "web_search"}]}, "web_search"),
        ("responses", {"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(path: str, change: dict[str, Any], names: str) -> None:
    api, body = BODIES[path]
    with pytest.raises(Refused, match=names) as caught:
        api.read(body | change)
    assert caught.value.status == 400


ANSWERS = [
    Answer("1", SAID, 12, 5, False),
    Answer("2", Message("assistant", "85"), 3, 2, False),
    Answer("3", Message("assistant", ""), 3, 1, True),
    Answer("4", Message("assistant", "", CALLS), 3, 4, False),
]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda a: a.id)
@pytest.mark.parametrize("path", BODIES)
def test_what_is_written_reads_as_what_the_policy_said(path: str, answer: Answer) -> None:
    """An agent puts the answer into its next request: that must be the same message."""
    api, body = BODIES[path]
    request = api.read(body)
    for written in (api.write(request, answer), _assembled(api, request, answer)):
        echo: list[Any] = (
            [written["choices"][0]["message"]]
            if api is chat
            else [{"role": "assistant", "content": written["content"]}]
            if api is messages
            else written["output"]
        )
        key = "input" if api is responses else "messages"
        again = api.read(body | {key: [*body[key], *echo]})
        assert again.messages == (*TALK, answer.message)


def _assembled(api: ModuleType, request: TurnRequest, answer: Answer) -> dict[str, Any]:
    """Return the answer, put together from the events of a stream as its users do."""
    events = list(api.events(request, answer))
    if api is responses:
        done = [data for _, data in events if data["type"] in ("response.completed", "response.incomplete")]
        assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
        return dict(done[0]["response"])
    if api is messages:
        parts: list[dict[str, Any]] = []
        for name, data in events:
            assert name == data["type"]
            if name == "content_block_start":
                parts.append(dict(data["content_block"]))
            elif name == "content_block_delta" and data["delta"]["type"] == "text_delta":
                parts[-1]["text"] += data["delta"]["text"]
            elif name == "content_block_delta":
                parts[-1]["input"] = json.loads(data["delta"]["partial_json"])
        return {"content": parts}
    content, calls = "", []
    for _, data in events[:-1]:
        delta = data["choices"][0]["delta"]
        content += delta.get("content") or ""
        calls += delta.get("tool_calls", [])
    assert events[-1] == (None, "[DONE]")
    return {"choices": [{"message": {"role": "assistant", "content": content, "tool_calls": calls}}]}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    gateway = Gateway()
    yield gateway
    gateway.close()


class Client:
    """A plain client of one exchange, over one connection."""

    def __init__(self, exchange: Exchange, key: str | None = None) -> None:
        host = exchange.url.split("/")[2]
        self.connection = http.client.HTTPConnection(host, timeout=30)
        self.path, self.key = f"/e/{exchange.number}/v1/", exchange.key if key is None else key

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.connection.request("POST", self.path + path, data, {"Authorization": f"Bearer {self.key}"} | headers)
        answer = self.connection.getresponse()
        text = answer.read()
        is_json = answer.headers["Content-Type"] == "application/json"
        return answer.status, json.loads(text) if is_json else text.decode()


def answered(exchange: Exchange, *answers: Answer, wait_s: float = 0.0) -> threading.Thread:
    """Give these answers to the requests that come, in a thread."""

    def give() -> None:
        for answer in answers:
            pending = exchange.requests.get(timeout=30)
            threading.Event().wait(wait_s)
            exchange.answer(pending, answer)

    thread = threading.Thread(target=give)
    thread.start()
    return thread


def test_keys_open_their_own_episode_only(gateway: Gateway) -> None:
    one, two = gateway.open(), gateway.open()
    body = BODIES["chat/completions"][1]
    for key in ("", "x" * 32, two.key, "é"):
        status, answer = Client(one, key).post("chat/completions", body) if key.isascii() else (401, {"error": {}})
        assert (status, list(answer)) == (401, ["error"])
    assert one.requests.empty()
    gateway.forget(one)
    assert Client(one).post("chat/completions", body)[0] == 401
    gateway.forget(two)


def test_bad_requests_leave_the_connection_usable(gateway: Gateway) -> None:
    exchange = gateway.open()
    client = Client(exchange)
    assert client.post("chat/completions", b"{no")[0] == 400
    assert client.post("chat/completions", b"[1]")[0] == 400
    assert client.post("nowhere", {})[0] == 404
    assert client.post("messages", {"model": "m"})[1]["type"] == "error"
    giving = answered(exchange, ANSWERS[1])
    status, answer = client.post("chat/completions", BODIES["chat/completions"][1])
    giving.join()
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "85")
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    gateway.forget(exchange)


def test_the_size_of_a_prompt_is_told_and_is_no_turn(gateway: Gateway) -> None:
    exchange = gateway.open()
    seen: list[Any] = []

    def count(messages: Any, tools: Any) -> int:
        seen.append((messages, tools))
        if len(seen) > 1:
            raise DataError("the template refuses it")
        return 17

    def give() -> None:
        for how in (count, count, None):
            pending = exchange.requests.get(timeout=30)
            assert pending.only_counts
            exchange.answer_count(pending, how)

    giving = threading.Thread(target=give)
    giving.start()
    client, body = Client(exchange), BODIES["messages"][1]
    assert client.post("messages/count_tokens", body) == (200, {"input_tokens": 17})
    assert seen == [(TALK, (ADD,))]
    refused = client.post("messages/count_tokens", body)
    assert (refused[0], refused[1]["error"]["message"]) == (400, "the template refuses it")
    assert client.post("messages/count_tokens", body)[0] == 501
    giving.join()
    assert client.post("messages/count_tokens", {"model": "m", "messages": []})[0] == 400
    assert exchange.requests.empty()
    assert not exchange.counts
    exchange.seal("a limit was reached")
    status, answer = client.post("messages/count_tokens", body)
    assert (status, answer["type"]) == (409, "error")
    gateway.forget(exchange)


def test_a_retry_gets_the_first_answer_and_an_equal_request_a_new_one(gateway: Gateway) -> None:
    exchange, body = gateway.open(), BODIES["messages"][1]
    giving = answered(exchange, ANSWERS[1], ANSWERS[0])
    first = Client(exchange).post("messages", body)
    again = Client(exchange).post("messages", body, **{"x-stainless-retry-count": "1"})
    other = Client(exchange).post("messages", body)
    giving.join()
    assert first == again != other
    assert exchange.counts["gateway/requests"] == 2
    assert exchange.counts["gateway/retries"] == 1
    gateway.forget(exchange)


def test_a_stream_is_kept_open_while_it_waits(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE_S", 0.05)
    exchange = gateway.open()
    giving = answered(exchange, ANSWERS[1], wait_s=0.2)
    status, text = Client(exchange).post("chat/completions", BODIES["chat/completions"][1] | {"stream": True})
    giving.join()
    assert status == 200
    assert text.count(": the policy is writing\n\n") >= 2
    assert text.endswith("data: [DONE]\n\n")
    gateway.forget(exchange)


def test_the_end_refuses_what_waits_and_what_comes(gateway: Gateway) -> None:
    exchange, seen = gateway.open(), []
    body = BODIES["chat/completions"][1]
    waiting = threading.Thread(target=lambda: seen.append(Client(exchange).post("chat/completions", body)))
    waiting.start()
    exchange.requests.get(timeout=30)
    exchange.seal("a limit was reached")
    waiting.join()
    assert seen[0][0] == 400
    assert "a limit was reached" in seen[0][1]["error"]["message"]
    assert Client(exchange).post("chat/completions", body)[0] == 409
    gateway.forget(exchange)


def test_a_stop_text_cuts_the_message_and_not_the_row(gateway: Gateway) -> None:
    """The agent's copy of the cut answer is read as the policy wrote it."""
    exchange, whole = gateway.open(), Message("assistant", "look\nObservation: made up")
    giving = answered(exchange, Answer("1", whole, 3, 9, False))
    client, body = Client(exchange), BODIES["chat/completions"][1] | {"stop": ["\nObservation:"]}
    _, answer = client.post("chat/completions", body)
    giving.join()
    message = answer["choices"][0]["message"]
    assert message["content"] == "look"
    pending = exchange.submit(
        "chat/completions", {}, chat.read(body | {"messages": [*body["messages"], message]}), False
    )
    assert pending.request.messages == (*TALK, whole)
    gateway.forget(exchange)


def test_a_response_continues_an_earlier_one_by_its_id(gateway: Gateway) -> None:
    exchange, body = gateway.open(), BODIES["responses"][1]
    giving = answered(exchange, ANSWERS[0])
    _, first = Client(exchange).post("responses", body)
    giving.join()
    more = {"model": "m", "input": [{"type": "function_call_output", "call_id": "0-0", "output": "85"}]}
    pending = exchange.submit("responses", more | {"previous_response_id": first["id"]}, responses.read(more), False)
    assert pending.request.messages == (*TALK, SAID, Message("tool", "85", answers="0-0"))
    with pytest.raises(Refused, match="previous_response_id='resp_9'"):
        exchange.submit("responses", more | {"previous_response_id": "resp_9"}, responses.read(more), False)
    gateway.forget(exchange)
