"""The checks of structure and language see what they are for, and nothing else."""

from __future__ import annotations

import pytest

from tests.style import (
    bad_openings,
    barred_names,
    barred_words,
    cycle,
    import_graph,
    prose_of,
)


@pytest.mark.parametrize(
    "second",
    [
        "import verizero.pipeline.a",
        "from verizero.pipeline import a",
        "from verizero.pipeline.a import name",
        "from .a import name",
        "def f():\n    from verizero.pipeline.a import name",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from verizero.pipeline.a import name",
        "import importlib\nimportlib.import_module('verizero.pipeline.a')",
    ],
)
def test_a_circle_of_any_kind_of_import_is_seen(second: str) -> None:
    sources = {
        "verizero.pipeline.a": "from verizero.pipeline.b import x",
        "verizero.pipeline.b": second,
        "verizero.pipeline.c": "import verizero.pipeline.a",
    }
    assert set(cycle(import_graph(sources))) == {"verizero.pipeline.a", "verizero.pipeline.b"}


def test_a_circle_through_a_package_is_found() -> None:
    sources = {
        "verizero.pipeline.cpu.__init__": "from verizero.pipeline.cpu.blocks import Blocks",
        "verizero.pipeline.cpu.blocks": "from verizero.pipeline.shared import Shared",
        "verizero.pipeline.shared": "from verizero.pipeline.cpu.norms import norm",
        "verizero.pipeline.cpu.norms": "",
    }
    assert set(cycle(import_graph(sources))) == sources.keys() - {"verizero.pipeline.cpu.norms"}
    assert cycle(import_graph({**sources, "verizero.pipeline.shared": ""})) == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('def f():\n    """What is left."""', [2]),
        ('class A:\n    x: int = 0\n    """Of the present stage."""', [3]),
        ('"""Whether it holds."""', [1]),
        ('def f():\n    """Return what is left."""', []),
        ('TEXT = "What is left?"', []),
    ],
)
def test_openings_without_a_subject_are_seen(source: str, lines: list[int]) -> None:
    assert [number for number, _ in bad_openings(source)] == lines


def test_names_that_say_nothing_are_seen_where_they_are_bound() -> None:
    source = "def f(one):\n    found = one\n    for said in found:\n        g(given=said)"
    assert barred_names(source) == [(1, "one"), (2, "found"), (3, "said")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("it hangs on the clock", ["hangs on"]),
        ("runs beside the update", ["beside"]),
        ("the run goes on", ["goes on"]),
        ("TIS stands for truncated importance sampling", []),
        ("batches in flight", []),
        ("a flight of responses", ["flight"]),
        ("mend the network", ["mend"]),
        ("recommended", []),
        ("the standard deviation, understood", []),
    ],
)
def test_hard_words_are_seen_and_plain_ones_are_not(text: str, words: list[str]) -> None:
    assert [hit for _, hit, _ in barred_words([(1, text)])] == words


def test_docstrings_comments_and_messages_are_prose_and_data_is_not() -> None:
    lines = ['"""Doc."""', 'WORDS = {"anew"}  # comment', 'raise ValueError(f"message {x}")']
    source = "\n".join([*lines, 'Field(description="told")', 'f("data")'])
    texts = [text for _, text in prose_of(source)]
    assert [t.strip() for t in texts] == ["Doc.", "# comment", "message", "told"]
