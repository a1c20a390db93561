"""The character tokenizer gives every text back, also after a folder was saved next to a model and loaded again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen3Config

from verizero.pipeline.data.generators.base import generate, text_lines
from verizero.pipeline.data.tokenizer import CHARACTERS, EOS, PAD, character_tokenizer, unknown_characters
from verizero.pipeline.errors import DataError

WIDE = CHARACTERS + "'ABCé€𝄞 日本\t"
LOADED = {}


@pytest.fixture(scope="module", params=[None, Qwen2Config, Qwen3Config, LlamaConfig])
def reloaded(request, tmp_path_factory):
    """The tokenizer from a folder that also holds the config of such a model."""
    folder = tmp_path_factory.mktemp("model")
    character_tokenizer(WIDE).save_pretrained(folder)
    if request.param is not None:
        request.param().save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


@given(text=st.text(alphabet=WIDE, max_size=60))
def test_one_token_a_character_and_the_same_text_back(text):
    tokenizer = LOADED.setdefault("wide", character_tokenizer(WIDE))
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == text


def test_a_saved_one_is_the_same_whatever_model_it_lies_beside(reloaded):
    made = character_tokenizer(WIDE)
    assert isinstance(reloaded, PreTrainedTokenizerFast)
    assert reloaded.get_vocab() == made.get_vocab()
    text = "  a , b .  n't <eos>\n\n <pad> 27+58=<think>15 8</think>\\boxed{85}\té€𝄞日 "
    ids = reloaded(text)["input_ids"]
    assert ids == made(text)["input_ids"]
    assert len(ids) == len(text)
    assert not {0, 1} & set(ids), "special tokens that a text spells are text"
    assert reloaded.decode(ids) == text
    assert (reloaded.pad_token, reloaded.eos_token) == (PAD, EOS)
    assert (reloaded.pad_token_id, reloaded.eos_token_id) == (0, 1)
    assert (reloaded.bos_token_id, reloaded.unk_token_id) == (None, None)
    assert reloaded.padding_side == "left"
    assert unknown_characters(reloaded, "a#b#Z") == "#Z"


def test_the_default_set_knows_the_built_in_domains_in_every_form():
    few = {"num_demonstrations": 3000, "num_text": 3000}
    forms = {"arithmetic": ["+", "-"], "induction": ["linear", "minus", "shifted"]}
    texts = []
    for name in forms:
        params = {**few, "forms": forms[name]}
        texts += [r["question"] + r["demonstration"] for r in generate(name, params).demonstrations]
        texts += text_lines(name, params)
    assert not set("".join(texts)) - set(CHARACTERS)


@pytest.mark.parametrize(
    ("characters", "said"),
    [
        ("", "needs characters, got none"),
        ("a\u212b", "U\\+212B"),
        ("ae\u0301", "U\\+0301.*after 'a'"),
        ("\u1100\u1161", "U\\+1161.*after '\u1100'"),
    ],
)
def test_characters_that_would_not_come_back_are_refused(characters, said):
    with pytest.raises(DataError, match=said):
        character_tokenizer(characters)
