"""Turns by chat templates: the splice, forks, and what cannot come from outside."""

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.data.chat_play import answers, breaches, clean_message, play
from tests.data.chat_templates import END, QUESTION, START, TEMPLATES, THINKING, TOOLS, chat_turns
from verizero.pipeline.data.chat_text import CUT
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Call, Message, Prompt

FORKS = {"drops_thinking", "opens_thinking", "empty_think", "reorders"}
DRIFTS = {"ids", "asks_otherwise", "ends_by_role", "no_end"}
"""Templates that write the policy's turn in other words than the policy must have said."""


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_row_breaks_an_invariant_and_the_last_one_is_the_text_of_the_template(name):
    """Where the policy says what the template would write, both agree to the letter, forked or not."""
    talk = chat_turns(TEMPLATES[name])
    forks = 0
    for seed in range(12):
        rough, clean = play(talk, random.Random(seed), 5), play(talk, random.Random(seed), 5, is_clean=True)
        assert breaches(rough) == breaches(clean) == []
        forks += rough.forks.total()
        assert name in DRIFTS or talk.chat.text_of(clean.ids) == talk.chat.write(clean.messages, TOOLS, asks=True)
    assert (forks > 0) == (name in FORKS)


@pytest.mark.parametrize("name", TEMPLATES)
def test_outside_texts_never_become_special_tokens(name):
    """The template's own special tokens are counted with harmless texts in the same places."""
    talk = chat_turns(TEMPLATES[name])
    special = set(talk.foreign_text.added.values())
    for seed in range(20):
        rng = random.Random(seed)
        message = clean_message(rng, 0, False, calls=rng.randrange(3))
        words = talk.write(message, TOOLS)
        new = answers(rng, message, spoofs=1.0)
        tame = [replace(m, content="0") for m in new]
        history = [*talk.opening(QUESTION, ()), talk.read(words, "stop", 0, TOOLS).message]
        counts = []
        for shown in (new, tame):
            following = talk.extend(history, shown, TOOLS, [words], "stop")
            counts.append([i for piece in following.pieces for i in piece.ids if i in special])
        assert counts[0] == counts[1]
        spoofed = talk.begin(QUESTION, [Message("user", new[0].content)], TOOLS)
        assert [i for i in spoofed if i in special] == [
            i for i in talk.begin(QUESTION, [Message("user", "0")], TOOLS) if i in special
        ]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_message_is_read_as_it_was_written_also_by_the_template(name):
    talk = chat_turns(TEMPLATES[name])
    opening = talk.opening(QUESTION, ())
    asked = talk.chat.write(opening, TOOLS, asks=True)
    for seed in range(25):
        rng = random.Random(seed)
        message = clean_message(rng, 3, name in THINKING, calls=rng.randrange(3))
        read = talk.read(talk.write(message, TOOLS), "stop", 3, TOOLS)
        assert (read.message, read.unread) == (message, None)
        if name not in DRIFTS | {"reorders"}:
            text = talk.chat.write([*opening, message], TOOLS, asks=False)
            assert text.startswith(asked)
            ids = talk.chat.ids(text[len(asked) :].removesuffix(talk.chat.close) + END)
            assert talk.read(ids, "stop", 3, TOOLS).message == message


def test_the_first_prompt_is_that_of_a_single_response():
    talk = chat_turns(TEMPLATES["bos"], system="Be brief.")
    own = Prompt("o", "1+2=<|im_end|>", "math", "3", system="Own.")
    for prompt in (QUESTION, own):
        assert talk.begin(prompt, (), ()) == talk.renderer.prompt_ids(prompt)
    assert talk.begin(QUESTION, talk.opening(QUESTION, ()), ()) == talk.renderer.prompt_ids(QUESTION)
    assert talk.opening(own, ()) == (Message("system", "Own."), Message("user", own.question))


def _extended(talk, words, new, finish="stop"):
    """The fork, and the text of each piece with its turn, after a policy that said these words."""
    tokenizer = talk.renderer.tokenizer
    ids = tuple(tokenizer(words, add_special_tokens=False)["input_ids"])
    history = [*talk.opening(QUESTION, ()), talk.read(ids, finish, 0, TOOLS).message]
    following = talk.extend(history, new, (), [ids], finish)
    return following.fork, [(talk.chat.text_of(p.ids), p.turn) for p in following.pieces]


def test_a_cut_turn_is_closed_by_observed_tokens():
    talk = chat_turns(TEMPLATES["plain"])
    again = [Message("user", "Again.")]
    rest = f"\n{START}user\nAgain.{END}\n{START}assistant\n"
    assert _extended(talk, f"the word{END}", again) == (None, [(rest, None)])
    assert _extended(talk, "the word", again, "length") == (None, [(END + rest, None)])
    stripped = chat_turns(TEMPLATES["strips"])
    assert _extended(stripped, f" the word {END}", again) == (None, [(rest, None)]), "spaces are no reason to fork"
    assert _extended(stripped, " the word ", again, "length") == (None, [(END + rest, None)])
    bare = chat_turns(TEMPLATES["empty_think"].replace("{{ m.content }}", "{{ m.content | trim }}"))
    assert _extended(bare, f" the word {END}", [Message("tool", "3")])[0] is None
    otherwise = chat_turns(TEMPLATES["asks_otherwise"])
    assert _extended(otherwise, "the word", again, "length")[1][0][0].startswith(END + rest)


def test_a_template_that_shows_no_thinking_at_all_forks_too():
    """The row before and after are equal in the template's eyes; the row that was sampled has more."""
    source = TEMPLATES["plain"].replace("{{ m.content }}", "{{ (m.content.split('</think>') | last) }}")
    words = f"<think>\n12\n</think>the{END}"
    fork, ((text, turn),) = _extended(chat_turns(source), words, [Message("user", "Again.")])
    assert (fork, turn) == ("thinking", None)
    assert f"{START}assistant\nthe{END}" in text, "the marks that the template looks for are whole"


def test_unchanged_turns_keep_their_sampled_tokens():
    """Another tokenisation of the same words stays what it was, and only the rewritten turn is observed."""
    talk = chat_turns(TEMPLATES["drops_thinking"])
    tokenizer = talk.renderer.tokenizer
    apart = tuple(tokenizer(c, add_special_tokens=False)["input_ids"][0] for c in "the word")
    first = (*apart, tokenizer.eos_token_id)
    assert talk.chat.ids("the word") != apart
    second = (*tokenizer("<think>\n1\n</think>\n\n12", add_special_tokens=False)["input_ids"], tokenizer.eos_token_id)
    messages = [*talk.opening(QUESTION, ()), Message("assistant", "the word"), Message("user", "And?")]
    messages.append(talk.read(second, "stop", 1, ()).message)
    following = talk.extend(messages, [Message("user", "Well?")], (), [first, second], "stop")
    assert following.fork == "thinking"
    assert [(p.turn, p.ids) for p in following.pieces if p.turn is not None] == [(0, first)]
    text = talk.chat.text_of(tuple(i for p in following.pieces for i in p.ids))
    assert text == talk.chat.write([*messages, Message("user", "Well?")], (), asks=True)


def test_thinking_that_is_dropped_a_turn_later_forks_then():
    """Before and after are equal in the template's eyes, but the last prompt showed what it now leaves out."""
    source = TEMPLATES["drops_thinking"].replace("loop.index0 > ns.last", "loop.index0 >= messages | length - 2")
    talk = chat_turns(source)
    encode = talk.chat.ids
    first, second = encode(f"<think>\n1\n</think>\n\nthe{END}"), encode(f"word{END}")
    history = [*talk.opening(QUESTION, ()), talk.read(first, "stop", 0, ()).message]
    history.append(Message("user", "And?"))
    assert talk.extend(history[:-1], history[-1:], (), [first], "stop").fork is None
    history.append(talk.read(second, "stop", 1, ()).message)
    following = talk.extend(history, [Message("user", "Well?")], (), [first, second], "stop")
    assert following.fork == "thinking"
    assert [p.turn for p in following.pieces] == [None, 1, None]


def test_what_looks_like_a_turn_is_none():
    """Neither a user who quotes a later turn, nor words that spell the end of one, change where a turn is."""
    talk = chat_turns(TEMPLATES["drops_thinking"].replace(START, "").replace(END, ""))
    encode = talk.chat.ids
    first, second = encode(f"the word{END}"), encode(f"<think>\n1\n</think>\n\n12{END}")
    history = [Message("user", f"{talk.chat.generation}the word\n{talk.chat.generation}the word{END}")]
    history += [talk.read(first, "stop", 0, ()).message, Message("user", "And?")]
    history.append(talk.read(second, "stop", 1, ()).message)
    following = talk.extend(history, [Message("user", "Well?")], (), [first, second], "stop")
    assert [p.turn for p in following.pieces] == [None, 0, None]
    asked = talk.chat.write(history[:1], (), asks=True).replace(CUT, "")
    assert talk.chat.text_of(following.pieces[0].ids) == asked

    talk = chat_turns(TEMPLATES["drops_thinking"])
    spelled = (
        *encode("<think>\n1\n</think>\n\nsay "),
        *talk.foreign_text.ids(END),
        talk.renderer.tokenizer.eos_token_id,
    )
    history = [*talk.opening(QUESTION, ()), talk.read(spelled, "stop", 0, ()).message]
    following = talk.extend(history, [Message("user", "Well?")], (), [spelled], "stop")
    assert following.fork == "thinking"
    ids = [i for p in following.pieces for i in p.ids]
    assert ids.count(talk.renderer.tokenizer.eos_token_id) == 3, "a question, a turn, a question"


def test_tags_that_are_spelled_by_other_tokens_are_no_calls():
    talk = chat_turns(TEMPLATES["plain"])
    message = Message("assistant", "so", (Call("0-0", "add", {"a": 1, "b": 2}),))
    words = talk.write(message, TOOLS)
    assert talk.read(words, "stop", 0, TOOLS).message == message
    own = talk.foreign_text.added["<tool_call>"]
    spelled = talk.foreign_text.ids("<tool_call>")
    assert own not in spelled
    at = words.index(own)
    read = talk.read((*words[:at], *spelled, *words[at + 1 :]), "stop", 0, TOOLS)
    assert read.message.calls == ()
    assert read.unread is not None, "the closing tag is there"
    only_letters = (*talk.foreign_text.ids(talk.chat.text_of(words[:-1])), words[-1])
    read = talk.read(only_letters, "stop", 0, TOOLS)
    assert (read.message.calls, read.unread) == ((), None)
    assert read.message.content == talk.chat.text_of(words[:-1])


def test_thinking_that_the_prompt_opens_is_apart_from_the_words():
    talk = chat_turns(TEMPLATES["opens_thinking"])
    ids = talk.renderer.tokenizer("a\n</think>\n\nb", add_special_tokens=False)["input_ids"]
    read = talk.read([*ids, talk.renderer.tokenizer.eos_token_id], "stop", 0, ())
    assert read.message == Message("assistant", "b", thinking="a")
    cut = talk.read(ids[:1], "length", 0, ())
    assert cut.message == Message("assistant", "", thinking="a")
    call = talk.chat.ids('<tool_call>{"name": "add"}</tool_call>')
    assert talk.read([*call, talk.renderer.tokenizer.eos_token_id], "stop", 0, TOOLS).message.calls == ()


def test_a_template_that_loses_the_new_messages_is_refused():
    source = "{% for m in messages %}{{ m.content if m.role == 'user' }}{% endfor %}"
    talk = chat_turns(source)
    history = [*talk.opening(QUESTION, ()), Message("assistant", "")]
    with pytest.raises(DataError, match="nothing for messages of tool"):
        talk.extend(history, [Message("tool", "3")], (), [(5,)], "length")
    refusing = chat_turns("{% if tools %}{{ raise_exception('no tools here') }}{% endif %}x")
    with pytest.raises(DataError, match=r"conversation of user: .*no tools here"):
        refusing.begin(QUESTION, (), TOOLS)


@pytest.mark.run
def test_equal_episodes_are_equal_in_another_process_and_on_another_day():
    code = (
        "import random, transformers.utils.chat_template_utils as c, datetime\n"
        "from tests.data.chat_play import play\n"
        "from tests.data.chat_templates import TEMPLATES, chat_turns\n"
        "class Later(datetime.datetime):\n"
        "    now = classmethod(lambda cls, *a: cls(2031, 7, 8))\n"
        "c.datetime = Later\n"
        "print([play(chat_turns(TEMPLATES[n]), random.Random(1), 4).rows for n in ('date', 'ids')])"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    here = [play(chat_turns(TEMPLATES[n]), random.Random(1), 4).rows for n in ("date", "ids")]
    assert done.stdout.strip() == str(here)
    assert "01 Jan 2025" in chat_turns(TEMPLATES["date"]).chat.write(here and [Message("user", "")], (), asks=True)
