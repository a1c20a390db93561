"""Shows text of a policy, a recipe or a file to a person as it is: never as commands, Markdown or HTML.

One function for each medium: `show` for a terminal, `in_json` for programs that read it there, `in_markdown`,
`in_html`.
"""

from __future__ import annotations

import html
import json
import logging
import re
import sys
import traceback
from types import TracebackType
from unicodedata import category

HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that control a terminal, reorder or hide characters, or are half of one; as in report.js."""
KEPT = frozenset("\n\t\u200c\u200d")
"""Characters of those categories that texts need: line ends, tabs, and the joiners of scripts and of emoji."""

PLAIN = re.compile(
    r"(?!\d+[.)](?: |$))(?!.*(?:(?i:www\.)|\b_|_\b|__))[A-Za-z0-9](?:[A-Za-z0-9 .,;:()%?_-]*[A-Za-z0-9.,;:()%?])?"
)
"""Words, numbers and punctuation that have no meaning in Markdown, not even at the start of a line."""


def visible(text: str) -> str:
    r"""Return the text with each hidden character as its escape, e.g. \x1b."""
    if text.isprintable():
        return text
    return "".join(c.encode("unicode_escape").decode() if c not in KEPT and category(c) in HIDDEN else c for c in text)


def one_line(text: str) -> str:
    r"""Return `visible` text with its line ends as \n, so that it cannot look like other lines of output."""
    return visible(text).replace("\n", r"\n")


def show(text: object, *, is_error: bool = False, end: str = "\n") -> None:
    """Write the text to the standard output, or the standard error, at once."""
    out = sys.stderr if is_error else sys.stdout
    out.write(visible(str(text)) + end)
    out.flush()


def in_json(value: object, indent: int | None = None) -> str:
    """Return the value as JSON in which a terminal finds no command: special characters are escapes."""
    return json.dumps(value, indent=indent).replace(
        "\x7f", r"\u007f"
    )  # the one control character that json.dumps leaves


def show_exceptions() -> None:
    """Use `show` for what Python itself writes to the standard error: tracebacks and log lines."""

    def hook(kind: type[BaseException], exc: BaseException, tb: TracebackType | None) -> None:
        show("".join(traceback.format_exception(kind, exc, tb)), is_error=True, end="")

    sys.excepthook = hook
    if logging.lastResort is not None:  # the handler of a program that has set none
        logging.lastResort.setFormatter(_VisibleLines())


def in_markdown(text: object) -> str:
    r"""Return the text for Markdown, in one line, also for a cell of a table: as it is if it is plain, else as code.

    Escapes would not do: some viewers make links of what looks like one, escaped or not. A | is outside the code, since
    a table takes \| only, and the backslash would be part of the code where it follows another.
    """
    line = one_line(str(text))
    return line if PLAIN.fullmatch(line) else r"\|".join(map(_code, line.split("|")))


def in_html(text: object) -> str:
    """Return the text for HTML, between tags or as the value of an attribute in quotes."""
    return html.escape(visible(str(text)))


class _VisibleLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def _code(text: str) -> str:
    if not text:
        return ""
    ticks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    # A viewer removes a space at both ends, which also keeps ticks of the text from ours.
    has_space_at_both = text[0] == text[-1] == " " and text.strip() != ""
    padding = " " if "`" in (text[0], text[-1]) or has_space_at_both else ""
    return f"{ticks}{padding}{text}{padding}{ticks}"
