"""A tokenizer with special tokens and merges, and ten chat templates, each with one habit of published ones."""

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from verizero.pipeline.config.template import Template
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.turns import turns_of
from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.types import Prompt

END, START = "<|im_end|>", "<|im_start|>"
MERGES = ["t h", "th e", "a n", "Ġ a", "1 2", "> Ċ", "w o", "r d", "wo rd", "Ċ Ċ", "u s", "Ġ the"]
QUESTION = Prompt("p", "What is 1+2?", "math", "3")
_NUMBERS = {"a": {"type": "integer"}, "b": {"type": "integer"}}
ADD = ToolSchema("add", "Return a + b.", {"type": "object", "properties": _NUMBERS, "required": ["a", "b"]})
LOOK = ToolSchema("look", "Return a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
TOOLS = (ADD, LOOK)

_TOOLS = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
_CALLS = (
    "{% for c in m.tool_calls or [] %}{% if m.content or not loop.first %}{{ '\\n' }}{% endif %}"
    '<tool_call>\n{"name": {{ c.function.name | tojson }}, "arguments": {{ c.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}"
)
_ASK = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_ROLE = "<|im_start|>{{ m.role }}\n"
_TURN = f"{_ROLE}{{{{ m.content }}}}{_CALLS}<|im_end|>\n"
_THOUGHT = "<think>\n{{ m.reasoning_content }}\n</think>\n\n"


def _each(turn, before=_TOOLS, ask=_ASK):
    return f"{before}{{% for m in messages %}}{turn}{{% endfor %}}{ask}"


_LAST_USER = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
)
TEMPLATES = {
    "plain": _each(_TURN),
    "merges_answers": _each(
        "{% if m.role == 'tool' %}{% if loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}"
        "{{ '\\n<tool_response>\\n' }}{{ m.content }}\n</tool_response>"
        "{% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>\n{% endif %}"
        f"{{% else %}}{_TURN}{{% endif %}}"
    ),
    "drops_thinking": _LAST_USER
    + _each(
        f"{_ROLE}{{% if m.reasoning_content and loop.index0 > ns.last %}}{_THOUGHT}{{% endif %}}"
        f"{{{{ m.content }}}}{_CALLS}<|im_end|>\n"
    ),
    "strips": _each(f"{_ROLE}{{{{ m.content | trim }}}}{_CALLS}<|im_end|>\n"),
    "date": _each(_TURN, "<|im_start|>system\n{{ strftime_now('%d %b %Y') }}<|im_end|>\n" + _TOOLS),
    "ids": _each(
        "{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('9 letters') }}{% endif %}"
        "{% endfor %}<|im_start|>{{ m.role }}{% if m.tool_call_id %} {{ m.tool_call_id }}{% endif %}\n"
        f"{{{{ m.content }}}}{_CALLS}{{% for c in m.tool_calls or [] %}} {{{{ c.id }}}}{{% endfor %}}<|im_end|>\n"
    ),
    "ends_by_role": _each(f"{_ROLE}{{{{ m.content }}}}{_CALLS}"),
    "no_end": _each(
        f"{{{{ m.role }}}}: {{{{ m.content }}}}{_CALLS}{{{{ '\\n' }}}}",
        "{{ tools | tojson if tools }}",
        "{% if add_generation_prompt %}assistant: {% endif %}",
    ),
    "bos": _each(
        f"[{{{{ m.role }}}}]{{{{ m.content }}}}{_CALLS}<|im_end|>",
        "<s>" + _TOOLS,
        "{% if add_generation_prompt %}[assistant]{% endif %}",
    ),
    "empty_think": _LAST_USER
    + _each(
        f"{_ROLE}{{% if m.role == 'assistant' and loop.index0 > ns.last and (loop.last or m.reasoning_content) %}}"
        f"{_THOUGHT}{{% endif %}}{{{{ m.content }}}}{_CALLS}<|im_end|>\n"
    ),
    "opens_thinking": _LAST_USER
    + _each(
        f"{_ROLE}{{% if m.role == 'assistant' and loop.index0 > ns.last %}}{_THOUGHT}{{% endif %}}"
        f"{{{{ m.content }}}}{_CALLS}<|im_end|>\n",
        ask=_ASK.replace("assistant\n", "assistant\n<think>\n"),
    ),
    "reorders": _each(
        "{% if loop.last %}{% for s in messages if s.role == 'system' %}<|im_start|>system\n{{ s.content }}<|im_end|>\n"
        "{% endfor %}{% endif %}{% if m.role != 'system' %}" + _TURN + "{% endif %}"
    ),
    "asks_otherwise": _each(_TURN, ask=_ASK.replace("assistant\n", "assistant\n<think>\n\n</think>\n\n")),
}
"""Habit -> template. `plain` has none."""
THINKING = frozenset({"drops_thinking", "empty_think", "opens_thinking"})
"""The templates with a place for thinking."""


def byte_level(merges, special, tags=(), regex=True, **own):
    """A byte-level tokenizer with these merges and special tokens; `tags` are tokens, but not special ones."""
    pairs = [(a, b) for a, b in (m.split() for m in merges)]
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(m) for m in pairs)]
    backend = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(special)
    backend.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", **own)


@cache
def bare_tokenizer():
    """A tokenizer with a few merges, and the tags of calls and thinking."""
    tags = ("<tool_call>", "</tool_call>", "<think>", "</think>")
    return byte_level(MERGES, [START, END, "<s>", "<pad>"], tags, eos_token=END, bos_token="<s>")


def chat_turns(source, **template):
    """Return the turns of a template; calls are in the form hermes unless `calls` tells another."""
    tokenizer = bare_tokenizer()
    tokenizer.chat_template = source
    talk = turns_of(Renderer(tokenizer, Template.model_validate({"name": "chat", "calls": "hermes", **template})))
    return talk
