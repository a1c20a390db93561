"""EvalPlus: HumanEval's columns, with tests that compare by numpy.allclose, which a few lines replace here."""

from __future__ import annotations

import re
from typing import Any

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
    test = without_numpy(reference["test"])
    return None if test == reference["test"] else check_tests({**reference, "test": test})


def without_numpy(test: Any) -> Any:
    """Return tests with the lines above in place of numpy; as they are, if they use another part of it, or none."""
    if not isinstance(test, str) or not IMPORT.search(test):
        return test
    source = IMPORT.sub("", test)
    used = set(re.findall(r"\bnp\.(\w+)", source))
    return STAND_IN + source if used <= {"ndarray", "float32", "float64", "allclose"} else test
