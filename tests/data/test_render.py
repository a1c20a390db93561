"""Templates as text and as tokens, on tokenizers made here."""

import pytest
from transformers import PreTrainedTokenizerFast

from verizero.pipeline.config.template import Template
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.tokenizer import CHARACTERS, character_tokenizer
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Prompt

CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}{% if brief %}brief{% endif %}"
)
ASCII = "".join(map(chr, range(32, 127))) + "\n"
SUM = Prompt("s/1", "1+2=", "math", "3", demonstration="<think>3</think>\\boxed{3}")


def _renderer(characters=ASCII, chat=None, **template):
    tokenizer = character_tokenizer(characters)
    tokenizer.chat_template = chat
    return Renderer(tokenizer, Template(**template))


def test_a_demonstration_ends_with_the_end_token_which_decoding_leaves_out():
    render = _renderer(CHARACTERS)
    ids = render.demonstration_ids(SUM)
    assert ids[-1] == render.tokenizer.eos_token_id
    assert render.tokenizer.eos_token_id not in ids[:-1]
    assert render.decode(ids) == SUM.demonstration
    assert render.decode((*render.prompt_ids(SUM), *ids)) == SUM.question + str(SUM.demonstration)
    with pytest.raises(DataError, match=r"'x'.*mapping.demonstration"):
        render.demonstration_ids(Prompt("x", "1", "math", "1"))


def test_chat_is_what_the_tokenizers_template_writes():
    render = _renderer(chat=CHAT, name="chat", system="Be brief.")
    expected = "<system>Be brief.</system><user>1+2=</user><assistant>"
    assert render.text(SUM) == expected
    assert render.decode(render.prompt_ids(SUM)) == expected
    own = Prompt("o", "1+2=", "math", "3", system="Own.")
    assert render.decode(render.prompt_ids(own)) == "<system>Own.</system><user>1+2=</user><assistant>"
    bare = _renderer(chat=CHAT, name="chat", chat_arguments={"brief": True})
    assert bare.decode(bare.prompt_ids(SUM)) == "<user>1+2=</user><assistant>brief"


def test_chat_needs_a_chat_template_that_takes_the_messages():
    with pytest.raises(DataError, match="chat template"):
        _renderer(name="chat")
    render = _renderer(chat="{{ raise_exception('no system role') }}", name="chat")
    with pytest.raises(DataError, match=r"'s/1'.*no system role"):
        render.prompt_ids(SUM)


def test_r1_zero_asks_for_thought_then_answer_and_leaves_the_turn_open():
    text = _renderer(name="r1_zero").text(SUM)
    positions = [text.index(s) for s in ("<think>", "</think>", "<answer>", "</answer>", "User: 1+2=\n", "Assistant:")]
    assert positions == sorted(positions)
    assert text.endswith("Assistant:")
    assert "{question}" not in text


def test_custom_puts_the_question_in_whatever_braces_are_around():
    render = _renderer(name="custom", text="{x} Q: {question} {question}\nA:")
    assert render.text(Prompt("b", "{question}{y}", "math", "1")) == "{x} Q: {question}{y} {question}{y}\nA:"


def test_unknown_characters_are_named_with_their_row():
    render = _renderer(CHARACTERS)
    with pytest.raises(DataError, match=r"^prompt 'p/7' .*'#', 'É'"):
        render.prompt_ids(Prompt("p/7", "1#2É#", "math", "1"))
    with pytest.raises(DataError, match=r"demonstration of prompt 'p/8' .*: 'Z'"):
        render.demonstration_ids(Prompt("p/8", "1", "math", "1", demonstration="Z"))
    with pytest.raises(DataError, match=r"^line 3 "):
        render.text_ids("Z", "line 3")


def test_start_token_is_kept_and_an_end_token_is_taken_off_prompts():
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    backend = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "a": 2, "b": 3, "?": 4}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    render = Renderer(PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>"), Template())
    prompt = Prompt("p", "a b", "math", "1", demonstration="b a")
    assert render.prompt_ids(prompt) == (0, 2, 3)
    assert render.demonstration_ids(prompt) == (3, 2, 1)


def test_each_prompt_is_tokenised_once():
    render = _renderer(CHARACTERS)
    first = render.prompt_ids(SUM)
    assert render.prompt_ids(SUM) is first
    assert render.text_ids("1+2=1") is render.text_ids("1+2=1")
    assert render.prompt_ids(Prompt("s/1", "1+3=", "math", "4")) != first, "another question under the same id"


def test_a_tokenizer_without_an_end_token_is_refused():
    tokenizer = character_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(DataError, match="eos_token"):
        Renderer(tokenizer, Template())
