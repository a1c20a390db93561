"""Random conversations with a template: a policy that says anything, and the rows that result."""

from collections import Counter
from dataclasses import dataclass, field

from tests.data.chat_templates import END, QUESTION, START, TOOLS
from verizero.pipeline.data.chat_text import CUT
from verizero.pipeline.types import Call, Message

WORDS = ["the", " word", "12", " 1 2", "\n", "\n\n", "é", "…", " <b>", "{", '"', "a:"]
SPOOFS = [END, START, "<tool_call>", "</think>", "<think>", "assistant: 12", f"{END}\n{START}assistant\n12", "<s>", CUT]

Ids = tuple[int, ...]


@dataclass
class Played:
    """An episode as it was played."""

    rows: list[list[tuple[Ids, int | None]]] = field(default_factory=lambda: [[]])
    """Pieces with the turn that sampled them, None for observed ones."""
    sampled: list[Ids] = field(default_factory=list)
    prompts: list[Ids] = field(default_factory=list)
    """The tokens that the engine was given for each turn."""
    messages: list[Message] = field(default_factory=list)
    forks: Counter[str] = field(default_factory=Counter)

    @property
    def ids(self):
        """The tokens of the last row."""
        return tuple(i for ids, _ in self.rows[-1] for i in ids)


def random_text(rng, spoofs=0.2):
    """A few words, and now and then the text of a special token."""
    parts = rng.choices(WORDS, k=rng.randrange(5))
    return "".join([*parts, *([rng.choice(SPOOFS)] if rng.random() < spoofs else [])])


def clean_message(rng, turn, thinks, calls, one_call=False):
    """A message as a template would write it back: no spaces at its ends, no marks."""
    content = " ".join(rng.choices(["the", "word", "12", "é"], k=rng.randrange(1, 4)))
    made = tuple(
        Call(f"{turn}-{n}", "add", {"a": rng.randrange(99), "b": -1}) if rng.random() < 0.7
        else Call(f"{turn}-{n}", "look", {"path": f"x {n}"})
        for n in range(calls)
    )  # fmt: skip
    thinking = f"so {rng.randrange(99)}" if thinks and rng.random() < 0.7 else None
    return Message("assistant", "" if one_call and made else content, made, thinking=thinking)


def answers(rng, message, spoofs=0.2, user=0.4):
    """What an environment answers: one message for each call, else a user's."""
    if message.calls:
        return [Message("tool", random_text(rng, spoofs) or "0", answers=c.id, name=c.name) for c in message.calls]
    return [Message("user", random_text(rng, spoofs) or "and?")]


def play(
    talk, rng, num_turns, *, is_clean = False, thinks = True,
    tools = TOOLS, one_call = False,
):  # fmt: skip
    """Play an episode. `is_clean`: the policy speaks as the template writes, and nobody writes special tokens.

    `one_call`: a turn has one call at most, and no words next to it.
    """
    played = Played()
    system = [Message("system", "Be brief.")] if rng.random() < 0.5 else []
    first = [*system, Message("user", "What is 1+2?")] if rng.random() < 0.5 else []
    played.messages += talk.opening(QUESTION, first)
    played.rows[-1].append((talk.begin(QUESTION, first, tools), None))
    for turn in range(num_turns):
        played.prompts.append(played.ids)
        calls = min(rng.choice([0, 1, 1, 2]), 1 if one_call else 2) if tools else 0
        words = talk.write(clean_message(rng, turn, thinks, calls, one_call), tools)
        finish = "stop"
        if not is_clean and rng.random() < 0.5:
            tokenizer = talk.renderer.tokenizer
            words = (*tokenizer(random_text(rng), add_special_tokens=False)["input_ids"], tokenizer.eos_token_id)
        if not is_clean and rng.random() < 0.2 and len(words) > 1:
            words, finish = words[: rng.randrange(1, len(words))], "length"
        played.sampled.append(words)
        played.rows[-1].append((words, turn))
        message = talk.read(words, finish, turn, tools).message
        played.messages.append(message)
        new = answers(rng, message, 0.0 if is_clean else 0.3)
        take(played, talk.extend(played.messages, new, tools, played.sampled, finish))
        played.messages += new
        expected = talk.chat.write(played.messages, tools, asks=True).replace(CUT, "")
        assert expected.endswith(talk.chat.text_of(played.rows[-1][-1][0])), "the observation is not the template's"
    return played


def take(played, following):
    """Continue the row, or begin another; refuse what an engine's row could not be."""
    if following.fork is None:
        (piece,) = following.pieces
        assert piece.turn is None
        assert piece.ids, "a turn must be asked for"
        played.rows[-1].append((piece.ids, None))
        return
    played.forks[following.fork] += 1
    row = [(p.ids, p.turn) for p in following.pieces]
    assert all(ids for ids, _ in row)
    assert row[-1][1] is None
    assert all(turn is None or row[n - 1][1] is None for n, (_, turn) in enumerate(row)), "nothing asks for a turn"
    kept = [turn for _, turn in row if turn is not None]
    assert kept == sorted(set(kept))
    played.rows.append(row)


def breaches(played):
    """Every breach of the invariants of rows, in words."""
    out = []
    trained = Counter()
    for row in played.rows:
        held = ()
        for ids, turn in row:
            if turn is not None:
                if played.sampled[turn] != ids:
                    out.append(f"turn {turn} has other tokens than were sampled")
                is_new = trained[turn] == 0 and held == played.prompts[turn]
                trained[turn] += is_new
                if trained[turn] == 0:
                    out.append(f"turn {turn} is context before it was sampled")
            held += ids
    if trained != Counter(range(len(played.sampled))):
        out.append(f"turns train {dict(trained)} times")
    return out
