"""Write docs/diagnose.md: its head stays, and its list of causes is made from the docstrings of their rules."""

from __future__ import annotations

import textwrap
from pathlib import Path

from verizero.pipeline.checks import diagnosis  # noqa: F401  (fills CAUSES)
from verizero.pipeline.checks.cause import CAUSES

PAGE = Path(__file__).with_name("diagnose.md")
MARK = "## Causes\n"


def page(before: str) -> str:
    """Return the page with a new list of causes."""
    entries = [
        textwrap.fill(
            f"- **{name}**: {' '.join(cause.text.split())}", 120, subsequent_indent="  ", break_on_hyphens=False
        )
        for name, cause in sorted(CAUSES.items())
    ]
    return before.partition(MARK)[0] + MARK + "\n" + "\n".join(entries) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
