"""YAML is read by a parser in C first; what it reads is what Python's parser reads, which tells the errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.load import _FastLoader, _Loader
from pipeline.errors import ConfigError
from tests.source import ROOT

RECIPES = sorted((ROOT / "configs").rglob("*.yaml"))
PIECES = [
    "a", "b: ", "- ", ": ", "\n", "  ", "1e-3", "0x1f", "1_000", "yes", "~", "{", "}", "[", "]", ", ", "'", '"', "#",
    "&x ", "*x", "@", "|\n", ">-\n", "!!str ", "\u00e9", "\\n", "2020-01-01", "1:30", "<<: ", "? ", ".inf", "-", "=",
    "%",
]  # fmt: skip


def read(text: str, loader: Any) -> Any:
    """Return the value, with its types shown; or that it is refused."""
    try:
        return repr(yaml.load(text, loader))
    except (yaml.YAMLError, ConfigError, ValueError, RecursionError):
        return "refused"


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: str(p.relative_to(ROOT / "configs")))
def test_shipped_recipes_are_read_the_same(path: Path) -> None:
    text = path.read_text()
    assert read(text, _FastLoader) == read(text, _Loader) != "refused"


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_what_both_read_is_the_same(text: str) -> None:
    fast, slow = read(text, _FastLoader), read(text, _Loader)
    assert fast == slow or "refused" in (fast, slow)


def test_what_only_the_fast_one_reads() -> None:
    """A question mark inside brackets: YAML 1.2 has it as text."""
    assert (read("[a? ]", _FastLoader), read("[a? ]", _Loader)) == ("['a?']", "refused")
