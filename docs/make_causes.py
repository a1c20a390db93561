"""Write docs/diagnose.md: all but its list of causes stays, which is made from the docstrings of their rules."""

from __future__ import annotations

import textwrap
from pathlib import Path

from verizero.pipeline.checks import diagnosis  # noqa: F401  (fills CAUSES)
from verizero.pipeline.checks.cause import CAUSES

PAGE = Path(__file__).with_name("diagnose.md")
MARK, END = "## Causes\n", "\n## How well it does\n"


def page(before: str) -> str:
    """Return the page with a new list of causes."""
    entries = [
        textwrap.fill(
            f"- **{name}**: {' '.join(cause.text.split())}", 120, subsequent_indent="  ", break_on_hyphens=False
        )
        for name, cause in sorted(CAUSES.items())
    ]
    head, _, rest = before.partition(MARK)
    return head + MARK + "\n" + "\n".join(entries) + "\n" + "".join(rest.partition(END)[1:])


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
