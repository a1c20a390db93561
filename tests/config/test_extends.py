"""Shipped recipes that one of the user's extends by name."""

from __future__ import annotations

from pathlib import Path

from verizero.pipeline.config.load import RECIPES, read_tree


def test_a_shipped_recipe_is_found_from_anywhere_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "top.yaml").write_text("extends: demo_short\nname: mine\n")
    (tmp_path / "other.yaml").write_text("extends: algorithms/dapo.yaml\n")
    assert read_tree(tmp_path / "top.yaml") == {**read_tree(RECIPES / "demo_short.yaml"), "name": "mine"}
    assert read_tree(tmp_path / "other.yaml") == read_tree(RECIPES / "algorithms" / "dapo.yaml")
    (tmp_path / "demo_short").write_text("a: of the user\n")
    assert read_tree(tmp_path / "top.yaml")["a"] == "of the user", "which comes first"
