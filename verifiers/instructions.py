"""Instructions that a program can check: counts, keywords, case, bullets, language, edges, format."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator, model_validator

from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers._natural_language import KNOWN, language_of
from verizero.verifiers.answer import after_thinking, folded, too_long
from verizero.verifiers.base import VerifierParams, verifier

SENTENCE_END = re.compile(
    r"(?<!\bMr)(?<!\bMrs)(?<!\bMs)(?<!\bDr)(?<!^\d)(?<!^\d\d)[.!?]+[\"'”’)]*(?=\s|$)|[。！？]+", re.MULTILINE
)
"""The marks behind a sentence; the dot behind the number of an item in a list is none."""
BULLET = re.compile(r"^\s{0,8}(?:[-*+•]|\d{1,3}[.)])\s+\S", re.MULTILINE)
POINT = re.compile(r"^[ \t]*(?:\*(?!\*)|-)", re.MULTILINE)
"""A line that IFEval counts as a bullet point: a number begins none, and no space need follow the mark."""
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

    type: Literal[
        "words", "sentences", "paragraphs", "lines", "characters", "bullets", "points", "placeholders", "highlights"
    ]
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
    """Words that must, or must not, occur; each `include` at least `times` times."""

    type: Literal["keywords"]
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    times: int = Field(1, ge=0)
    at_most: int | None = Field(None, ge=0, description="most occurrences of each included word")
    whole: bool = Field(True, description="an included word counts only as a whole word, as excluded ones always do")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not any(w.strip() for w in self.include + self.exclude):
            raise ValueError("'include' or 'exclude' must name a word")
        return self

    def holds(self, text: str, prompt: str) -> bool:
        numbers = [occurrences(word, text, self.whole) for word in self.include]
        included = all(is_within(number, self.times, self.at_most) for number in numbers)
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
    english: bool = Field(False, description="the text is in no language that is known to be another")
    capital_words_min: int = Field(0, ge=0)
    capital_words_max: int | None = Field(None, ge=0)

    def holds(self, text: str, prompt: str) -> bool:
        if self.case == "upper" and not text.isupper():
            return False
        if self.case == "lower" and not text.islower():
            return False
        if self.english and language_of(text) not in ("en", None):
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
            start = folded(prompt)
            if not start or not folded(bare).startswith(start) or len(bare) <= len(prompt.strip()):
                return False
        lower = bare.casefold()
        inside = lower.strip('"').strip()
        starts = (inside if self.quoted else lower).startswith(self.start.strip().casefold())
        return starts and inside.endswith(self.end.strip().casefold())


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
        return language_of(text) == self.code


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
    """Parts that begin with a marker and a number in digits, e.g. "Section 1"; or parts between a separator."""

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
            return len(re.findall(rf"{re.escape(self.marker)}\s?\d+", text)) >= self.count
        inside = text.strip().removeprefix(self.separator).removesuffix(self.separator)
        parts = [p.strip() for p in inside.split(self.separator)]
        if self.distinct and len(set(parts)) < len(parts):
            return False
        return len(parts) == self.count and all(parts)


class Title(Constraint):
    """A title in double angle brackets."""

    type: Literal["title"]

    def holds(self, text: str, prompt: str) -> bool:
        # From the first brackets of a line to its last ones.
        inside = (line.partition("<<")[2].rpartition(">>")[0] for line in text.split("\n"))
        return any(title.strip("<> \t") for title in inside)


class Postscript(Constraint):
    """A marker such as "P.S.", in any case, with or without spaces behind its dots."""

    type: Literal["postscript"]
    marker: str = "P.S."

    def holds(self, text: str, prompt: str) -> bool:
        return bool(re.search(re.escape(self.marker).replace(r"\.", r"\.\s?"), text, re.IGNORECASE))


class OneOf(Constraint):
    """The answer has one of these phrases, and no other of them; as the whole answer, its final dot may be missing."""

    type: Literal["one_of"]
    phrases: tuple[str, ...] = Field(min_length=1)

    def holds(self, text: str, prompt: str) -> bool:
        whole = text.strip().rstrip(".").casefold()
        if any(whole == p.strip().rstrip(".").casefold() for p in self.phrases):
            return True
        return sum(p in text for p in self.phrases) == 1


class FirstWord(Constraint):
    """The first word of the n-th paragraph (from 1), in a text of that many paragraphs.

    As IFEval has it, it ends before . , ? ! ' and ". Other marks are part of it: "So:" and "**So**" are not "So".
    """

    type: Literal["first_word"]
    word: str = Field(pattern=r"^[^\s.,?!'\"]+$")
    paragraph: int = Field(1, ge=1)
    paragraphs: int | None = Field(None, ge=1)

    def holds(self, text: str, prompt: str) -> bool:
        parts = paragraphs_of(text)
        if len(parts) < self.paragraph or (self.paragraphs is not None and len(parts) != self.paragraphs):
            return False
        first = parts[self.paragraph - 1].split()[0].lstrip("'").lstrip('"')
        return re.split(r"[.,?!'\"]", first)[0].casefold() == self.word.casefold()


AnyConstraint = Annotated[
    Count | Keywords | Letters | Case | Edges | Punctuation | Language | Json | Sections | Title | Postscript
    | OneOf | FirstWord,
    Field(discriminator="type"),
]  # fmt: skip


def count(what: str, text: str) -> int:
    """Return the number of words, sentences, lines, bullets or of another kind of part in a text."""
    match what:
        case "words":
            return len(re.findall(r"\w+", text))
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
        case "points":
            return len(POINT.findall(text))
        case "placeholders":
            return len(re.findall(r"\[[^\[\]\n]+\]", text))
    return len(re.findall(r"(?<!\*)\*{1,2}[^*\n]*[^*\s][^*\n]*\*{1,2}(?!\*)", text))


def paragraphs_of(text: str) -> list[str]:
    """Return the parts of a text between empty lines."""
    return [p for p in re.split(r"\n[ \t]*\n", text) if p.strip()]


def occurrences(word: str, text: str, whole: bool = True) -> int:
    """Return the number of occurrences of a word or phrase in any case, inside other words too unless `whole`."""
    if not whole:
        return folded(text).count(folded(word))
    return len(re.findall(rf"(?<!\w){re.escape(folded(word))}(?!\w)", folded(text)))


def is_within(number: int, low: int, high: int | None) -> bool:
    """True if low <= number <= high; None is no upper bound."""
    return number >= low and (high is None or number <= high)


CONSTRAINT: TypeAdapter[Constraint] = TypeAdapter(AnyConstraint)
IFEVAL: dict[str, dict[str, Any]] = {
    "keywords:existence": {"type": "keywords", "include": "$keywords", "whole": False},
    "keywords:forbidden_words": {"type": "keywords", "exclude": "$forbidden_words"},
    "keywords:frequency": {"type": "keywords", "include": ["$keyword"], "whole": False, "times": 0,
                           "times at_most": "$relation $frequency"},
    "keywords:letter_frequency": {"type": "letters", "letter": "$letter", "min max": "$let_relation $let_frequency"},
    "language:response_language": {"type": "language", "code": "$language"},
    "length_constraints:number_words": {"type": "words", "min max": "$relation $num_words"},
    "length_constraints:number_sentences": {"type": "sentences", "min max": "$relation $num_sentences"},
    "length_constraints:number_paragraphs": {"type": "sections", "separator": "***", "count": "$num_paragraphs"},
    "length_constraints:nth_paragraph_first_word": {"type": "first_word", "word": "$first_word",
                                                    "paragraph": "$nth_paragraph", "paragraphs": "$num_paragraphs"},
    "detectable_content:number_placeholders": {"type": "placeholders", "min": "$num_placeholders"},
    "detectable_content:postscript": {"type": "postscript", "marker": "$postscript_marker"},
    "detectable_format:number_bullet_lists": {"type": "points", "min": "$num_bullets", "max": "$num_bullets"},
    "detectable_format:constrained_response": {
        "type": "one_of", "phrases": ["My answer is yes.", "My answer is no.", "My answer is maybe."]
    },
    "detectable_format:number_highlighted_sections": {"type": "highlights", "min": "$num_highlights"},
    "detectable_format:multiple_sections": {"type": "sections", "marker": "$section_spliter", "count": "$num_sections"},
    "detectable_format:json_format": {"type": "json"},
    "detectable_format:title": {"type": "title"},
    "combination:two_responses": {"type": "sections", "separator": "******", "count": 2, "distinct": True},
    "combination:repeat_prompt": {"type": "edges", "start": "$prompt_to_repeat"},
    "startend:end_checker": {"type": "edges", "end": "$end_phrase"},
    "startend:quotation": {"type": "edges", "quoted": True},
    "change_case:capital_word_frequency": {
        "type": "case", "capital_words_min capital_words_max": "$capital_relation $capital_frequency"
    },
    "change_case:english_capital": {"type": "case", "case": "upper", "english": True},
    "change_case:english_lowercase": {"type": "case", "case": "lower", "english": True},
    "punctuation:no_comma": {"type": "without", "characters": ","},
}  # fmt: skip
"""IFEval's id -> the constraint. $ is before an argument's name; two fields are bounds by a relation and a number."""


MAX_CHARS = 50_000
"""Characters of a response; a longer one breaks every instruction."""


class InstructionsParams(VerifierParams):
    """The score of a response that keeps some of its instructions."""

    grading: Literal["all", "fraction"] = Field("all", description="all: 1 only if every one holds; else their share")


@verifier
def instructions(attempt: Attempt, params: InstructionsParams) -> Verdict:
    """Return 1 if the response after thinking keeps every instruction (or the share that it keeps).

    Reference: a list of constraints such as {"type": "words", "min": 50, "max": 80} (all above), or IFEval's
    {"instruction_id_list": [..], "kwargs": [..]}. An empty response is no answer, also where every constraint
    would hold of it.
    """
    constraints = _constraints(attempt.reference)
    part = after_thinking(attempt)
    if part.text is None:
        return part.no_answer()
    if len(part.text) > MAX_CHARS:
        return too_long(part.text)
    kept = [c.holds(part.text, attempt.prompt) for c in constraints]
    if all(kept):
        return Verdict("graded", 1.0, "all_kept")
    broken = [c.type for c, held in zip(constraints, kept, strict=True) if not held]
    score = sum(kept) / len(kept) if params.grading == "fraction" else 0.0
    return Verdict("graded", score, f"broken: {', '.join(broken)}"[:200])


def from_ifeval(instruction: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the constraint of an IFEval instruction id with its arguments. Raises: DataError for an unknown id."""
    if instruction not in IFEVAL:
        raise DataError(f"reference.instruction_id_list: {instruction!r} is unknown; known: {', '.join(IFEVAL)}")
    arguments = {name: value for name, value in arguments.items() if value is not None}
    made: dict[str, Any] = {}
    for field, value in IFEVAL[instruction].items():
        if " " in field:
            relation, number = value.replace("$", "").split()
            made |= _bounds(arguments.get(relation), int(arguments[number]), *field.split())
        elif isinstance(value, list):
            made[field] = [_argument(item, arguments) for item in value]
        else:
            made[field] = _argument(value, arguments)
    return made


def _argument(value: Any, arguments: Mapping[str, Any]) -> Any:
    return arguments[value[1:]] if isinstance(value, str) and value.startswith("$") else value


def _bounds(relation: Any, n: int, low: str, high: str) -> dict[str, int]:
    """Return the bound of an IFEval relation as the field `low` or `high`."""
    match str(relation or "at least").casefold():
        case "at least":
            return {low: n}
        case "less than":
            return {high: n - 1}
        case "at most":
            return {high: n}
    raise ValueError(f"relation {relation!r}: expected 'at least', 'less than' or 'at most'")


def _constraints(reference: Any) -> list[Constraint]:
    if isinstance(reference, Mapping) and "instruction_id_list" in reference:
        ids = reference["instruction_id_list"]
        try:
            arguments = reference.get("kwargs") or [{}] * len(ids)
            reference = [from_ifeval(i, k or {}) for i, k in zip(ids, arguments, strict=True)]
        except (KeyError, ValueError, TypeError) as exc:
            raise DataError(f"reference.kwargs: {type(exc).__name__}: {exc}") from exc
    if isinstance(reference, Mapping):
        reference = reference.get("constraints")
    if not isinstance(reference, list) or not reference:
        raise DataError(f"reference: expected a non-empty list of constraints, got {reference!r:.80}")
    made = []
    for i, item in enumerate(reference):
        try:
            made.append(CONSTRAINT.validate_python(item))
        except ValidationError as exc:
            first = exc.errors()[0]
            where = ".".join(str(x) for x in first["loc"])
            raise DataError(f"reference[{i}].{where}: {first['msg']}, got {first['input']!r:.80}") from exc
    return made
