"""EvalPlus's MBPP+: `test` compares over lists of inputs and results, by numpy.allclose, as in `evalplus.py`."""

from __future__ import annotations

import ast
import textwrap

from verizero.verifiers.layouts._sources import parsed
from verizero.verifiers.layouts.base import Asserts, Reference
from verizero.verifiers.layouts.evalplus import without_numpy

VERIFIER = "unit_tests"
KEYS = ("test", "test_list")
OTHERS = ("test_imports", "code", "prompt", "task_id", "source_file")


def read(reference: Reference) -> Asserts:
    """Return the tests in `test`, whose loop over all inputs becomes one test; those of `test_list` are among them."""
    source = without_numpy(reference["test"])
    tree = parsed(source, "reference.test")
    first = next((n.lineno - 1 for n in tree.body if isinstance(n, ast.For)), None)
    if first is None:
        return Asserts(source)
    lines = source.splitlines(keepends=True)
    loop = textwrap.indent("".join(lines[first:]), "    ")
    return Asserts(f"{''.join(lines[:first])}\ndef test_all():\n{loop}")
