"""The checks of structure and language see what they are for, and nothing else."""

import pytest

from tests.style import bad_openings, barred_names, barred_words, cycle, import_graph, prose_of


@pytest.mark.parametrize(
    "second",
    [
        "import verizero.pipeline.a",
        "from verizero.pipeline.a import name",
        "from .a import name",
        "def f():\n    from verizero.pipeline import a",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from verizero.pipeline.a import name",
        "import importlib\nimportlib.import_module('verizero.pipeline.a')",
    ],
)
def test_a_circle_of_any_kind_of_import_is_seen(second):
    sources = {
        "verizero.pipeline.a": "from verizero.pipeline.b import x",
        "verizero.pipeline.b": second,
        "verizero.pipeline.c": "import verizero.pipeline.a",
    }
    assert set(cycle(import_graph(sources))) == {"verizero.pipeline.a", "verizero.pipeline.b"}


def test_a_circle_through_a_package_is_found():
    sources = {
        "verizero.cpu.__init__": "from verizero.cpu.blocks import Blocks",
        "verizero.cpu.blocks": "from verizero.shared import Shared",
        "verizero.shared": "from verizero.cpu.norms import norm",
        "verizero.cpu.norms": "",
    }
    assert set(cycle(import_graph(sources))) == sources.keys() - {"verizero.cpu.norms"}
    assert cycle(import_graph({**sources, "verizero.shared": ""})) == []


def test_hard_words_and_names_are_seen_in_prose_and_plain_ones_are_not():
    words = ["hangs on", "goes on"]
    source = (
        f'def f(one):\n    """What is left."""\n    found = one  # {words[0]} it\n    raise ValueError("{words[1]}")'
    )
    assert [number for number, _ in bad_openings(source)] == [2]
    assert barred_names(source) == [(1, "one"), (3, "found")]
    assert [hit for _, hit, _ in barred_words(prose_of(source))] == words
    plain = 'def f(x):\n    """Return what is left, recommended in flight."""\n    g("goes on")\n'
    assert (bad_openings(plain), barred_names(plain), barred_words(prose_of(plain))) == ([], [], [])
