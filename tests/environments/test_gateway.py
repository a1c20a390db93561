"""The gateway: requests read, answers written, refusals that name the field, retries, streams and keys."""

import http.client
import json
import threading
from typing import Any

import pytest

from tests.processes import PATIENCE_S
from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.environments.gateway import chat, server
from verizero.pipeline.environments.gateway.chat import Answer, Refused, TurnRequest
from verizero.pipeline.environments.gateway.server import Exchange, Gateway
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
"""The conversation of the request below."""
BODY: dict[str, Any] = {
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
    "logit_bias": {},
    "logprobs": False,
}


def test_a_conversation_is_read():
    request = chat.read(BODY)
    assert request.messages == TALK
    assert request.tools == (ADD,)
    assert request.decided == ("temperature",)
    without = json.loads(json.dumps(BODY).replace(json.dumps('{"b":58, "a":27}'), '""'))
    assert chat.read(without).messages[2].calls == (Call("0-0", "add", {}),)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"n": 2}, "n=2"),
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"presence_penalty": 0.5}, "presence_penalty=0.5"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": []}, "messages is empty"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
        ({"messages": [{"role": "judge", "content": "x"}]}, "judge"),
        ({"messages": "hi"}, "messages: Input should be a valid"),
        ({"model": None}, "model"),
        *(({"stream": v}, "stream") for v in ("yes", 1, [])),
        ({"stop": [7]}, "stop"),
        ({"top_k": 3}, "top_k"),
    ],
)
def test_what_is_wrong_or_not_supported_is_refused_by_name(change, names):
    with pytest.raises(Refused, match=names) as caught:
        chat.read(BODY | change)
    assert caught.value.status == 400


ANSWERS = [
    Answer("1", SAID, 12, 5, False),
    Answer("2", Message("assistant", "85"), 3, 2, False),
    Answer("3", Message("assistant", ""), 3, 1, True),
    Answer("4", Message("assistant", "", CALLS), 3, 4, False),
]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda a: a.id)
def test_what_is_written_reads_as_what_the_policy_said(answer):
    """An agent puts the answer into its next request: that must be the same message."""
    request = chat.read(BODY)
    for written in (chat.write(request, answer), _assembled(request, answer)):
        again = chat.read(BODY | {"messages": [*BODY["messages"], written["choices"][0]["message"]]})
        assert again.messages == (*TALK, answer.message)


def _assembled(request: TurnRequest, answer: Answer) -> dict[str, Any]:
    """Return the answer, put together from the events of a stream as its users do."""
    *chunks, last = chat.events(request, answer)
    content, calls = "", []
    for data in chunks:
        delta = data["choices"][0]["delta"]
        content += delta.get("content") or ""
        calls += delta.get("tool_calls", [])
    assert last == "[DONE]"
    return {"choices": [{"message": {"role": "assistant", "content": content, "tool_calls": calls}}]}


@pytest.fixture(scope="module")
def gateway():
    gateway = Gateway()
    yield gateway
    gateway.close()


class Client:
    """A plain client of one exchange, over one connection."""

    def __init__(self, exchange, key=None):
        host = exchange.url.split("/")[2]
        self.connection = http.client.HTTPConnection(host, timeout=PATIENCE_S)
        self.path, self.key = f"/e/{exchange.number}/v1/", exchange.key if key is None else key

    def send(self, path, body, **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.connection.request("POST", self.path + path, data, {"Authorization": f"Bearer {self.key}"} | headers)

    def post(self, path, body, **headers):
        self.send(path, body, **headers)
        answer = self.connection.getresponse()
        text = answer.read()
        is_json = answer.headers["Content-Type"] == "application/json"
        return answer.status, json.loads(text) if is_json else text.decode()


def answered(exchange: Exchange, *answers: Answer) -> threading.Thread:
    """Give these answers to the requests that come, in a thread."""

    def give():
        for answer in answers:
            pending = exchange.requests.get(timeout=PATIENCE_S)
            exchange.answer(pending, answer)

    thread = threading.Thread(target=give)
    thread.start()
    return thread


def test_keys_open_their_own_episode_only(gateway):
    one, two = gateway.open(), gateway.open()
    for key in ("", "x" * 32, two.key, "é"):
        status, answer = Client(one, key).post("chat/completions", BODY) if key.isascii() else (401, {"error": {}})
        assert (status, list(answer)) == (401, ["error"])
    assert one.requests.empty()
    gateway.forget(one)
    assert Client(one).post("chat/completions", BODY)[0] == 401
    gateway.forget(two)


def test_other_clients_are_answered_while_a_request_is_read(gateway, monkeypatch):
    exchange = gateway.open()
    begins, is_answered = threading.Event(), threading.Event()

    def read_slowly(content):
        begins.set()
        assert is_answered.wait(30), "the other client waits for this one"
        return read(content)

    read = chat.read
    monkeypatch.setattr(chat, "read", read_slowly)
    giving = answered(exchange, ANSWERS[1])
    slow = threading.Thread(target=Client(exchange).post, args=("chat/completions", BODY))
    slow.start()
    assert begins.wait(30)
    assert Client(exchange).post("nowhere", {})[0] == 404
    is_answered.set()
    slow.join()
    giving.join()
    gateway.forget(exchange)


def test_a_retry_gets_the_first_answer_and_an_equal_request_a_new_one(gateway):
    exchange = gateway.open()
    giving = answered(exchange, ANSWERS[1], ANSWERS[0])
    first = Client(exchange).post("chat/completions", BODY)
    again = Client(exchange).post("chat/completions", BODY, **{"x-stainless-retry-count": "1"})
    other = Client(exchange).post("chat/completions", BODY)
    giving.join()
    assert first == again != other
    assert exchange.counts["gateway/requests"] == 2
    assert exchange.counts["gateway/retries"] == 1
    gateway.forget(exchange)


def test_a_stream_is_kept_open_while_it_waits(gateway, monkeypatch):
    monkeypatch.setattr(server, "KEEP_ALIVE_S", 0.05)
    exchange = gateway.open()
    client = Client(exchange)
    client.send("chat/completions", BODY | {"stream": True})
    stream = client.connection.getresponse()
    for _ in range(2):
        assert stream.readline() + stream.readline() == b": the policy is writing\n\n"
    answered(exchange, ANSWERS[1]).join()
    assert stream.status == 200
    assert stream.read().endswith(b"data: [DONE]\n\n")
    gateway.forget(exchange)


def test_the_end_refuses_what_waits_and_what_comes(gateway):
    exchange, seen = gateway.open(), []
    waiting = threading.Thread(target=lambda: seen.append(Client(exchange).post("chat/completions", BODY)))
    waiting.start()
    exchange.requests.get(timeout=PATIENCE_S)
    exchange.seal("a limit was reached")
    waiting.join()
    assert seen[0][0] == 400
    assert "a limit was reached" in seen[0][1]["error"]["message"]
    assert Client(exchange).post("chat/completions", BODY)[0] == 409
    gateway.forget(exchange)


def test_a_stop_text_cuts_the_message_and_not_the_row(gateway):
    """The agent's copy of the cut answer is read as the policy wrote it."""
    exchange, whole = gateway.open(), Message("assistant", "look\nObservation: made up")
    giving = answered(exchange, Answer("1", whole, 3, 9, False))
    client, body = Client(exchange), BODY | {"stop": ["\nObservation:"]}
    _, answer = client.post("chat/completions", body)
    giving.join()
    message = answer["choices"][0]["message"]
    assert message["content"] == "look"
    pending = exchange.submit({}, chat.read(body | {"messages": [*body["messages"], message]}), False)
    assert pending.request.messages == (*TALK, whole)
    gateway.forget(exchange)
