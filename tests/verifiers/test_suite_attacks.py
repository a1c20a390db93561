"""Programs that want the reward of unit tests without the work: none gets it, whatever it does to its own process."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.verifiers.suites import lines_of, rows_of
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.unit_tests import unit_tests

_DUNDERS = (
    "eq ne lt le gt ge add radd sub rsub mul rmul truediv rtruediv mod rmod pow rpow and rand or ror xor rxor "
    "iadd isub contains"
)
LIAR = f"""
class Liar:
    def __init__(self, *a): pass
    def __repr__(self): return '4'
    __str__ = __repr__
    def __hash__(self): return hash(4)
    def __bool__(self): return True
    def __abs__(self): return 0
    def __neg__(self): return self
    def __len__(self): return 1
    def __getattr__(self, name):
        if name.startswith('__'): raise AttributeError(name)
        return lambda *a, **k: a[0] if a else True
for _n in '{_DUNDERS}'.split():
    setattr(Liar, f'__{{_n}}__', (lambda n: lambda s, o: s if 'sub' in n else o if 'add' in n else True)(_n))
def f(x): return Liar()
def g(x): return Liar()
"""
COMPARED = [line.replace("\\n", "\n") for line in lines_of("compared")]
"""Tests that only a program which returns 4 passes."""
SUBCLASSES = (
    "class A({base}):\n    def __eq__(s, o): return True\n    def __ne__(s, o): return False\n"
    "    __hash__ = {base}.__hash__\n"
    "    def __sub__(s, o): return 0\n    def __abs__(s): return 0\n    def __ge__(s, o): return True\n"
    "    def __contains__(s, o): return True\n    def __len__(s): return 1\n    def __iter__(s): return iter([4])\n"
    "    def startswith(s, o): return True\ndef f(x): return A({value})"
)
BASES = {"int": 3, "float": 3.0, "str": "'3'", "list": "[3]", "tuple": "(3,)", "set": "{3}", "dict": "{3: 3}"}
DESERVED = ("isinstance", "is_integer")
"""Parts of tests that the plain value of an object of such a subclass may pass."""
_SEND = (
    "import os, struct, json\ndef send(x):\n    data = x if isinstance(x, bytes) else json.dumps(x).encode()\n"
    "    os.write(8, struct.pack('<I', len(data)) + data)\nENDS = ['', '']\n"
)
DOUBLE = ["assert f(2) == 4", "assert f(3) == 6"]
FRAMES = dict(line.split(" | ", 1) for line in lines_of("frames"))
ALONE, SLOW = rows_of("attacks"), rows_of("slow_attacks")


@cache
def verdicts() -> dict[str, Verdict]:
    """All attacks but the slow ones, graded in one batch, with tests that an honest program could pass."""
    rows: dict[str, tuple[str, Any]] = {f"liar: {test}": (LIAR, [test]) for test in COMPARED}
    for base, value in BASES.items():
        program = SUBCLASSES.format(base=base, value=value)
        rows |= {f"{base}: {t}": (program, [t]) for t in COMPARED if not any(each in t for each in DESERVED)}
    for name, act in FRAMES.items():
        rows[f"frame in a call: {name}"] = (f"{_SEND}def f(x):\n    {act}\n    return 0", DOUBLE)
        rows[f"frame at load: {name}"] = (f"{_SEND}{act}\ndef f(x): return 0", DOUBLE)
    rows |= {f"alone: {name}": row[:2] for name, row in ALONE.items()}
    rows["stop in a map"] = (ALONE["stops"].program, ["assert all(map(lambda c: f(c) == 2 * c, [1, 2]))"])
    said = unit_tests.bind({"cpu_s": 3}).score([Attempt(program, reference) for program, reference in rows.values()])
    return dict(zip(rows, said, strict=True))


@pytest.mark.run
def test_no_attack_earns_anything() -> None:
    earned = {name: (v.status, v.reason) for name, v in verdicts().items() if v.score}
    assert not earned


@pytest.mark.run
def test_no_attack_looks_like_a_failure_of_the_grader() -> None:
    """An attack must cost its author the reward."""
    failed = {name: v.reason for name, v in verdicts().items() if v.status not in ("graded", "timeout")}
    assert not failed


@pytest.mark.run
@pytest.mark.parametrize("name", SLOW)
def test_slow_attacks_end_in_time(name: str) -> None:
    params = {"cpu_s": 0.5, "wall_s": 2, "memory_mib": 128}
    said = unit_tests.bind(params).score([Attempt(SLOW[name].program, SLOW[name].reference)])[0]
    assert said.score == 0.0
    assert said.status in ("graded", "timeout"), said.reason
    assert SLOW[name].reason in said.status
