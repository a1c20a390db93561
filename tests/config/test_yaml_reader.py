"""A short YAML text of very many values is refused."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from tests.stages.tiny import TREE
from verizero.pipeline.checks.run_facts import read as read_run
from verizero.pipeline.config.load import parse, read_tree
from verizero.pipeline.config.recipes import recipe_names
from verizero.pipeline.errors import ConfigError, RunError


def laughs(form: str) -> str:
    """Return a short YAML text in which each line has ten aliases of the line before, in this form."""
    lines = [f"a{i}: &a{i} " + form.format(", ".join([f"*a{i - 1}"] * 10)) for i in range(1, 9)]
    return "\n".join(["a0: &a0 {x: 1}", *lines, ""])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (laughs("[{}]"), "more than 100,000 values"),
        (laughs("{{x: [{}]}}"), "more than 100,000 values"),
        (laughs("{{<<: [{}]}}"), "more than 100,000 values"),
        ("a: &a {b: *a}\n", "inside its own anchor"),
        ("a: &a [*a]\n", "inside its own anchor"),
        (f"a: {'[' * 600}{']' * 600}\n", "deep|depth"),
        ("- " * 5_000 + "a\n", "deep|depth"),
    ],
)
def test_a_short_text_of_many_values_is_refused_by_name(tmp_path: Path, text: str, reason: str) -> None:
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
