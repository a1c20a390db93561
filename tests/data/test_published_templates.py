"""Chat templates that were published, where the package with them is installed; and thousands of turns of our own."""

from __future__ import annotations

import os
import random
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.data.chat_play import breaches, play, random_text
from tests.data.chat_templates import QUESTION, TEMPLATES, TOOLS, chat_turns
from verizero.pipeline.config.template import Template
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.template_gate import template_gate
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.data.turns import turns_of
from verizero.pipeline.types import Message

PUBLISHED = {
    "qwen2_5": ("hermes", "keeps"),
    "qwen3": ("hermes", "keeps within a tool cycle"),
    "qwen3_instruct_2507": ("hermes", "keeps"),
    "qwen3_5_think": ("xml", "keeps within a tool cycle"),
    "qwen3_6": ("xml", "keeps within a tool cycle"),
    "nemotron_3_nano": ("xml", "keeps within a tool cycle"),
    "glm4moe": ("hermes", "keeps within a tool cycle"),
    "lfm2_2_5_v2": ("hermes", "keeps within a tool cycle"),
    "gptoss": ("hermes", "keeps within a tool cycle"),
    "gemma4": ("hermes", "rewrites"),
    "llama3_1": ("llama", "keeps"),
    "llama3_2": ("llama", "keeps"),
    "phi3": ("hermes", "cannot show tools"),
    "cohere2": ("hermes", "cannot show tools"),
}
"""Template -> form of calls, and its class."""
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
def test_published_templates_are_in_their_class_and_break_no_invariant(name: str) -> None:
    source, (calls, kind) = source_of(name), PUBLISHED[name]
    if source is None:
        pytest.skip("the published templates are not installed; those in chat_templates.py have the same habits")
    talk = chat_turns(source, calls=calls)
    assert template_gate(talk, TOOLS, 0, num_conversations=12).kind == kind
    for seed in range(4 if kind != "cannot show tools" else 0):
        tools = TOOLS if calls != "llama" else ()
        assert breaches(play(talk, random.Random(seed), 4, tools=tools)) == []
        kept = chat_turns(source, calls=calls, history="keep")
        assert len(play(kept, random.Random(seed), 4, tools=tools).rows) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TEMPLATES, None])
def test_many_turns_break_no_invariant(name: str | None) -> None:
    """In equal shares over our own templates and the character tokenizer."""
    share = TURNS // (len(TEMPLATES) + 1) + 1
    if name is not None:
        talk = chat_turns(TEMPLATES[name])
        for seed in range(12, 12 + share // 5 + 1):  # those before are in test_chat_turns.py
            assert breaches(play(talk, random.Random(seed), 5)) == []
        return
    tokenizer = character_tokenizer()
    plain = turns_of(Renderer(tokenizer, Template()))
    rng, history = random.Random(0), list(plain.opening(QUESTION, ()))
    for turn in range(share):
        words = plain.write(Message("assistant", "12"), ())
        history.append(plain.read(words, "stop", turn, ()).message)
        new = Message("tool", random_text(rng, 0.5))
        (piece,) = plain.extend(history[-1:], [new], (), [words], "stop").pieces
        shown = "".join(c if c in tokenizer.init_kwargs["characters"] else "?" for c in new.content)
        assert tokenizer.decode(list(piece.ids)) == f"\n{shown}\n"
        assert len(piece.ids) == len(shown) + 2
