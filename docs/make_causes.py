"""Write docs/diagnose.md: its head stays, and its table is made from the docstrings of pipeline/diagnosis."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

from verizero.pipeline.diagnosis.ranking import causes

PAGE = Path(__file__).with_name("diagnose.md")
MARK = "## Causes\n"


def page(before: str) -> str:
    """Return the page with a new list of causes."""
    head = before.partition(MARK)[0]
    entries = [
        f"### {name}\n\n{inspect.getdoc(importlib.import_module(f'verizero.pipeline.diagnosis.{name}'))}"
        for name in causes()
    ]
    return head + MARK + "\n" + "\n\n".join(entries) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
