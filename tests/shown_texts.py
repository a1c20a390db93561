"""Texts that a policy may write, each of which means something to a terminal, to Markdown or to HTML."""

from html.parser import HTMLParser

from markdown_it import MarkdownIt

TEXTS = {
    "heading": "# All graders agree",
    "heading below a line": "right\n=====",
    "link": "[the answer](https://evil.example/?q=1)",
    "picture": "![](https://evil.example/pixel.png)",
    "link by reference": "[a][b]\n\n[b]: https://evil.example",
    "link in angles": "<https://evil.example>",
    "bare links": "see https://evil.example/x, www.evil.example and me@evil.example",
    "raw HTML": "<img src=x onerror=alert(1)><script>alert(2)</script><!-- x -->",
    "entities": "&lt;b&gt; &amp;lt; &#124; &copy;",
    "emphasis": "**bold** __bold__ *a* _a_ ~~gone~~",
    "cells": "a | b || c \\| d \\\\| e |",
    "a new row": "a |\n| --- |\n| b",
    "code": "`a` ``b`` ```c```",
    "fence": "```\n</code>\n~~~\n````\n",
    "one tick": "`",
    "ticks at both ends": "`` `|` ``",
    "list": "- a\n- b",
    "numbered": "1. a",
    "numbered otherwise": "1) a",
    "quote and rule": "> a\n\n***",
    "spaces": "  two at both ends  ",
    "backslashes": "\\* a \\",
    "mathematics": "$\\frac{1}{2}$ \\(x\\) x_1 a_b_c",
    "colours": "\x1b[31mred\x1b[0m \x9b2J",
    "title and link of a terminal": "\x1b]0;owned\x07\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "a line over another": "wrong\rright\x08\x08",
    "reordered": "\u202e1 = 2\u202c \u2066x\u2069 \u200fa",
    "unseen": "a\u200bb\xadc\ufeffd\U000e0041\u2028e\u2029f",
    "half a pair": "\ud800 and \udfff",
    "other controls": "\x00\x07\x7f\x85\x0b\x0c",
    "attribute": "' onmouseover='alert(1)\" x=\"",
    "end of a script": "</script></title></textarea>]]>",
    "plain": "after round 3, 0.5 (too_hard): all of it.",
    "other scripts": "日本語, עברית and 👩\u200d🔬",
}
HIDDEN = "\x1b\x9b\x07\r\x08\u202e\u2066\u200b\xad\ufeff\u2028\ud800\x00\x7f\x85\U000e0041"
"""Characters that no medium may get."""


VOID = {"meta", "link", "input", "img", "br", "hr"}


class Reader(HTMLParser):
    """Reads a page as a browser's tokenizer does: scripts end at the first </script>, whatever surrounds it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.scripts: list[str] = []
        self.cells: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    @property
    def names(self) -> list[str]:
        """The names of the tags."""
        return [name for name, _ in self.tags]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        if tag in ("td", "th"):
            self.cells.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts[-1] += data
        elif self.open[-1:] != ["style"]:
            self.text += data
            if self.cells:
                self.cells[-1] += data.strip("\n")


def rendered(markdown: str) -> Reader:
    """Read what a renderer of CommonMark with tables makes of it."""
    return Reader(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown))
