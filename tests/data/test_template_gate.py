"""What a run is told of its chat template: where it rewrites the history, and what of tools it hides."""

import re

import pytest

from tests.data.chat_templates import TEMPLATES, TOOLS, chat_turns
from verizero.pipeline.config.template import Template
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.template_gate import template_note
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.data.turns import turns_of
from verizero.pipeline.errors import ConfigError

THINKING = r"\(thinking\) after 0 of \d+ answers of a tool and [1-9]\d* of \d+ answers of a user; .* a new row begins"
NOTES = {
    "plain": "^$",
    "merges_answers": "^$",
    "ids": "^$",
    "ends_by_role": "^$",
    "drops_thinking": THINKING,
    "empty_think": THINKING,
    "opens_thinking": THINKING,
    "reorders": r"after [1-9]\d* of \d+ answers of a tool",
}


@pytest.mark.parametrize("name", NOTES)
def test_a_run_is_told_what_a_template_rewrites_and_why(name):
    note = template_note(chat_turns(TEMPLATES[name]), TOOLS, 0, has_system=True, num_conversations=20)
    assert re.search(NOTES[name], note)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (TEMPLATES["plain"].replace("{{ tools | tojson }}", ""), "the prompt does not show add, look"),
        (TEMPLATES["plain"].replace("{{ c.function.arguments | tojson }}", ""), "leaves calls out"),
        (TEMPLATES["plain"].replace("{{ m.content }}", "{{ m.content if m.role != 'tool' }}"), "answers of tools out"),
        ("{% if tools %}{{ raise_exception('no tools') }}{% endif %}{{ messages }}", "no tools"),
    ],
)
def test_a_template_that_hides_tools_is_named(source, reason):
    with pytest.raises(ConfigError, match=f"cannot show tools: .*{reason}"):
        template_note(chat_turns(source), TOOLS, 0, num_conversations=5)
    template_note(chat_turns(source), (), 0, num_conversations=5)


def test_turns_without_a_chat_template_rewrite_nothing():
    plain = turns_of(Renderer(character_tokenizer(), Template()))
    assert template_note(plain, TOOLS, 0) == ""
