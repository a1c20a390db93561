"""Find marked parts of a response: thinking, boxes, tags, code fences. Every scan is linear in the text's length."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from verizero.pipeline.fences import blocks_in
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.answer import hedges
from verizero.verifiers.answer.words import OTHER_PROSE

MAX_TAIL = 20_000
"""Maximum of characters that are read, from the end."""
MAX_BOXES = 20
"""Boxes that are joined to one list; more are a flood."""
OPENING_TAGS = ("<think>", "<thinking>")
OPENING, CLOSING, TAG = (re.compile(rf"<{slash}think(?:ing)?>") for slash in ("", "/", "/?"))
BOX_PARTS = re.compile(r"\\(?:boxed|fbox)\s{0,3}(\{)?|\\.|[{}]", re.DOTALL)
BARE_BOX = re.compile(r"[+-]?[A-Za-z0-9.]{1,40}")
BETWEEN = re.compile(
    r"(?:[\s,;$&]|\\[()\[\],;! ]|\\q?quad|(?:\\(?:text|mathrm|textrm)\s?\{)?\s{0,3}\b(?:or|and)\b\s{0,3}\}?){0,30}"
    r"(?:(?<=[\s$,])[A-Za-z](?:_\{?\d\}?)?\s?=\s?\$?\s?)?",
    re.IGNORECASE,
)
"""Text between two boxes that makes them one list: "or", "and", commas, the name of the next value."""
HIDING = re.compile(r"[\"'`#]|//|--")
"""Marks of strings and comments of the languages that programs are written in."""
END_TOKENS = re.compile(
    r"(?:\s{0,9}(?:<\|[A-Za-z_]{1,40}\|>|<｜[^<>|｜]{1,40}｜>|</s>|<eos>|<end_of_turn>|<end_of_utterance>)){1,9}\Z"
)
"""End tokens that a decoder may have left in the text."""
FILLERS = frozenset("\u115f\u1160\u2800\u3164\uffa0\u034f")
"""Invisible characters whose Unicode category is a letter or mark."""
MAX_LAYERS = 16
"""Maximum of layers of decoration that are removed; each costs a pass over the text."""
STYLES = ("\\text{", "\\textbf{", "\\mathrm{", "\\mathbf{", "\\boxed{", "\\fbox{")


@dataclass(frozen=True, slots=True)
class Answer:
    """A text from a response, or None with a reason code. Example: `Answer("42", "boxed", boxes=("42.",))`."""

    text: str | None
    """The text; a final answer is without decoration: dollar signs, emphasis, a final dot."""
    reason: str
    """The mark that it was taken from (boxed, answer_tag, cue, conclusion, whole), or why there is no text."""
    written: str = ""
    """A final answer with its decoration, for a verifier that reads notation."""
    boxes: tuple[str, ...] = ()
    """Contents of the last box and of the boxes joined to it, in order; `text` is all of them as a list."""
    alternative: str | None = None
    """Another answer that the prose offers as well: `\\boxed{4} or 5`."""
    other_language: bool = False
    """True if the prose around the answer is not English, so that a comma may be the decimal point."""
    uncut: tuple[str, ...] = ()
    """All that follows each of the last announcements, as it is written."""

    @property
    def candidates(self) -> tuple[str, ...]:
        """Every answer that the response offers, undecorated, each once, the content of the last box first."""
        offered = [*reversed(self.boxes or (self.text or "",)), *([self.alternative] if self.alternative else [])]
        return tuple(dict.fromkeys(map(without_decoration, offered)))

    @property
    def others(self) -> tuple[str, ...]:
        """Candidates next to the answer. Where a task has one answer, any of them makes the response wrong."""
        return self.candidates[1:]

    def no_answer(self) -> Verdict:
        """Return the verdict on a response without an answer."""
        return Verdict("no_answer", reason=self.reason)


def after_thinking(attempt: Attempt) -> Answer:
    """Return the response after its last closing thinking tag, stripped.

    There is none if thinking is opened behind that tag, or by the prompt, and never closed; or if nothing follows it.
    Tags in the text of a program, which a closed fence shows, are no thinking.
    """
    text, start = attempt.response, 0
    if attempt.prompt.rstrip().endswith(OPENING_TAGS) or text.lstrip().startswith(OPENING_TAGS):
        # Any spelling closes any other: text that follows a closing tag is meant to be read.
        first = CLOSING.search(text)
        if first is None:
            return Answer(None, "unclosed_thinking")
        start = first.end()
    programs = program_places(text, start) if TAG.search(text, start) else []
    looked_at, is_hidden = start, False  # of the present line: how far, and if a mark of a string or comment was there
    for closing in CLOSING.finditer(text, start):
        if _is_inside(closing.start(), programs):
            # A fence that was never closed in thinking ends at one of the answer: its tag is in no string or comment.
            line = text.rfind("\n", looked_at, closing.start()) + 1
            is_hidden = (is_hidden and line == 0) or HIDING.search(text, line or looked_at, closing.start()) is not None
            looked_at = closing.start()
            if is_hidden:
                continue
        start = closing.end()
    if any(not _is_inside(opening.start(), programs) for opening in OPENING.finditer(text, start)):
        return Answer(None, "unclosed_thinking")
    text = END_TOKENS.sub("", text[start:].strip()).rstrip()
    return Answer(None, "empty_answer") if is_blank(text) else Answer(text, "response")


def program_places(text: str, start: int = 0) -> list[tuple[int, int]]:
    """Return (start, end) of the blocks behind `start` that their own fences close, in order."""
    blocks, _ = blocks_in(text[start:])
    return [(start + b.start, start + b.end) for b in blocks if b.is_whole]


def _is_inside(at: int, places: Sequence[tuple[int, int]]) -> bool:
    number = bisect_right(places, at, key=lambda place: place[0])
    return number > 0 and at < places[number - 1][1]


def is_blank(text: str) -> bool:
    """True if a reader would see nothing: white space, zero-width characters, fillers."""
    return all(c.isspace() or c in FILLERS or unicodedata.category(c) in ("Cf", "Cc") for c in text)


def last_box(text: str) -> Answer:
    """Return the content of the last closed box, joined with the boxes next to it; reason "no_box" if there is none.

    A box that is opened and never closed is no answer, unless a closed one follows in a later paragraph.
    """
    if "\\boxed" not in text and "\\fbox" not in text:
        return Answer(None, "no_box")
    boxes, unclosed = _boxes(text)
    if unclosed is not None and not any(b[0] > unclosed and "\n\n" in text[unclosed : b[0]] for b in boxes):
        return Answer(None, "unclosed_box")
    if not boxes:
        return Answer(None, "no_box")
    boxes = _shown(text, boxes)
    contents = [text[boxes[-1][1] : boxes[-1][2]].strip()]
    first, joiner = boxes[-1][0], ", "
    for start, inner, closed in reversed(boxes[-MAX_BOXES:-1]):
        if BETWEEN.fullmatch(text, closed + 1, first) is None:
            break
        joiner = " \\text{ or } " if re.search(r"\bor\b", text[closed + 1 : first], re.IGNORECASE) else joiner
        contents.append(text[inner:closed].strip())
        first = start
    contents.reverse()
    if all(is_blank(content) for content in contents):
        return Answer(None, "empty_box")
    joined, end = joiner.join(dict.fromkeys(contents)), boxes[-1][2] + 1
    alternative = hedges.candidate_near_box(text, first, end) or hedges.replacing_value(text[end:])
    return Answer(joined, "boxed", joined, tuple(contents), alternative, is_other_language(text))


def _shown(text: str, boxes: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return the boxes outside code fences and LaTeX's lines of comments, or all if there are none outside."""
    if "```" not in text and "%" not in text:
        return boxes
    programs = program_places(text)
    shown = [
        box
        for box in boxes
        if not _is_inside(box[0], programs)
        and not text[text.rfind("\n", 0, box[0]) + 1 : box[0]].lstrip().startswith("%")
    ]
    return shown or boxes


def _boxes(text: str) -> tuple[list[tuple[int, int, int]], int | None]:
    """Return (start, inner start, inner end) of the outermost closed boxes, and the start of the last unclosed one."""
    boxes: list[tuple[int, int, int]] = []
    stack: list[tuple[int, int] | None] = []  # an open brace is None, an open box its start and inner start
    begin = min(at for at in (text.find("\\boxed"), text.find("\\fbox")) if at >= 0)
    for part in BOX_PARTS.finditer(text, begin):
        mark = part.group()
        if mark == "{":
            stack.append(None)
        elif mark == "}":
            opened = stack.pop() if stack else None
            if opened is not None:
                while boxes and boxes[-1][0] > opened[0]:  # boxes inside this one
                    boxes.pop()
                boxes.append((opened[0], opened[1], part.start()))
        elif len(mark) > 2 and part[1]:
            stack.append((part.start(), part.end()))
        elif mark.startswith(("\\boxed", "\\fbox")):
            bare = BARE_BOX.match(text, part.end())
            if bare is not None and not any(stack):
                boxes.append((part.start(), bare.start(), bare.end()))
    unclosed = [entry[0] for entry in stack if entry is not None]
    return boxes, unclosed[-1] if unclosed else None


def last_tag(text: str, tag: str = "answer", programs: Sequence[tuple[int, int]] = ()) -> Answer:
    """Return the content of the last `<tag>...</tag>`; reason "no_<tag>_tag" if the tag is never opened.

    Tags within `programs`, places as of `program_places`, are no tags.
    """
    opened = _outside(text, f"<{tag}>", programs)
    if opened is None:
        return Answer(None, f"no_{tag}_tag")
    closed = _outside(text, f"</{tag}>", programs, opened) if programs else text.find(f"</{tag}>", opened)
    if closed is None or closed < 0:
        return Answer(None, f"unclosed_{tag}_tag")
    content = text[opened + len(tag) + 2 : closed].strip()
    if is_blank(content):
        return Answer(None, f"empty_{tag}_tag")
    return Answer(content, f"{tag}_tag", content, other_language=is_other_language(text))


def _outside(text: str, mark: str, programs: Sequence[tuple[int, int]], start: int = 0) -> int | None:
    """Return where the last mark behind `start` is that no program holds; None if there is none."""
    at = text.rfind(mark, start)
    while at >= 0 and _is_inside(at, programs):
        at = text.rfind(mark, start, at)
    return at if at >= 0 else None


def boxed_or_tagged(text: str) -> Answer | None:
    """Return the last box, else the last `<answer>` tag, open and empty ones included; None if there is neither."""
    for answer in (last_box(text), last_tag(text)):
        if not answer.reason.startswith("no_"):
            return answer
    return None


def is_other_language(text: str) -> bool:
    """True if words near the end of the text are not English."""
    return OTHER_PROSE.search(text[-2_000:]) is not None


def without_decoration(text: str) -> str:
    """Return `text` without outer space, emphasis, dollar signs, code quotes, styles, and a final dot."""
    for _ in range(MAX_LAYERS):
        bare = text.strip().strip("*`").strip()
        if len(bare) > 1 and bare[0] == bare[-1] == "$":
            bare = bare[1:-1]
        if bare.endswith(".") and not bare.endswith(".."):
            bare = bare[:-1]
        for style in STYLES if bare.startswith("\\") else ():
            if bare.startswith(style) and _closing_brace(bare, len(style) - 1) == len(bare) - 1:
                bare = bare[len(style) : -1]
        if bare == text:
            break
        text = bare
    return text


def _closing_brace(text: str, opened: int) -> int | None:
    depth = 0
    for brace in re.finditer(r"\\.|[{}]", text[opened:], re.DOTALL):
        depth += (brace[0] == "{") - (brace[0] == "}")
        if depth == 0 and brace[0] == "}":
            return opened + brace.start()
    return None
