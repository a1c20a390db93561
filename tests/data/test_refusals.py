"""Rows that are refused, each with its place, column and remedy, whatever they are read for; and are skipped."""

import json
import re
from typing import Any

import pytest

from verizero.pipeline.config.data import Source
from verizero.pipeline.config.pairs import PairSource
from verizero.pipeline.data.pairs import read_pairs
from verizero.pipeline.data.prompts import read_prompts
from verizero.pipeline.errors import DataError


def user(content: Any = "a", **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def said(content: Any = "b", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def roles(names: str) -> list[dict[str, Any]]:
    return [{"role": name, "content": "a"} for name in names.split()]


def called(calls: Any) -> list[dict[str, Any]]:
    return [user(), {"role": "assistant", "tool_calls": calls}]


TESTS = {"tests": [{"input": "1", "output": "2"}]}
SYSTEM = {"role": "system", "content": "Add."}
ADDED = [said("so ", calls=[{"name": "add", "arguments": {"a": 27}}]), {"role": "tool", "content": "85"}, said("85")]
STEPS = {"prompt": "2+2?", "completions": ["Let x be 2+2.", "So x=5."], "labels": [True, False]}
FORMS: dict[str, tuple[type[Source | PairSource], dict[str, Any], dict[str, Any], str | None]] = {
    "own": (Source, {}, {"question": "q", "answer": 1, "verifier": "exact"}, None),
    "verifier": (Source, {}, {"question": "q", "answer": 1.0, "verifier": "exact"}, "verifier"),
    "reference": (Source, {}, {"question": "q", "answer": TESTS, "verifier": "code"}, None),
    "chat": (Source, {"verifier": "exact"}, {"question": "q", "answer": "1"}, "question"),
    "boxed": (
        Source,
        {"verifier": "exact", "mapping": {"question": "q", "answer": {"column": "n", "boxed": True}}},
        {"q": "q", "n": r"\boxed{1}"},
        "n",
    ),
    "two columns": (
        Source,
        {"mapping": {"question": "q", "answer": ["a", "b"], "id": None, "default_verifier": "exact"}},
        {"q": "1", "a": "t"},
        None,
    ),
    "math": (Source, {"mapping": "math"}, {"problem": "p", "solution": r"\boxed{1}"}, "solution"),
    "taco": (
        Source,
        {"mapping": "taco"},
        {"question": "Sum.", "input_output": '{"inputs": ["1"], "outputs": ["1"]}'},
        "input_output",
    ),
    "conversation": (
        Source,
        {"mapping": {"conversation": "messages", "tools": "tools", "id": None}, "graded": False},
        {"messages": [user(), said()], "tools": []},
        "messages",
    ),
    "tools": (
        Source,
        {"mapping": {"conversation": "messages", "tools": "tools", "id": None}, "graded": False},
        {"messages": [user(), said()], "tools": []},
        "tools",
    ),
    "episode": (
        Source,
        {"verifier": "exact"},
        {"question": "q", "answer": "1", "demonstration": ADDED},
        "demonstration",
    ),
    "pair": (PairSource, {}, {"prompt": "1+1=", "chosen": "2", "rejected": "3"}, None),
    "labels": (PairSource, {}, STEPS, "labels"),
    "steps": (PairSource, {}, STEPS, "completions"),
}
"""Form -> who reads it, by which fields of its source, a good row, and the column that a bad row has instead.

None: the bad row is another one as a whole.
"""
SILENT = "message 1 of the demonstration is the assistant's, with no text and no call"
LABEL = "column 'labels', step 2: the label must be true or false, .* got "
BAD: dict[str, list[tuple[Any, str]]] = {
    "own": [
        ('{"question": "q"', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"question": "\\ud83d q", "answer": 1}', "holds half of a surrogate pair"),
        ("[1]", "must be a JSON object, got list"),
        ({"question": "q", "verifier": "exact"}, "there is no column 'answer'; columns there: 'question', 'verifier'"),
        ({"question": "q", "answer": " ", "verifier": "exact"}, "the row has no answer: column 'answer' is empty"),
        ({"question": "q", "answer": None, "verifier": "exact"}, "the row has no answer.*on_bad_row: skip"),
        ({"question": "q", "answer": [], "verifier": "exact"}, "the row has no answer"),
        ({"problem": "q", "answer": 1}, "there is no column 'question'; columns there: 'problem', 'answer'"),
        ({"question": "q", "answer": 1}, "no verifier is named"),
    ],
    "verifier": [
        ("exakt", "no verifier is called 'exakt'; did you mean exact"),
        ({"name": "numeric", "params": {"abs": 1}}, "the row's verifier .*no parameter 'abs'"),
        ({"name": "numerik"}, "the row's verifier .*did you mean numeric"),
        ({"params": {}}, "the row's verifier .*give exactly one of verifier.name"),
    ],
    "reference": [
        (
            {"question": "q", "answer": {"test_list": ["assert f() == 1"]}, "verifier": "code"},
            "reference: .*the layout mbpp has tests of the verifier 'unit_tests', not 'code'",
        ),
        ({"question": "q", "answer": {"inputs": ["1"]}, "verifier": "code"}, "reference: .*no layout has its keys"),
        (
            {"question": "q", "answer": TESTS, "verifier": "unit_tests"},
            "reference: .*the layout tests has tests of the verifier 'code'.*on_bad_row: skip",
        ),
    ],
    "chat": [
        ([user(), said()], r"got roles \['user', 'assistant'\]"),
        ([user(" ")], "the user message of the chat is empty"),
        ([user([{"type": "image"}])], "message content must be text"),
        ({"a": 1}, "must be text or a list of"),
    ],
    "boxed": [(5, "'n'.* int")],
    "two columns": [({"q": "1"}, "the row has no answer: none of the columns a, b is there; columns")],
    "math": [(r"\boxed{1", r"'solution'.*\\boxed")],
    "taco": [
        ("", "column 'input_output' is empty"),
        ('{"inputs": [], "outputs": []}', "it holds no test"),
        ('{"inputs": ["1"], "outputs": []}', "two lists of equal length"),
        ("[1]", r"tests\[0\]: expected an object, got 1"),
        ("{", "reference: not JSON"),
        ("none", "expected JSON of tests, got 'none'"),
    ],
    "conversation": [
        ("1+2?", r"a conversation must be a list of messages, got '1\+2\?'"),
        (roles("user user"), "this one begins with user, user"),
        (roles("user user assistant"), "the assistant's answer; this one begins with user, user"),
        (roles("assistant user"), "the assistant's answer; this one begins with assistant, user"),
        (roles("user assistant assistant"), "two messages of the assistant follow each other .*, got assistant, "),
        (roles("user assistant user"), "begins and ends with an assistant's message, got assistant, user"),
        *((roles(f"user {name}"), f"begins with user, {name}") for name in ("system", "bot", "ipython", "User")),
        ([user(" "), said()], "the user's first message of the conversation is empty"),
        (called([{"function": {"name": "f", "arguments": "{"}}]), "the arguments of f must be an object or JSON"),
        (called(["add 1 2"]), "a call must be an object or JSON"),
        (called('{"name": "f"}'), "the calls of a message must be a list"),
        ([user(), said([{"type": "image"}])], r"message content must be text, got \[{'type': 'image'}\]"),
        *(([user(), said(nothing)], SILENT) for nothing in (None, "", " \n", [])),
        ([user(), said(None), user(), said()], SILENT),
    ],
    "tools": [(["f"], r"a tool must be \{name, description, parameters\}, got 'f'")],
    "episode": [
        (ADDED[:2], "begins and ends with an assistant's message, got assistant, tool"),
        (ADDED[1:], "got tool, assistant"),
        ([said(), said()], "follow each other"),
        ([{"role": "system", "content": "x"}], "message 1 .*role of assistant, user, tool"),
        ([said(5)], "message 1"),
        ([{"role": "assistant", "text": "5"}], "has keys text; known are calls"),
        ([said(), user("?", calls=ADDED[0]["calls"]), said()], "message 2 .*role is user"),
        ([{"role": "assistant", "calls": [{"name": "add", "a": 1}]}], "a call in message 1"),
        ([{"role": "assistant", "calls": [{"name": "add", "arguments": [1]}]}], "must be an object"),
    ],
    "pair": [
        ({"prompt": "q", "chosen": "2"}, "there is no column 'rejected'"),
        ({"prompt": "q"}, "the row has neither 'chosen' and 'rejected' nor 'completion' with 'label'"),
        ({"chosen": "2", "rejected": "3"}, "there is no column 'prompt'"),
        ({"prompt": "", "chosen": "2", "rejected": "3"}, "column 'prompt' is empty"),
        ({"prompt": "q", "completion": "2", "label": "perhaps"}, "the label must be true or false"),
        ({"prompt": "q", "completion": "2"}, "there is no column 'label'"),
        ({"prompt": "q", "chosen": 2, "rejected": "3"}, "column 'chosen' must be text or a list"),
        ({"prompt": "q", "chosen": [user()], "rejected": "3"}, "column 'chosen': a chat must end with"),
        (
            {"chosen": [user(), said()], "rejected": [SYSTEM, user(), said()]},
            "the conversations before the two answers",
        ),
        ({"prompt": "q", "chosen": [user(), said()], "rejected": [said()]}, "the conversations before"),
        (
            {"prompt": "q", "chosen": [said(None, function_call={"name": "f"})], "rejected": "3"},
            "column 'chosen': a message calls a tool",
        ),
        ("{no json", "not JSON"),
    ],
    "labels": [
        ([True], "column 'labels' has 1 labels for the 2 steps of column 'completions'"),
        *(([True, label], f"{LABEL}{label!r}") for label in (-1, "good", 0.5)),
        ([None, None], "column 'completions': none of 2 steps has a label"),
        (None, "column 'labels' must be a list with a label for each step, got None"),
    ],
    "steps": [
        (["a", " "], "column 'completions', step 2: a step is a text, got ' '"),
        (["a", 7], "column 'completions', step 2: a step is a text, got 7"),
        ("a b", "column 'completions' must be a list of steps, got 'a b'"),
        (7, "column 'completions' must be a list of steps"),
        ([{"text": "a", "rating": 1}, "b"], "column 'completions', step 1: a step is a text"),
    ],
}
CASES = [(form, bad, words) for form, rows in BAD.items() for bad, words in rows]


@pytest.mark.parametrize(("form", "bad", "words"), CASES, ids=[f"{form}: {str(bad)[:60]}" for form, bad, _ in CASES])
def test_a_bad_row_is_refused_with_its_place_or_skipped_and_counted(form, bad, words, tmp_path):
    kind, fields, good, column = FORMS[form]
    row = bad if column is None else {**good, column: bad}
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(good)}\n\n{row if isinstance(row, str) else json.dumps(row)}")

    def read(**more: Any) -> tuple[list[Any], Any]:
        source = kind.model_validate({"file": "rows.jsonl", **fields, **more})
        if kind is Source:
            loaded, (counts,) = read_prompts([source], 0, tmp_path)
            return loaded, counts
        pairs = read_pairs((source,), 0, tmp_path)
        return pairs.pairs, pairs.counts[0]

    with pytest.raises(DataError, match=f"rows.jsonl line 3: .*{words}"):
        read()
    if bad == "exakt":  # all rows may have a verifier whose package is not installed: none is skipped
        with pytest.raises(DataError, match=words):
            read(on_bad_row="skip")
        return
    loaded, counts = read(on_bad_row="skip")
    assert (len(loaded), counts.num_read, counts.num_loaded, counts.skipped) == (1, 2, 1, {"bad rows": 1})
    assert re.search(f"rows.jsonl line 3: .*{words}".partition(".*on_bad")[0], counts.examples["bad rows"])
    assert len(counts.left_out) == 1
