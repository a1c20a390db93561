"""docs/recipes.md is what the models say now."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_is_current() -> None:
    made = runpy.run_path(str(DOCS / "make_recipes.py"))["page"]()
    assert (DOCS / "recipes.md").read_text(encoding="utf-8") == made, "run `make docs`"
