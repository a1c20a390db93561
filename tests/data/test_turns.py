"""Turns without a chat template: the first prompt is today's, and nothing that was sampled is encoded again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from verizero.pipeline.config.template import Template
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.tokenizer import CHARACTERS, character_tokenizer
from verizero.pipeline.data.turns import turns_of
from verizero.pipeline.environments.base import ToolSchema
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Call, Message, Prompt

TOKENIZER = character_tokenizer(CHARACTERS)
EOS = TOKENIZER.eos_token_id
NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
TOOLS = (ToolSchema("add", "Return a + b.", NUMBERS),)
SUM = Prompt("s", "27+58=", "math", "85")
ROLES = ("user", "assistant", "user")
TEXT = st.text(CHARACTERS, max_size=9)


def plain(characters=CHARACTERS, **template):
    tokenizer = TOKENIZER if characters == CHARACTERS else character_tokenizer(characters)
    talk = turns_of(Renderer(tokenizer, Template(**template)))
    return talk


def text_of(ids):
    return str(TOKENIZER.decode(list(ids)))


@pytest.mark.parametrize("template", [{}, {"name": "r1_zero"}, {"name": "custom", "text": "q: {question}?"}])
def test_the_first_prompt_is_that_of_a_single_response(template):
    talk = plain("".join(map(chr, range(32, 127))) + "\n", **template)
    prompt = Prompt("s", "27+58=", "math", "85", system="Add.")
    assert talk.begin(prompt, (), TOOLS) == talk.renderer.prompt_ids(prompt)
    assert talk.opening(prompt, ()) == (Message("system", "Add."), Message("user", "27+58="))
    assert talk.begin(SUM, talk.opening(prompt, ()), TOOLS) == talk.renderer.prompt_ids(prompt)


def test_an_episode_is_read_as_it_is_written():
    talk = plain()
    call = Message("assistant", "so ", (Call("0-0", "add", {"a": 27, "b": 58}),))
    words = talk.write(call, TOOLS)
    assert text_of(words) == "so <add 27 58><eos>"
    assert talk.read(words, "stop", 0, TOOLS).message == call
    history = [*talk.opening(SUM, ()), call]
    following = talk.extend(history, [Message("tool", "85", answers="0-0")], TOOLS, [words], "stop")
    assert following.fork is None
    (piece,) = following.pieces
    assert piece.turn is None
    assert text_of(piece.ids) == "\n85\n"
    assert EOS not in piece.ids


def test_all_new_messages_are_one_observation():
    talk = plain(observation="\n({text}): ")
    new = [Message("tool", "85"), Message("user", "<eos> sure?")]
    (piece,) = talk.extend([], new, TOOLS, [], "length").pieces
    assert text_of(piece.ids) == "\n(85\n<eos> sure?): "
    assert EOS not in piece.ids, "a tool's text became the end token"


def test_a_conversation_so_far_is_written_as_if_it_had_been_played():
    talk = plain()
    question, answer, more = Message("user", "27+58="), Message("assistant", "85"), Message("user", "and 1+1?")
    told = talk.begin(SUM, [question, answer, more], ())
    words = talk.write(answer, ())
    played = talk.begin(SUM, [question], ()) + words
    (piece,) = talk.extend([question, answer], [more], (), [words], "stop").pieces
    assert told == played + piece.ids
    for roles in (["assistant", "user"], ["user", "assistant"]):
        with pytest.raises(DataError, match="'s'.*got " + ", ".join(roles)):
            talk.begin(SUM, [Message(r, "1") for r in roles], ())


@pytest.mark.parametrize(("characters", "shown"), [(CHARACTERS, "\n8?5\n"), ("0123456789\n", "\n85\n")])
def test_characters_that_the_tokenizer_lacks_are_replaced(characters, shown):
    talk = plain(characters)
    (piece,) = talk.extend([], [Message("tool", "8é5")], (), [], "stop").pieces
    assert talk.renderer.decode(piece.ids) == shown


def test_calls_in_open_thinking_or_in_a_cut_turn_are_text():
    talk = plain()
    for text, finish, calls in [
        ("<think><add 1 2>", "stop", 0),
        ("<think><add 1 2></think><add 3 4>", "stop", 1),
        ("<think></think><add 1 2>", "length", 0),
        ("<add 1 2><think>", "stop", 0),
    ]:
        read = talk.read(talk.renderer.text_ids(text), finish, 3, TOOLS)
        assert (len(read.message.calls), read.unread) == (calls, None), text
        if not calls:
            assert read.message.content == text
        else:
            assert read.message == Message(
                "assistant", "<think><add 1 2></think>", (Call("3-0", "add", {"a": 3, "b": 4}),)
            )


def test_a_call_that_cannot_be_read_keeps_the_words():
    read = plain().read(plain().renderer.text_ids("<add 1 2><add 1"), "stop", 0, TOOLS)
    assert (read.message.content, read.message.calls) == ("<add 1 2><add 1", ())
    assert "no '>'" in read.unread


@settings(max_examples=60)
@given(st.lists(st.tuples(TEXT, TEXT, st.booleans()), min_size=1, max_size=4))
def test_the_row_decodes_to_the_conversation(turns):
    """The row's text is the conversation's, and encoding that text by characters gives back the row."""
    talk = plain()
    row, expected, sampled = talk.begin(SUM, (), ()), SUM.question, []
    history = list(talk.opening(SUM, ()))
    for text, answer, is_cut in turns:
        words = talk.renderer.text_ids(text)[: -1 if is_cut else None]
        sampled.append(words)
        history.append(talk.read(words, "length" if is_cut else "stop", len(sampled) - 1, ()).message)
        assert history[-1].content == text
        following = talk.extend(history, [Message("user", answer)], (), sampled, "length" if is_cut else "stop")
        history.append(Message("user", answer))
        row += words + following.pieces[0].ids
        expected += f"{text}{'' if is_cut else '|'}\n{answer}\n"
    by_hand = [TOKENIZER.convert_tokens_to_ids("<eos>") if c == "|" else TOKENIZER.encode(c)[0] for c in expected]
    assert list(row) == by_hand


@pytest.mark.parametrize("observation", ["{text}", "\n", "{text}\n{text}"])
def test_an_observation_must_hold_its_text_once_and_more(observation):
    with pytest.raises(ValidationError, match=r"template.observation must hold"):
        Template(observation=observation)
    talk = plain(observation="Z{text}")
    assert text_of(talk.begin(SUM, [Message("user", "1+2=")], ())) == "1+2="
    for needs in (talk.require_observations, lambda: talk.begin(SUM, [Message(r, "1") for r in ROLES], ())):
        with pytest.raises(DataError, match=r"template.observation.*'Z'"):
            needs()
    with pytest.raises(ValidationError, match="did you mean tags"):
        Template(calls="tag")
