"""What is deep or holds itself is refused by name, and aliases are read."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from tests.stages.tiny import TREE
from verizero.pipeline.checks.run_facts import read as read_run
from verizero.pipeline.config.load import parse, read_tree
from verizero.pipeline.config.recipes import recipe_names
from verizero.pipeline.errors import ConfigError, RunError


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: &a {b: *a}\n", "recursive"),
        ("a: &a [*a]\n", "recursive"),
        (f"a: {'[' * 600}{']' * 600}\n", "deep|depth"),
        ("- " * 5_000 + "a\n", "deep|depth"),
    ],
)
def test_what_is_too_deep_or_holds_itself_is_refused_by_name(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "top.yaml").write_text(text)
    (tmp_path / "child.yaml").write_text("extends: top.yaml\n")
    for name in ("top.yaml", "child.yaml"):
        with pytest.raises(ConfigError, match=rf"top\.yaml.*({reason})"):
            read_tree(tmp_path / name)
    with pytest.raises(ConfigError, match=reason):
        parse(copy.deepcopy(TREE), [f"rl.algorithm={text}"])
    assert recipe_names(tmp_path) == ["child", *recipe_names()]
    (tmp_path / "recipe.yaml").write_text(text)
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(RunError, match=reason):
        read_run(tmp_path)


def test_few_aliases_are_read(tmp_path: Path) -> None:
    (tmp_path / "top.yaml").write_text("a: &a {x: 1}\nb: {<<: *a, y: [*a, *a]}\nc: {<<: *a, x: 2}\n")
    tree = read_tree(tmp_path / "top.yaml")
    assert tree["b"] == {"x": 1, "y": [{"x": 1}, {"x": 1}]}
    assert tree["c"] == {"x": 2}
