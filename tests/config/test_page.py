"""docs/recipes.md is what the models say now."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tests.stages.tiny import tiny
from verizero.pipeline.config.run import RunConfig

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_is_current() -> None:
    made = runpy.run_path(str(DOCS / "make_recipes.py"))["page"]()
    assert (DOCS / "recipes.md").read_text(encoding="utf-8") == made, "run `make docs`"


def test_every_field_of_a_resolved_recipe_stands_in_it() -> None:
    text = (DOCS / "recipes.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))

    def fields(value: Any) -> set[str]:
        if isinstance(value, BaseModel):
            own = type(value).model_fields
            return {f.alias or name for name, f in own.items()}.union(*(fields(getattr(value, name)) for name in own))
        if isinstance(value, tuple):
            return set().union(*map(fields, value))
        return set()

    found = fields(tiny())
    assert set(RunConfig.model_fields) < found
    assert found <= told
