"""Short texts with demands that a program can check: `Write one question with the word "rain".`

Every text must have the word that it is about, and most must have five words or more: a fragment meets no demand. The
words of held-out tasks are in no training task. For models that are pretrained: nothing is demonstrated.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from verizero.pipeline.data.generators.base import GeneratorParams, Row, Split
from verizero.pipeline.seeds import stream

Kind = Literal["include", "start", "question", "short", "without", "two_sentences", "title", "numbered"]
Made = tuple[str, list[dict[str, Any]]]
"""A wish, and the constraints of a text that meets it."""

ABOUT: tuple[str, ...] = (
    *("rain", "music", "coffee", "winter", "bread", "moon", "train", "river", "garden", "teacher", "doctor", "forest"),
    *("library", "football", "chess", "sun", "bridge", "city", "farm", "horse", "school", "milk", "snow", "bird"),
    *("tree", "ship", "market", "dog", "cat", "sea", "kitchen", "letter", "window", "mountain", "summer", "apple"),
    *("island", "castle", "road", "painter", "village", "dinner", "clock", "storm", "song", "flower", "lake", "hotel"),
    *("museum", "bicycle", "soup", "desert", "camera", "valley", "king", "beach", "piano", "cloud", "star", "baker"),
)
OTHERS = ("old", "small", "quiet", "bright", "early", "happy", "green", "slow", "warm", "often", "people", "morning")
FIRST = ("Today", "Sometimes", "Every", "In", "When", "My", "Many", "Our", "Yesterday", "The")
LEFT_OUT = ("the", "a", "and", "of", "is")
WORKS = ("story", "poem", "film", "song", "book")
ONE_SENTENCE: dict[str, Any] = {"type": "sentences", "min": 1, "max": 1}
WHOLE: dict[str, Any] = {"type": "words", "min": 5}


class Params(GeneratorParams):
    """The number of tasks, and what is demanded."""

    num_train: int = Field(300, ge=1)
    num_evaluation: int = Field(64, ge=0)
    num_words: int = Field(12, ge=1, lt=len(ABOUT), description="words that only held-out tasks are about")
    kinds: tuple[Kind, ...] = Field(get_args(Kind), min_length=1)

    @model_validator(mode="after")
    def _fits(self) -> Params:
        num_kinds = len(set(self.kinds))
        for name, number, words in (
            ("num_train", self.num_train, len(ABOUT) - self.num_words),
            ("num_evaluation", self.num_evaluation, self.num_words),
        ):
            # a question about a word is one task, other kinds have several: this many there are of every kind
            if number > num_kinds * words:
                raise ValueError(
                    f"{name} must be <= {num_kinds * words}: {num_kinds} kinds about {words} words, got {number}; "
                    "lower it, name more kinds, or change num_words"
                )
        return self


def rows(params: Params, seed: int) -> Split:
    """Training and evaluation rows. Kinds take turns, in both alike."""
    rng = stream(seed, "data", "instructions")
    words = rng.sample(ABOUT, len(ABOUT))
    held_out = _tasks(params.kinds, words[: params.num_words], params.num_evaluation, rng)
    return Split(_tasks(params.kinds, words[params.num_words :], params.num_train, rng), held_out, [])


def _tasks(kinds: tuple[Kind, ...], words: list[str], number: int, rng: random.Random) -> list[Row]:
    """Return tasks of which no two have the same kind and word."""
    kinds = tuple(dict.fromkeys(kinds))
    return [
        _row(kinds[i % len(kinds)], words[(i // len(kinds) + i % len(kinds)) % len(words)], rng) for i in range(number)
    ]


def _include(about: str, rng: random.Random) -> Made:
    other = rng.choice(OTHERS)
    wish = f'Write one sentence with the words "{about}" and "{other}".'
    return wish, [{"type": "keywords", "include": [other]}, ONE_SENTENCE, WHOLE]


def _start(about: str, rng: random.Random) -> Made:
    first = rng.choice(FIRST)
    wish = f'Write one sentence with the word "{about}". Begin it with the word "{first}".'
    return wish, [{"type": "first_word", "word": first}, ONE_SENTENCE, WHOLE]


def _question(about: str, rng: random.Random) -> Made:
    return f'Write one question with the word "{about}".', [{"type": "edges", "end": "?"}, ONE_SENTENCE, WHOLE]


def _short(about: str, rng: random.Random) -> Made:
    most = rng.randint(7, 12)
    wish = f'Write one sentence with the word "{about}". Use at most {most} words.'
    return wish, [{"type": "words", "min": 5, "max": most}, ONE_SENTENCE]


def _without(about: str, rng: random.Random) -> Made:
    other = rng.choice(LEFT_OUT)
    wish = f'Write one sentence with the word "{about}" and without the word "{other}".'
    return wish, [{"type": "keywords", "exclude": [other]}, ONE_SENTENCE, WHOLE]


def _two_sentences(about: str, rng: random.Random) -> Made:
    return f'Write two sentences with the word "{about}".', [{"type": "sentences", "min": 2, "max": 2}, WHOLE]


def _title(about: str, rng: random.Random) -> Made:
    wish = f'Write a title of a {rng.choice(WORKS)} with the word "{about}", in double angle brackets: <<title>>'
    return wish, [{"type": "title"}, {"type": "lines", "max": 1}]


def _numbered(about: str, rng: random.Random) -> Made:
    number = rng.choice((2, 3))
    wish = f'Write a numbered list of {number} facts with the word "{about}".'
    return wish, [{"type": "bullets", "min": number, "max": number}, WHOLE]


MAKERS: dict[Kind, Callable[[str, random.Random], Made]] = {
    "include": _include,
    "start": _start,
    "question": _question,
    "short": _short,
    "without": _without,
    "two_sentences": _two_sentences,
    "title": _title,
    "numbered": _numbered,
}


def _row(kind: Kind, about: str, rng: random.Random) -> Row:
    wish, constraints = MAKERS[kind](about, rng)
    return {
        "id": f"instructions/{kind}/{wish}",
        "question": wish,
        "answer": [{"type": "keywords", "include": [about]}, *constraints],
        "domain": "instructions",
        "verifier": "instructions",
    }
