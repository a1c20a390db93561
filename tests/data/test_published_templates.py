"""What a run is told of its chat template: what it rewrites and hides; of published ones too, where they are there."""

import random
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.data.chat_play import breaches, play
from tests.data.chat_templates import TEMPLATES, TOOLS, chat_turns
from verizero.pipeline.config.template import Template
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.template_gate import template_note
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.data.turns import turns_of
from verizero.pipeline.errors import ConfigError

PUBLISHED = {
    "qwen2_5": ("hermes", "keeps"),
    "qwen3": ("hermes", "rewrites for a user"),
    "qwen3_instruct_2507": ("hermes", "keeps"),
    "qwen3_5_think": ("xml", "rewrites for a user"),
    "qwen3_6": ("xml", "rewrites for a user"),
    "nemotron_3_nano": ("xml", "rewrites for a user"),
    "glm4moe": ("hermes", "rewrites for a user"),
    "lfm2_2_5_v2": ("hermes", "rewrites for a user"),
    "gptoss": ("hermes", "rewrites for a user"),
    "gemma4": ("hermes", "rewrites"),
    "phi3": ("hermes", "cannot show tools"),
    "cohere2": ("hermes", "cannot show tools"),
}
"""Template -> form of calls, and what it does to the history."""


@cache
def source_of(name: str) -> str | None:
    """The published template; None where the package with them is not installed."""
    package = find_spec("trl")
    if package is None or package.origin is None:
        return None
    return (Path(package.origin).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_templates_do_what_is_known_of_them_and_break_no_invariant(name):
    source, (calls, kind) = source_of(name), PUBLISHED[name]
    if source is None:
        pytest.skip("the published templates are not installed; those in chat_templates.py have the same habits")
    talk = chat_turns(source, calls=calls)
    if kind == "cannot show tools":
        with pytest.raises(ConfigError, match=kind):
            template_note(talk, TOOLS, 0)
        return
    note = template_note(talk, TOOLS, 0, num_conversations=12)
    assert bool(note) == (kind != "keeps")
    assert (" 0 of " in note.partition("answers of a tool")[0]) == (kind == "rewrites for a user")
    for seed in range(4):
        assert breaches(play(talk, random.Random(seed), 4)) == []


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
