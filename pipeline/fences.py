"""Fenced blocks of a text that a model wrote, and the one of them that is the program.

Fences are read as CommonMark does, and as models write them besides: after prose on the same line, indented by any
list, closed at the end of the last line of code, or with words behind the closing fence. Scans are linear in the text.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ALIASES: Mapping[str, frozenset[str]] = {
    "python": frozenset({"python", "py", "pypy", "ipython"}),
    "c": frozenset({"c"}),
    "cpp": frozenset({"cpp", "c++", "cc", "cxx", "gnu++", "g++"}),
    "java": frozenset({"java"}),
    "go": frozenset({"go", "golang"}),
    "rust": frozenset({"rust", "rs"}),
    "javascript": frozenset({"javascript", "js", "node", "nodejs", "mjs"}),
    "bash": frozenset({"bash", "sh", "shell", "zsh"}),
    "sql": frozenset({"sql", "sqlite", "postgresql", "postgres", "mysql", "psql", "tsql", "plsql"}),
}
"""Words for each language, in lower case and without a version."""
_LINE = re.compile(r"([ \t]*)((?:[-*+]|\d{1,9}[.)])[ \t]+)?(`{3,}|~{3,})(.*)", re.DOTALL)
"""A line that begins with a fence: its indentation, the mark of a list item, the fence, and what follows."""
_RUNS = re.compile(r"`{3,}")
_WORD = re.compile(r"[ \t]*(\{?[.=]?[A-Za-z][^\s`]*)([^`\n]*)", re.DOTALL)
_VERSION = re.compile(r"[-_ ]?[\d.]+$")
_TOKENS = re.compile(r'#|"""|\'\'\'|"(?:\\.|[^"\\\n])*"?|\'(?:\\.|[^\'\\\n])*\'?')
"""Comments and strings of Python, in which a fence is text."""


@dataclass(frozen=True, slots=True)
class Block:
    """A closed block: its language, in lower case ("" if none), its text, and its place in the text that it is of."""

    language: str
    text: str
    start: int = 0
    end: int = 0
    is_whole: bool = True
    """False if the fence of another block ended it."""


def language_named(word: str) -> str:
    """Return our name of a language: `{.python3 .numberLines}`, `py:main.py` and `Python 3.11` are python.

    Any other word is returned in lower case.
    """
    word = word.strip().strip("{}").lstrip(".=").lower()
    head = re.split(r"[\s,:;={}]", word, maxsplit=1)[0]
    for candidate in (head, _VERSION.sub("", head), head.rpartition(".")[2]):
        for language, names in ALIASES.items():
            if candidate in names:
                return language
    return head


def blocks_in(text: str) -> tuple[list[Block], bool]:
    """Return all closed blocks in order, and True if a last one was left open."""
    if "```" not in text and "~~~" not in text:
        return [], False
    blocks, opened = _scan(text, 0, heeds_quotes='"""' in text or "'''" in text)
    if opened is not None and opened.quote:  # a string that is never closed: then its quotes hide nothing
        rest, opened = _scan(text, opened.start, heeds_quotes=False)
        blocks += rest
    return blocks, opened is not None


def program_among(blocks: Sequence[Block], language: str, names: Sequence[str] = ()) -> str | None:
    """Return the program: the last block of the language; without one, the last that names none. None: there is none.

    Blocks that define all of `names`, or most of them, come first: usage examples follow solutions.
    """
    filled = [b for b in blocks if b.text.strip()]
    fitting = [b for b in filled if b.language == language] + [b for b in filled if not b.language]
    if not fitting:
        return None
    patterns = [_definition(name.rpartition(".")[2]) for name in names]

    def rank(block: Block) -> tuple[int, bool, int]:
        return sum(p.search(block.text) is not None for p in patterns), block.language == language, block.start

    return max(fitting, key=rank).text.removeprefix("\ufeff")


def _definition(name: str) -> re.Pattern[str]:
    escaped = re.escape(name)
    return re.compile(rf"\b(?:def|class|function)\s+{escaped}\b|^{escaped}\s*=|\b{escaped}\s*\([^;\n]*\)\s*\{{", re.M)


@dataclass(slots=True)
class _Open:
    """A block that is open: its fence, its language, where it starts and its text begins, and its indentation."""

    mark: str
    language: str
    start: int
    text_start: int
    indent: str
    quote: str = ""
    """The quotes of a Python string over several lines that is open at the present line."""

    def close(self, text: str, text_end: int, end: int, is_whole: bool = True) -> Block:
        """Return the block, which ends here."""
        content = text[self.text_start : text_end].strip("\n")
        if content[:1].isspace() and self.indent:
            content = "\n".join(_without(line, self.indent) for line in content.split("\n"))
        if content[:1].isspace():  # the fence begins after prose, or the text was cut in front of it
            content = textwrap.dedent(content)
        return Block(self.language, content, self.start, end, is_whole)


def _scan(text: str, start: int, heeds_quotes: bool) -> tuple[list[Block], _Open | None]:
    """Return the closed blocks from `start` on, and the last one if it is left open."""
    blocks: list[Block] = []
    opened: _Open | None = None
    at = start
    for line in text[start:].split("\n"):
        end = at + len(line)
        fence = _LINE.match(line) if "```" in line or "~~~" in line else None
        if opened is None:
            opened = _opening(line, fence, at)
        elif fence is not None and not opened.quote and _fits(fence[3], opened.mark):
            word = _WORD.fullmatch(fence[4])
            is_new = word is not None and not fence[4][0].isspace() and _is_info(word)
            blocks.append(opened.close(text, at, at if is_new else end, not is_new))
            opened = _opening(line, fence, at) if is_new else None
        elif fence is None and "```" in line and _ends_code(line, opened):
            blocks.append(opened.close(text, at + line.index("```"), end))
            opened = None
        elif heeds_quotes and opened.language in ("", "python"):
            opened.quote = _quote_after(line, opened.quote)[0]
        at = end + 1
    return blocks, opened


def _opening(line: str, fence: re.Match[str] | None, at: int) -> _Open | None:
    """Return the block that a line opens, if it does."""
    if fence is not None:
        info = fence[4]
        if fence[3][0] == "`" and "`" in info:
            return None  # code within a line
        indent = fence[1] + " " * len(fence[2] or "")
        return _Open(fence[3], language_named(info), at, at + len(line) + 1, indent)
    runs = _RUNS.findall(line) if "```" in line else []
    if len(runs) % 2 == 0:
        return None
    before, _, info = line.rpartition(runs[-1])
    word = _WORD.fullmatch(info)
    if info.strip() and (word is None or word[2].strip()):
        return None
    return _Open(runs[-1], language_named(info), at + len(before), at + len(line) + 1, "")


def _is_info(word: re.Match[str]) -> bool:
    """True for the tag of a block: a language that is known, or a word alone."""
    return not word[2].strip() or language_named(word[1]) in ALIASES


def _fits(mark: str, opening: str) -> bool:
    return mark[0] == opening[0] and len(mark) >= len(opening)


def _ends_code(line: str, opened: _Open) -> bool:
    """True if a fence behind code on its line closes the block: it is in no string and no comment.

    Words may follow it in Python alone, where nothing else is written so.
    """
    code, mark, rest = line.partition("```")
    run = len(mark) + len(rest) - len(rest.lstrip("`"))
    if (
        opened.mark[0] != "`"
        or run < len(opened.mark)
        or (rest.strip("` \t\r") and opened.language not in ("", "python"))
    ):
        return False
    return not _quote_after(code, opened.quote)[1]


def _quote_after(line: str, quote: str) -> tuple[str, bool]:
    """Return the quotes of a string over several lines that is open after the line, and True if its end is no code."""
    at = 0
    while True:
        if quote:
            closed = re.compile(rf"\\.|{quote}").search(line, at)
            while closed is not None and closed[0] != quote:
                closed = re.compile(rf"\\.|{quote}").search(line, closed.end())
            if closed is None:
                return quote, True
            at, quote = closed.end(), ""
        token = _TOKENS.search(line, at)
        if token is None:
            return "", False
        if token[0] in ('"""', "'''"):
            quote = token[0]
        elif token[0] == "#" or len(token[0]) == 1 or token[0][-1] != token[0][0]:
            return "", True
        at = token.end()


def _without(line: str, indent: str) -> str:
    """Return the line without the indentation, or as much of it as the line has."""
    if line.startswith(indent):
        return line[len(indent) :]
    spaces = len(line) - len(line.lstrip())
    return line[min(spaces, len(indent.expandtabs(4))) :]
