"""Families of models by the package renderers: conversations with tools, in the families' own published templates."""

import os
import random
import re
from functools import cache
from importlib.util import find_spec

import pytest
from tokenizers import AddedToken

from tests.data.chat_play import breaches, play
from tests.data.chat_templates import TOOLS, bare_tokenizer, byte_level
from tests.data.test_published_templates import source_of
from verizero.pipeline.config.template import Template
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.template_gate import template_note
from verizero.pipeline.data.turns import turns_of
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.types import Call, Message

FAMILIES = {
    "qwen3": ("qwen3", "<|im_end|>"),
    "qwen3.5": ("qwen3_5_think", "<|im_end|>"),
    "qwen3.6": ("qwen3_6", "<|im_end|>"),
    "qwen3.8": ("qwen3_8", "<|im_end|>"),
    "qwen3-vl": ("qwen3_vl", "<|im_end|>"),
    "nemotron-3": ("nemotron_3_nano", "<|im_end|>"),
    "nemotron-3-ultra": ("nemotron_3_ultra", "<|im_end|>"),
    "nemotron-3.5": ("nemotron_3_5_lightning", "<|im_end|>"),
    "glm-4.5": ("glm4moe", "<|user|>"),
    "gemma4": ("gemma4_v5", "<turn|>"),
    "llama-3": ("llama3_2", "<|eot_id|>"),
}
"""Family -> its published template, and the end token of its turns."""
ONE_CALL = ("gemma4", "llama-3")
"""Families whose templates leave out words next to calls, or refuse two calls in a turn."""
REFUSED = {
    "gpt-oss": ("gptoss", "<|return|>", "reads it as|does not fit the tokenizer"),
    "qwen3.5": ("qwen3_5_nothink", "<|im_end|>", "does not follow its prompt"),
}
"""Family -> a template that it does not fit, the end token, and the reason."""
MERGES = ["Ċ Ċ", "Ċ ĊĊ", "> Ċ", "t h", "th e", "Ġ a", "Ġ the", ": Ċ", ". Ċ", "} Ċ", '" :']
NUM = int(os.environ.get("VERIZERO_FAMILY_CONVERSATIONS", "12"))
"""`VERIZERO_FAMILY_CONVERSATIONS=1000 pytest tests/data/test_family_turns.py` plays a thousand a family."""
SPECIAL = re.compile(r"<\|[^|<>\s]+\|>|<\|[a-z_]+>|</?[a-z_]+>|<[a-z_]+\|>|\[[a-zA-Z]+\]|<\|\"\|>")
MORE = ("<bos>", "<eos>", "[gMASK]", "<sop>", "<|endoftext|>", "<|observation|>", "<|user|>", "<|assistant|>",
        "<|system|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>",
        "<tool_response>", "</tool_response>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
        "<|video_pad|>", "<|image>", "<|audio>", "<|video>",
        "<image|>", "<audio|>", "<video|>", "<|video|>", "<|image|>", "<|audio|>", "<pad>",
        "<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>", "<|python_tag|>", "<|constrain|>")  # fmt: skip

pytestmark = pytest.mark.skipif(
    find_spec("renderers") is None or find_spec("trl") is None, reason="renderers or trl is not installed"
)


@cache
def talk_of(family, template="", end=""):
    """Return the family's turns, with a tokenizer that has its special tokens."""
    template, end = (template, end) if template else FAMILIES[family]
    source = source_of(template)
    tokenizer = tokenizer_of(source, end)
    talk = turns_of(Renderer(tokenizer, Template.model_validate({"name": "chat", "calls": f"renderers/{family}"})))
    return talk


def tokenizer_of(source, end):
    """Return a byte-level tokenizer with merges of line breaks, a chat template and the special tokens in it."""
    names = dict.fromkeys([*MORE, end, *SPECIAL.findall(source)])
    special = [AddedToken(name, special=True, normalized=False) for name in names]
    tokenizer = byte_level(MERGES, special, regex=False, eos_token=end, bos_token="<bos>")
    tokenizer.chat_template = source
    return tokenizer


@pytest.mark.run
@pytest.mark.parametrize("family", FAMILIES)
def test_conversations_are_those_of_the_template_and_no_token_is_encoded_again(family):
    talk = talk_of(family)
    template_note(talk, TOOLS, 0, num_conversations=8)
    how = {"thinks": talk.chat.splits_thinking, "one_call": family in ONE_CALL}
    unforked = 0
    for seed in range(NUM):
        played = play(talk, random.Random(seed), 1 + seed % 4, is_clean=True, **how)
        assert breaches(played) == []
        spoken = [m for m in played.messages if m.role == "assistant"]
        # Where the prompt opens thinking, a policy that does not think closes it, and the template shows an empty one.
        if not played.forks and (all(m.thinking for m in spoken) or not talk.chat.opens_thinking):
            unforked += 1
            assert played.ids == talk.chat.ids(talk.chat.write(played.messages, TOOLS, asks=True))
        rough = play(talk, random.Random(seed), 1 + seed % 3, **how)
        assert breaches(rough) == []
    assert unforked


@pytest.mark.parametrize("family", FAMILIES)
def test_a_message_is_read_as_it_was_written(family):
    talk = talk_of(family)
    thinking = "so 12" if talk.chat.splits_thinking else None
    for calls in range(2 if family == "llama-3" else 3):
        made = tuple(Call(f"3-{n}", "add", {"a": n, "b": -1}) for n in range(calls))
        for content in ("Let me see.", ""):
            message = Message("assistant", content, made, thinking=thinking)
            if (content and made and family in ONE_CALL) or not (content or made):
                continue
            ids = talk.write(message, TOOLS)
            talk.require_read(message, ids, TOOLS)
            assert ids[-1] in talk.family.get_stop_token_ids()
            assert talk.read(ids, "stop", 3, TOOLS).message.calls == made
            # A turn that was cut calls nothing.
            assert talk.read(ids[:-2], "length", 3, TOOLS).message.calls == ()


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_that_does_not_read_what_the_template_writes_is_refused_before_training(family):
    template, end, reason = REFUSED[family]
    with pytest.raises(DataError, match=reason):
        template_note(talk_of(family, template, end), TOOLS, 0)


def test_a_message_that_the_template_would_not_show_is_refused():
    call = Call("0-0", "add", {"a": 1, "b": 2})
    with pytest.raises(DataError, match="leaves 'Let me see' out"):
        talk_of("llama-3").write(Message("assistant", "Let me see", (call,)), TOOLS)
    with pytest.raises(DataError, match="leaves 'so 12' out"):
        talk_of("qwen3-vl").write(Message("assistant", "12", thinking="so 12"), TOOLS)
    with pytest.raises(DataError, match="single tool-calls"):
        talk_of("llama-3").write(Message("assistant", "", (call, call)), TOOLS)


def test_what_does_not_fit_is_refused_by_name():
    talk = talk_of("qwen3")
    with pytest.raises(DataError, match="special token"):
        talk.write(Message("assistant", "a<|im_end|>b"), TOOLS)
    words = talk.renderer.tokenizer("<tool_call>\n{no json}\n</tool_call><|im_end|>", add_special_tokens=False)
    result = talk.read(words["input_ids"], "stop", 0, TOOLS)
    assert (result.message.calls, result.unread is None) == ((), False)

    def turns(calls, tokenizer):
        tokenizer.chat_template = source_of("qwen3")
        return turns_of(Renderer(tokenizer, Template.model_validate({"name": "chat", "calls": calls})))

    with pytest.raises(ConfigError, match="no family"):
        turns("renderers/qwen33", bare_tokenizer())
    with pytest.raises(DataError, match="does not fit the tokenizer"):
        turns("renderers/glm-4.5", bare_tokenizer())
    with pytest.raises(ValueError, match="needs template"):
        Template.model_validate({"name": "plain", "calls": "renderers/qwen3"})
