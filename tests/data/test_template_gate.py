"""The gate of chat templates: its four classes, and the record that a run keeps."""

from __future__ import annotations

import json

import pytest

from tests.data.chat_templates import TEMPLATES, TOOLS, chat_turns
from verizero.pipeline.config.template import Template
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.template_gate import template_gate
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.data.turns import turns_of

CLASSES = {
    "plain": "keeps",
    "merges_answers": "keeps",
    "ids": "keeps",
    "ends_by_role": "keeps",
    "drops_thinking": "keeps within a tool cycle",
    "empty_think": "keeps within a tool cycle",
    "opens_thinking": "keeps within a tool cycle",
    "reorders": "rewrites",
}


@pytest.mark.parametrize("name", CLASSES)
def test_each_class_is_found(name: str) -> None:
    gate = template_gate(chat_turns(TEMPLATES[name]), TOOLS, 0, has_system=True, num_conversations=20)
    assert gate.kind == gate.record["class"] == CLASSES[name]
    assert json.loads(json.dumps(gate.record)) == gate.record
    assert (gate.note == "") == (gate.kind == "keeps")
    assert gate.record["turns"] >= 40


def test_the_causes_are_counted_by_role() -> None:
    gate = template_gate(chat_turns(TEMPLATES["drops_thinking"]), TOOLS, 0, num_conversations=20)
    assert gate.record["causes"].keys() == {"thinking"}
    assert gate.record["forks"]["tool"].startswith("0 of")
    assert not gate.record["forks"]["user"].startswith("0 of")
    assert "a new row begins" in gate.note
    keeping = template_gate(chat_turns(TEMPLATES["drops_thinking"], history="keep"), TOOLS, 0, num_conversations=5)
    assert (keeping.kind, keeping.record["history"]) == ("keeps within a tool cycle", "keep")
    assert "a history that a server with this template will never show" in keeping.note


def test_where_no_user_speaks_only_tools_count() -> None:
    gate = template_gate(chat_turns(TEMPLATES["drops_thinking"]), TOOLS, 0, users_speak=False, num_conversations=20)
    assert gate.kind == "keeps"
    assert gate.record["forks"].keys() == {"tool"}


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (TEMPLATES["plain"].replace("{{ tools | tojson }}", ""), "the prompt does not show add, look"),
        (TEMPLATES["plain"].replace("{{ c.function.arguments | tojson }}", ""), "leaves calls out"),
        (TEMPLATES["plain"].replace("{{ m.content }}", "{{ m.content if m.role != 'tool' }}"), "answers of tools out"),
        ("{% if tools %}{{ raise_exception('no tools') }}{% endif %}{{ messages }}", "no tools"),
    ],
)
def test_a_template_that_hides_tools_is_named(source: str, reason: str) -> None:
    gate = template_gate(chat_turns(source), TOOLS, 0, num_conversations=5)
    assert gate.kind == "cannot show tools"
    assert reason in gate.note
    assert reason in gate.record["reason"]
    assert template_gate(chat_turns(source), (), 0, num_conversations=5).kind != "cannot show tools"


def test_turns_without_a_chat_template_keep() -> None:
    plain = turns_of(Renderer(character_tokenizer(), Template()))
    assert template_gate(plain, TOOLS, 0).kind == "keeps"


def test_equal_seeds_give_equal_records() -> None:
    talk = chat_turns(TEMPLATES["empty_think"])
    first, again = (template_gate(talk, TOOLS, 3, num_conversations=8).record for _ in range(2))
    assert first == again
    assert template_gate(talk, TOOLS, 4, num_conversations=8).record != first
