"""EvalPlus: HumanEval's columns, with tests that compare by numpy.allclose, which a few lines stand for here."""

from __future__ import annotations

import re

from verizero.verifiers.layouts._sources import parsed
from verizero.verifiers.layouts.base import Asserts, Reference
from verizero.verifiers.layouts.humaneval import OTHERS as HUMANEVAL
from verizero.verifiers.layouts.humaneval import check_tests

VERIFIER = "unit_tests"
KEYS = ("entry_point", "test", "prompt")
OTHERS = (*HUMANEVAL, "base_input", "plus_input", "contract", "atol")
IMPORT = re.compile(r"^import numpy as np[ \t]*$", re.MULTILINE)
STAND_IN = '''
class np:
    """The part of numpy by which these tests compare."""

    class ndarray: pass
    class float32: pass
    class float64: pass

    @staticmethod
    def allclose(got, expected, rtol=1e-05, atol=1e-08):
        if isinstance(expected, (list, tuple)):
            return len(got) == len(expected) and all(np.allclose(g, e, rtol, atol) for g, e in zip(got, expected))
        return got == expected or abs(got - expected) <= atol + rtol * abs(expected)
'''


def read(reference: Reference) -> Asserts | None:
    """Return the tests; None if they use another part of numpy, or none."""
    test = reference["test"]
    if not isinstance(test, str) or not IMPORT.search(test):
        return None
    source = IMPORT.sub("", test)
    if set(re.findall(r"\bnp\.(\w+)", source)) - {"ndarray", "float32", "float64", "allclose"}:
        return None
    parsed(source, "reference.test")
    return check_tests({**reference, "test": STAND_IN + source})
