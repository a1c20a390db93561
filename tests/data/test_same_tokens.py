"""SFT, the prompts of RL and a served model have the same tokens in every turn, whatever the chat template opens."""

import re

import pytest

from tests.data.chat_templates import TEMPLATES
from tests.data.test_family_turns import FAMILIES, tokenizer_of
from tests.data.test_published_templates import source_of
from verizero.pipeline.config.template import Template
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.turns import turns_of
from verizero.pipeline.errors import DataError
from verizero.pipeline.run.demonstrations import rows_of
from verizero.pipeline.run.serving import EMPTY_PROMPT
from verizero.pipeline.types import Message, Prompt

SPACED = (
    "{% for m in messages %}{% if m.role == 'user' %}[user]{{ m.content }}{% else %}[bot]{{ m.content }} <eos>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}[bot]{% endif %}"
)
SHAPES = {
    "space_before_end": (SPACED, "<eos>", "<eos>"),
    "opens": (TEMPLATES["opens_thinking"], "<|im_end|>", "<|im_end|>"),
    "closes": (TEMPLATES["asks_otherwise"], "<pad>", "<|im_end|>"),
    "two_ends": (TEMPLATES["plain"], "<pad>", "<|im_end|>"),
}
"""Name -> a template, the tokenizer's end token, and the token at which a turn ends."""
PUBLISHED = {
    **{template: (end, end) for template, end in FAMILIES.values()},
    "deepseek_r1_distill": ("<\uff5cend\u2581of\u2581sentence\uff5c>",) * 2,
    "gemma": ("<eos>", "<end_of_turn>"),
    "gemma3": ("<eos>", "<end_of_turn>"),
    "llama3": ("<|end_of_text|>", "<|eot_id|>"),
    "phi3": ("<|endoftext|>", "<|end|>"),
}
"""A published template -> the same two tokens."""
ROWS = [(f"{name}, published", source_of(name), *ends) for name, ends in PUBLISHED.items()]
CASES = [(name, *row) for name, row in SHAPES.items()] + [row for row in ROWS if row[1]]


def _words(talk, ids):
    """Return the text of tokens without spaces, and without thinking that is empty, which templates write or drop."""
    return "".join(re.sub(r"<think>\s*</think>", "", talk.chat.text_of(tuple(ids))).split())


def talk_of(source, eos):
    talk = turns_of(Renderer(tokenizer_of(source, eos), Template(name="chat")))
    return talk


def ids_of(talk, demonstration):
    """Return the tokens of SFT before each turn, and those of the turn."""
    prompt = Prompt("p", "What is 1+2?", "math", "3", demonstration=demonstration)
    rows, _ = rows_of(talk.renderer, None, [prompt])
    return [(row.ids[:start], row.ids[start:end]) for row in rows for start, end in row.spans]


@pytest.mark.parametrize("thinks", [True, False])
@pytest.mark.parametrize(("name", "source", "eos", "end"), CASES, ids=[row[0] for row in CASES])
def test_every_turn_is_imitated_as_it_is_asked_for_and_served(name, source, eos, end, thinks):
    talk = talk_of(source, eos)
    closed = "</think>" in talk.chat.generation
    thinking = "so 3" if thinks else None
    spoken = [Message("assistant", "It is 3.", thinking=thinking), Message("assistant", "Yes.", thinking=thinking)]
    whole = ("<think>\nso 3\n</think>\n\n" if thinks else "") + "It is 3."
    episode = (spoken[0], Message("user", "Is it?"), spoken[1])
    if thinks and closed:
        for refused in (whole, episode, (Message("assistant", whole),)):
            with pytest.raises(
                DataError, match=r"the demonstration of prompt 'p' begins with thinking.*chat_arguments"
            ):
                ids_of(talk, refused)
        return
    turns = ids_of(talk, episode)
    history = list(talk.opening(Prompt("p", "What is 1+2?", "math", "3"), ()))
    assert len(turns) == 2
    for message, (before, words) in zip(spoken, turns, strict=True):
        served = talk.begin(EMPTY_PROMPT, history, ())
        assert _words(talk, before) == _words(talk, served), "the served model is asked otherwise"
        text = talk.chat.text_of(words)
        assert text.endswith(end), f"a turn ends with {text[-20:]!r}"
        asked = talk.chat.text_of(before)[-40:] + text
        is_open = talk.chat.opens_thinking
        assert asked.count("<think>") == asked.count("</think>") == int(thinks or is_open or closed)
        written = _words(talk, talk.chat.ids(talk.chat.write([*history, message], (), asks=False)))
        if not thinks:
            # GLM's turns end with the mark of the next one.
            assert f"{written}{end}".startswith(_words(talk, (*before, *words))), "the template ends the turn otherwise"
        read = talk.read(words, "stop", 0, ()).message
        assert (read.thinking if talk.chat.splits_thinking else thinking, read.content.endswith(message.content)) == (
            thinking,
            True,
        )
        history += [message, Message("user", "Is it?")]
    # The same response in one text, with thinking in it; what the prompt has opened may be left out.
    assert ids_of(talk, whole) == ids_of(talk, (Message("assistant", whole),)) == turns[:1]
    if thinks and talk.chat.opens_thinking:
        assert ids_of(talk, whole.removeprefix("<think>\n")) == turns[:1]
