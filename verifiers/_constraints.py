"""Constraints on a text that a program can check. Each is a small model, which data names by `type`."""

from __future__ import annotations

import json
import re
import string
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from verizero.verifiers._natural_language import KNOWN, is_written_in

SENTENCE_END = re.compile(r"[.!?]+[\"'”’)]*(?=\s|$)|[。！？]+")
BULLET = re.compile(r"^\s{0,8}(?:[-*+•]|\d{1,3}[.)])\s+\S", re.MULTILINE)
WORD = re.compile(r"[^\W_]+(?:['’\-][^\W_]+)*")


class Constraint(BaseModel):
    """Base of the constraints: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    type: Any

    def holds(self, text: str, prompt: str) -> bool:
        """True if `text`, written for `prompt`, meets the constraint."""
        raise NotImplementedError


class Count(Constraint):
    """The number of words, sentences, ...: at least `min`, at most `max`."""

    type: Literal["words", "sentences", "paragraphs", "lines", "characters", "bullets", "placeholders", "highlights"]
    min: int = Field(0, ge=0)
    max: int | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.min == 0 and self.max is None:
            raise ValueError("'min', 'max' or both must be given")
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max {self.max} is below min {self.min}")
        return self

    def holds(self, text: str, prompt: str) -> bool:
        return is_within(count(self.type, text), self.min, self.max)


class Keywords(Constraint):
    """Words that must, or must not, occur as whole words; each `include` at least `times` times."""

    type: Literal["keywords"]
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    times: int = Field(1, ge=0)
    at_most: int | None = Field(None, ge=0, description="most occurrences of each included word")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not any(w.strip() for w in self.include + self.exclude):
            raise ValueError("'include' or 'exclude' must name a word")
        return self

    def holds(self, text: str, prompt: str) -> bool:
        included = all(is_within(occurrences(word, text), self.times, self.at_most) for word in self.include)
        return included and not any(occurrences(word, text) for word in self.exclude)


class Letters(Constraint):
    """The occurrences of a letter (or any one character), in either case."""

    type: Literal["letters"]
    letter: str = Field(min_length=1, max_length=1)
    min: int = Field(0, ge=0)
    max: int | None = Field(None, ge=0)

    def holds(self, text: str, prompt: str) -> bool:
        return is_within(text.casefold().count(self.letter.casefold()), self.min, self.max)


class Case(Constraint):
    """All letters upper or lower case, or a number of words in capitals."""

    type: Literal["case"]
    case: Literal["upper", "lower"] | None = None
    capital_words_min: int = Field(0, ge=0)
    capital_words_max: int | None = Field(None, ge=0)

    def holds(self, text: str, prompt: str) -> bool:
        if self.case == "upper" and not text.isupper():
            return False
        if self.case == "lower" and not text.islower():
            return False
        num_capitals = sum(w.isupper() for w in WORD.findall(text))
        return is_within(num_capitals, self.capital_words_min, self.capital_words_max)


class Edges(Constraint):
    """The start and end of the text, and quotation marks around all of it."""

    type: Literal["edges"]
    start: str = ""
    end: str = ""
    quoted: bool = False
    repeat_prompt: bool = Field(False, description="the text repeats the prompt, word for word, and then continues")

    def holds(self, text: str, prompt: str) -> bool:
        bare = text.strip()
        if self.quoted and not (len(bare) > 2 and bare[0] == bare[-1] == '"'):
            return False
        if self.repeat_prompt:
            start = _folded(prompt)
            if not start or not _folded(bare).startswith(start) or len(bare) <= len(prompt.strip()):
                return False
        folded = bare.strip('"').strip().casefold() if self.quoted else bare.casefold()
        return folded.startswith(self.start.casefold()) and folded.endswith(self.end.casefold())


class Punctuation(Constraint):
    """Characters that must not occur."""

    type: Literal["without"]
    characters: str = Field(min_length=1)

    def holds(self, text: str, prompt: str) -> bool:
        return not set(self.characters) & set(text)


class Language(Constraint):
    """The language of the text, as an ISO 639-1 code."""

    type: Literal["language"]
    code: str

    @field_validator("code")
    @classmethod
    def _known(cls, code: str) -> str:
        if code not in KNOWN:
            raise ValueError(f"language {code!r} is not one of {', '.join(sorted(KNOWN))}")
        return code

    def holds(self, text: str, prompt: str) -> bool:
        return is_written_in(text, self.code)


class Json(Constraint):
    """The whole text (or its one fence) is JSON."""

    type: Literal["json"]

    def holds(self, text: str, prompt: str) -> bool:
        bare = text.strip()
        if bare.startswith("```") and bare.endswith("```") and "\n" in bare:
            bare = bare[bare.index("\n") + 1 : -3]
        try:
            json.loads(bare)
        except (ValueError, RecursionError):
            return False
        return True


class Sections(Constraint):
    """Parts that begin with a marker and a number, e.g. "Section 1"; or parts between a separator."""

    type: Literal["sections"]
    marker: str = ""
    separator: str = ""
    count: int = Field(ge=1)
    distinct: bool = Field(False, description="no two parts between the separators are equal")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if bool(self.marker) == bool(self.separator):
            raise ValueError("give either 'marker' or 'separator'")
        return self

    def holds(self, text: str, prompt: str) -> bool:
        if self.marker:
            marker = rf"^\W*{re.escape(self.marker)}\s+(?:\d+|[IVX]+)\b"
            return len(re.findall(marker, text, re.MULTILINE | re.IGNORECASE)) >= self.count
        parts = [p.strip() for p in text.strip().removeprefix(self.separator).split(self.separator)]
        if self.distinct and len(set(parts)) < len(parts):
            return False
        return len(parts) == self.count and all(parts)


class Title(Constraint):
    """A title in double angle brackets on a line of its own."""

    type: Literal["title"]

    def holds(self, text: str, prompt: str) -> bool:
        return bool(re.search(r"^\s*<<[^<>\n]*\w[^<>\n]*>>\s*$", text, re.MULTILINE))


class Postscript(Constraint):
    """A last part that begins with a marker such as "P.S."."""

    type: Literal["postscript"]
    marker: str = "P.S."

    def holds(self, text: str, prompt: str) -> bool:
        return bool(re.search(rf"^\s*{re.escape(self.marker)}\s*\S", text, re.MULTILINE | re.IGNORECASE))


class OneOf(Constraint):
    """The whole answer is one of these phrases, a final dot aside."""

    type: Literal["one_of"]
    phrases: tuple[str, ...] = Field(min_length=1)

    def holds(self, text: str, prompt: str) -> bool:
        return any(text.strip().rstrip(".").casefold() == p.strip().rstrip(".").casefold() for p in self.phrases)


class FirstWord(Constraint):
    """The first word of the n-th paragraph (from 1), in a text of that many paragraphs."""

    type: Literal["first_word"]
    word: str = Field(min_length=1)
    paragraph: int = Field(1, ge=1)
    paragraphs: int | None = Field(None, ge=1)

    def holds(self, text: str, prompt: str) -> bool:
        parts = paragraphs_of(text)
        if len(parts) < self.paragraph or (self.paragraphs is not None and len(parts) != self.paragraphs):
            return False
        first = parts[self.paragraph - 1].split()[0].strip(string.punctuation + "“”‘’")
        return first.casefold() == self.word.casefold()


AnyConstraint = Annotated[
    Count | Keywords | Letters | Case | Edges | Punctuation | Language | Json | Sections | Title | Postscript
    | OneOf | FirstWord,
    Field(discriminator="type"),
]  # fmt: skip


def count(what: str, text: str) -> int:
    """Return the number of words, sentences, paragraphs, lines, characters, bullets, [placeholders] or *highlights*."""
    match what:
        case "words":
            return len(WORD.findall(text))
        case "sentences":
            return len([s for s in SENTENCE_END.split(text) if WORD.search(s)])
        case "paragraphs":
            return len(paragraphs_of(text))
        case "lines":
            return sum(bool(line.strip()) for line in text.splitlines())
        case "characters":
            return len(text.strip())
        case "bullets":
            return len(BULLET.findall(text))
        case "placeholders":
            return len(re.findall(r"\[[^\[\]\n]+\]", text))
    return len(re.findall(r"(?<!\*)\*{1,2}[^*\n]*[^*\s][^*\n]*\*{1,2}(?!\*)", text))


def paragraphs_of(text: str) -> list[str]:
    """Return the parts of a text between empty lines."""
    return [p for p in re.split(r"\n[ \t]*\n", text) if p.strip()]


def occurrences(word: str, text: str) -> int:
    """Return the number of whole occurrences of a word or phrase, in any case."""
    return len(re.findall(rf"(?<!\w){re.escape(_folded(word))}(?!\w)", _folded(text)))


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()


def is_within(number: int, low: int, high: int | None) -> bool:
    """True if low <= number <= high; None is no upper bound."""
    return number >= low and (high is None or number <= high)


def bounds(relation: Any, n: int) -> dict[str, int]:
    """Return `min` and `max` of an IFEval relation ("at least", "less than", "at most")."""
    match str(relation or "at least").casefold():
        case "at least":
            return {"min": n}
        case "less than":
            return {"max": n - 1}
        case "at most":
            return {"max": n}
    raise ValueError(f"relation {relation!r}: expected 'at least', 'less than' or 'at most'")
