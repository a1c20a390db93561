"""Chat templates that were published, where the package with them is installed; and thousands of turns of our own."""

import os
import random
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.data.chat_play import breaches, play
from tests.data.chat_templates import TOOLS, chat_turns
from verizero.pipeline.data.template_gate import template_note
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
TURNS = int(os.environ.get("VERIZERO_TEMPLATE_TURNS", "1500"))
"""100,000 turns take over a minute: `VERIZERO_TEMPLATE_TURNS=100000 pytest tests/data/test_published_templates.py`."""


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
