"""Where the answer stands in a response: after the thinking, in a box, behind a cue, between tags, in a code fence.

Every scan is linear in the length of the text. There is no fallback to "anything in the text".
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from pipeline.types import Attempt, Verdict

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
BOXES = ("\\boxed{", "\\fbox{")
FENCE = re.compile(r"^[ ]{0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)[^\n`]*$", re.MULTILINE)
CUE = re.compile(
    r"####[ \t]*(?P<hash>[^\n]*)"
    r"|\b(?:(?:final[ \t]+)?answer|(?:correct|right|best)[ \t]+(?:option|choice))[ \t*]*(?:is|:|=)[ \t*]*:?"
    r"(?P<words>[^\n]*)",
    re.IGNORECASE,
)
JOINED = re.compile(r"[\s,;.$&]{0,20}(?:\\?text\{)?\s{0,3}(?:or|and)?\s{0,3}\}?[\s,;$&]{0,20}", re.IGNORECASE)
FILLERS = frozenset("\u115f\u1160\u2800\u3164\uffa0\u034f")
"""Letters and marks by their category that show nothing."""
MAX_TAIL = 100_000
"""Characters looked at, from the end: the answer stands in the tail, and a longer text is no better answer."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was found: `text` (None if nothing) and a reason code that says where, or why not.

    `others` holds further candidates that stand beside it as equals: adjacent boxes, "A or B".
    """

    text: str | None
    reason: str
    others: tuple[str, ...] = ()

    def no_answer(self) -> Verdict:
        """The verdict for a response in which nothing was found."""
        return Verdict("no_answer", reason=self.reason)


def after_thinking(attempt: Attempt) -> Found:
    """The response after its last `</think>`, stripped; nothing if thinking never ends or nothing follows it."""
    text = attempt.response
    end = text.rfind(THINK_CLOSE)
    if end < 0 and (THINK_OPEN in text or attempt.prompt.rstrip().endswith(THINK_OPEN)):
        return Found(None, "unclosed_thinking")
    part = text[end + len(THINK_CLOSE) :] if end >= 0 else text
    if THINK_OPEN in part:
        return Found(None, "unclosed_thinking")
    part = part.strip()
    return Found(None, "empty_answer") if is_blank(part) else Found(part, "response")


def is_blank(text: str) -> bool:
    """Whether a reader would see nothing: white space, zero-width characters, fillers."""
    return all(c.isspace() or c in FILLERS or unicodedata.category(c) in ("Cf", "Cc") for c in text)


def last_box(text: str) -> Found:
    """The content of the last closed box; adjacent boxes joined by "or", "and" or a comma are `others`."""
    end = len(text)
    latest: str | None = None
    others: list[str] = []
    while True:
        start = max(text.rfind(opening, 0, end) for opening in BOXES)
        if start < 0:
            break
        opened = text.index("{", start)
        closed = _closing_brace(text, opened, end)
        if closed is None:
            return Found(None, "unclosed_box") if latest is None else _boxes(latest, others)
        content = text[opened + 1 : closed].strip()
        if latest is None:
            latest = content
        elif JOINED.fullmatch(text, closed + 1, end):
            others.append(content)
        else:
            break
        end = start
        while end > 0 and text[end - 1] in "$ ":
            end -= 1
    return Found(None, "no_box") if latest is None else _boxes(latest, others)


def _boxes(latest: str, others: list[str]) -> Found:
    if not latest:
        return Found(None, "empty_box")
    return Found(latest, "boxed", tuple(dict.fromkeys(o for o in others if o != latest)))


def _closing_brace(text: str, opened: int, end: int) -> int | None:
    depth, at = 0, opened
    while at < end:
        if text[at] == "\\":
            at += 2
            continue
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return at
        at += 1
    return None


def last_tag(text: str, tag: str) -> Found:
    """The content of the last `<tag>...</tag>`."""
    closed = text.rfind(f"</{tag}>")
    opened = text.rfind(f"<{tag}>", 0, closed if closed >= 0 else None)
    if text.rfind(f"<{tag}>") > closed:
        return Found(None, f"unclosed_{tag}_tag")
    if opened < 0:
        return Found(None, f"no_{tag}_tag")
    content = text[opened + len(tag) + 2 : closed].strip()
    return Found(content, f"{tag}_tag") if content else Found(None, f"empty_{tag}_tag")


def last_cue(text: str) -> Found:
    """What follows the last "answer is", "Answer:" or "####" on its line, without decoration.

    A cue at the end of its line means the next one, if nothing stands after that.
    """
    cues = list(CUE.finditer(text))
    if not cues:
        return Found(None, "no_cue")
    said = cues[-1]
    content = undecorated(said["hash"] if said["hash"] is not None else said["words"])
    rest = text[said.end() :].strip()
    if not content and "\n" not in rest:
        content = undecorated(rest)
    return Found(content, "cue") if content else Found(None, "empty_cue")


def final_answer(attempt: Attempt) -> Found:
    """The final answer: box, else `<answer>` tags, else a cue, else the whole answer if it is one line.

    An unclosed box or tag is no answer; a response cut at its length limit has one only in a closed box or tag.
    """
    part = after_thinking(attempt)
    if part.text is None:
        return part
    text = part.text[-MAX_TAIL:]
    for found in (last_box(text), last_tag(text, "answer")):
        if found.text is not None:
            return Found(undecorated(found.text), found.reason, found.others)
        if not found.reason.startswith("no_"):
            return found
    if attempt.truncated:
        return Found(None, "truncated")
    cue = last_cue(text)
    if cue.reason != "no_cue":
        return cue
    bare = undecorated(text)
    if bare and "\n" not in bare:
        return Found(bare, "whole")
    return Found(None, "no_cue" if bare else "empty_answer")


def undecorated(text: str) -> str:
    """`text` without surrounding space, markdown emphasis, dollar signs, quotes of code and a final dot."""
    while True:
        bare = text.strip().strip("*`").strip()
        if len(bare) > 1 and bare[0] == bare[-1] == "$":
            bare = bare[1:-1]
        if bare.endswith(".") and not bare.endswith(".."):
            bare = bare[:-1]
        for wrapper in ("\\text{", "\\textbf{", "\\mathrm{", "\\mathbf{"):
            if bare.startswith(wrapper) and _closing_brace(bare, len(wrapper) - 1, len(bare)) == len(bare) - 1:
                bare = bare[len(wrapper) : -1]
        if bare == text:
            return bare
        text = bare


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced code block: its language tag in lower case ("" if none) and its text."""

    language: str
    text: str


def code_blocks(text: str) -> tuple[list[Block], bool]:
    """All closed fenced blocks in order, and whether a last one was left open."""
    blocks: list[Block] = []
    opened: re.Match[str] | None = None
    for line in FENCE.finditer(text):
        mark, tag = line[1], line[2]
        if opened is None:
            opened = line
        elif not tag and mark[0] == opened[1][0] and len(mark) >= len(opened[1]):
            blocks.append(Block(opened[2].lower(), text[opened.end() : line.start()].strip("\n")))
            opened = None
    return blocks, opened is not None
