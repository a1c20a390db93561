"""Asserts against programs that never see them, in the sandbox."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from tests.verifiers.suites import rows_of
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Attempt, Verdict
from verizero.sandbox.settings import SandboxSettings, configure
from verizero.verifiers._one_process import reason_for
from verizero.verifiers._test_suites import suite_of
from verizero.verifiers.unit_tests import unit_tests


def one(program: str, reference: Any, **params: Any) -> Verdict:
    return unit_tests.bind({"cpu_s": 1, "wall_s": 3, **params}).score([Attempt(program, reference)])[0]


DOUBLE = {"tests": ["assert double(2) == 4", "assert double(-1) == -2", "assert double('ab') == 'abab'"]}
HUMAN_EVAL = {
    "entry_point": "has_close",
    "test": "METADATA = {'author': 'x'}\n\ndef check(candidate):\n    assert candidate([1.0, 2.0], 0.5) == False\n"
    "    for gap in (1, 2, 3):\n        assert candidate([0, gap], gap + 0.1) == True\n"
    "    assert candidate([], 1) is False\n",
}
HAS_CLOSE = "def has_close(xs, t):\n    return any(abs(a - b) < t for i, a in enumerate(xs) for b in xs[:i])"
PYTEST = {
    "setup": "import math",
    "tests": "LIMITS = [0, 1, 2]\n\ndef test_root():\n"
    "    for n in LIMITS:\n        assert math.isclose(root(n) ** 2, n)\n\n"
    "def test_negative():\n    try:\n"
    "        root(-1)\n    except ValueError:\n        return\n    assert False, 'no error'\n",
}
ROOT = "def root(x):\n    if x < 0: raise ValueError(x)\n    return x ** 0.5"
GOLD = [
    ("def double(x): return x * 2", DOUBLE),
    ("double = lambda x: x + x", DOUBLE),
    ("class Solution:\n    def double(self, x): return x * 2", DOUBLE),
    ("```python\ndef double(x): return x * 2\n```", "assert double(2) == 4"),
    (HAS_CLOSE, HUMAN_EVAL),
    (ROOT, PYTEST),
    ("def first(x): return (x[0], {1: {2.5}})", ["assert first([3]) == (3, {1: {2.5}})"]),
    ("def f(*, a, b=2): return a - b", ["assert f(a=5) == 3", "assert f(b=1, a=1) == 0"]),
    ("n = 0\ndef tick():\n    global n\n    n += 1\n    return n", ["assert tick() == 1", "assert tick() == 1"]),
    ("n = 0\ndef tick():\n    global n\n    n += 1\n    return n", ["assert [tick(), tick(), tick()] == [1, 2, 3]"]),
    ("def f(x): return x", ["assert f(f(f(7))) == 7"]),
    ("def even(n): return n % 2 == 0\ndef odd(n): return not even(n)", ["assert even(2) and odd(3)"]),
    (
        "class Bad(KeyError): pass\ndef f(): raise Bad()",
        ["try:\n    f()\n    ok = False\nexcept KeyError:\n    ok = True\nassert ok"],
    ),
    (
        "def f(x): return {'a': [1, (2, None)]}",
        {"test_list": ["assert f(1)['a'][1] == (2, None)"], "test_setup_code": ""},
    ),
]
RAISING = {
    "tests": "import pytest\n\ndef test_raises():\n    with pytest.raises(ValueError):\n        f(-1)\n\n"
    "@pytest.mark.parametrize('x, y', [(4, 2), (2, 1.41421356)])\n"
    "def test_root(x, y):\n    assert f(x) == pytest.approx(y)\n"
}
GOLD.append(("def f(x): return 2 * x", ["try:\n    y = f(2)\nexcept:\n    y = 0\nassert y == 4"]))
GOLD.append(("def f(x):\n    if x < 0: raise ValueError\n    return x ** 0.5", RAISING))
WRONG = [
    ("def f(x): return abs(x) ** 0.5", RAISING),
    ("def f(x):\n    if x < 0: raise KeyError\n    return x ** 0.5", RAISING),
    ("def f(x):\n    if x < 0: raise ValueError\n    return 1.4142 if x == 2 else 2", RAISING),
    ("def double(x): return x + 2", DOUBLE),
    ("def dubble(x): return 2 * x", DOUBLE),
    ("def double(x): raise AssertionError", DOUBLE),
    ("this is not python", DOUBLE),
    ("def has_close(xs, t): return True", HUMAN_EVAL),
    ("def root(x): return abs(x) ** 0.5", PYTEST),
    ("def first(x): return [3, {1: {2.5}}]", ["assert first([3]) == (3, {1: {2.5}})"]),
]


@pytest.mark.parametrize(("program", "reference"), GOLD)
def test_right_programs_pass(program: str, reference: Any) -> None:
    said = one(program, reference)
    assert said.is_correct, said.reason


@pytest.mark.parametrize(("program", "reference"), WRONG)
def test_wrong_programs_fail(program: str, reference: Any) -> None:
    said = one(program, reference)
    assert (said.status, said.score) == ("graded", 0.0)


def test_a_shared_process_is_not_held_against_a_program() -> None:
    """A program that keeps state fails when tests share it, and passes each test alone."""
    once = "done = False\ndef f(x):\n    global done\n    if done: return None\n    done = True\n    return x"
    assert one(once, ["assert f(1) == 1", "assert f(2) == 2"]).is_correct


@pytest.mark.run
def test_a_hang_in_one_test_costs_only_that_one() -> None:
    slow = "def f(x):\n    while x == 1: pass\n    return x"
    tests = ["assert f(0) == 0", "assert f(1) == 1", "assert f(2) == 2"]
    said = one(slow, tests, grading="fraction", cpu_s=0.3, wall_s=2)
    assert said.status == "graded"
    assert said.score == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    "reference",
    [
        {"tests": []},
        {"tests": "x = 1"},
        {"tests": "def ("},
        3,
        {"tests": ["assert 1 == 1"]},
        {"tests": "assert sorted(filter([1])) == [1]"},
        {"tests": "def f(x): return x\ndef test_g():\n    assert f(len([])) == 0"},
        {"test": "def check(c):\n    assert c(1)"},
    ],
)
def test_broken_references_are_no_wrong_answers(reference: Any) -> None:
    said = one("def f(x): return x", reference)
    assert said.status == "verifier_error"
    assert "bad_reference" in said.reason


def test_a_test_that_fails_by_itself_is_the_references_fault() -> None:
    said = one("def f(x): return x", ["assert f(undefined_data) == 1", "assert f(1) == 1"])
    assert said.status in ("verifier_error", "graded")
    broken = one("def f(x): return x", {"tests": ["import no_such_module\nassert f(1) == 1"], "fn": "f"})
    assert broken.status == "verifier_error"


def test_splitting_keeps_every_assert() -> None:
    source = "import math\nx = 1\nassert f(x)\ny = 2\nassert f(y)\ndef test_a():\n    assert f(3)\n"
    suite = suite_of(f"{source}if __name__ == '__main__':\n    assert f(4)\n", "", None)
    assert suite.names == ("f",)
    assert [function for _, function in suite.tests] == [None, None, "test_a"]
    assert ["y = 2" in text for text, _ in suite.tests] == [False, True, True]
    whole = suite_of("def check(c):\n    assert c(1)\n    if c(2):\n        return\n    assert c(3)", "", "f")
    assert len(whole.tests) == 1, "outside of its function a return is no Python"
    with pytest.raises(DataError, match=r"reference\.tests"):
        suite_of("f(1)", "", "f")


@pytest.mark.parametrize(
    ("tests", "fn", "names"),
    [
        ("assert f(lambda g: g(x), g=3)", None, ("f", "x")),
        ("def helper(f):\n    return f(1)\nassert helper(f)", None, ("helper", "f")[1:]),
        ("assert sum(1, 2) == 3", None, ("sum",)),
        ("assert sorted(filter([1])) == [1]", "filter", ("filter",)),
        ("from solution import add\nassert add(1)", None, ()),
        ("def f(x): return x\ndef test_f():\n    assert f(len(max([])))", None, ("f",)),
        ("def f(x): return x\ndef test_f():\n    assert f(g(1))", None, ("g",)),
        ("def f(x): return x\nassert f(1) == 1", "f", ("f",)),
        ("def check(c):\n    assert c(1) == poly(1)", "Solution().f", ("Solution", "poly")),
        ("def check(c):\n    assert c(1)\ncheck(f)", None, ("f",)),
        ("for i in [1]:\n    global z\n    z = f(i)\nassert z", None, ("f",)),
        ("class TestT:\n    y = 1\n    def test_a(self):\n        assert g(self.y, __name__)", None, ("g",)),
    ],
)
def test_the_names_that_a_program_must_define(tests: str, fn: str | None, names: tuple[str, ...]) -> None:
    assert suite_of(tests, "", fn).names == names


def test_equal_programs_run_once_and_in_order() -> None:
    rows = [Attempt(p, DOUBLE) for p in ("def double(x): return 2*x", "def double(x): return 0", "") * 20]
    said = unit_tests.bind().score(rows)
    assert [v.score for v in said] == [1.0, 0.0, 0.0] * 20
    assert [v.status for v in said[:3]] == ["graded", "graded", "no_answer"]


LINKED = {
    "prompt": "class Node:\n    def __init__(self, val, next=None):\n        self.val, self.next = val, next\n"
    "    def same(self, other):\n        return self.val == other.val and (self.next is None) == (other.next is None)\n"
    "def nodes(xs):\n    head = None\n    for x in reversed(xs):\n        head = Node(x, head)\n    return head\n"
    "def values(n):\n    while n:\n        yield n.val\n        n = n.next\n",
    "tests": [
        "h = nodes([1, 2])\nr = turn(h)\nassert r.next is h and h.next is None and r.same(Node(2, h))",
        "assert list(values(turn(nodes(range(3000))))) == list(range(3000))[::-1]",
    ],
}
TURN = (
    "def turn(n: Optional[Node]):\n    last = None\n    while n:\n        assert isinstance(n, Node)\n"
    "        n.next, last, n = last, n, n.next\n    return {}"
)


@pytest.mark.parametrize(
    ("program", "is_right"),
    [
        (TURN.format("last"), True),
        ("class Node:\n    def __init__(self, val, next=None): pass\n" + TURN.format("last"), True),
        (TURN.format("None"), False),
        ("class Node:\n    __slots__ = ()\n    def __eq__(s, o): return True\ndef turn(n): return n", False),
        ("def turn(n):\n    n.same = lambda o: True\n    n.next = None\n    return n", False),
    ],
)
def test_objects_of_the_tasks_own_classes_travel_whole(program: str, is_right: bool) -> None:
    """Lists and trees whose class is in the prompt: thousands of nodes, changed in place, and no method with them."""
    said = one(program, LINKED)
    assert said.is_correct == is_right, said.reason
    assert said.status == "graded", said.reason


NAMES = ("n", "f", "E", "Bag")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("assert abs(n(2) - 4) < 1e-9", ""),
        ("assert n(2).strip().startswith('4')", ""),
        ("x = n(2)\nx.sort()\nassert math.sqrt(x[0]) == y.z and helper(x).status", ""),
        ("m = re.match('a', n(2))\nassert m.group()", ""),
        ("assert encode(n(1)) == n(1) and n(2)(3) == [x for x in f(4)]", ""),
        ("with raises((ValueError, E)) as e: f()\nassert isinstance(e.value, E) and e.value.code == 7", ""),
        (
            "class T(TestCase):\n    def setUp(self): self.s = n()\n    def test_a(self): self.assertEqual(self.s, 1)",
            "",
        ),
        ("def helper(): return n(1)\ndef test_a(capsys, x=1): assert f(helper())", ""),
        ("@mark.parametrize('a, b', [(1, 2)])\ndef test_a(a, b): assert f(a) == b", ""),
        ("assert n(2).area() == 4", "they use .area of an object that n gives"),
        ("import solution\nassert solution.n(2).area() == 4", "they use .area"),
        ("for x in [n(1)]:\n    y = x\nassert y[0].name", "they use .name"),
        (
            "class TestA:\n    def setUp(self): self.s = n()\n    def test_a(self): assert self.s.push(1)",
            "they use .push",
        ),
        ("xs = [n(i) for i in (1, 2)]\nfor i, x in enumerate(xs): x.left = xs[i]", "they use .left"),
        ("def helper(x: n | None): assert x", "they use n as a class"),
        ("with n(1) as x:\n    assert x", "they use n as a class"),
        ("assert type(f()) is n", "they use n as a class"),
        ("assert isinstance(f(), n)", "they use n as a class"),
        ("class A(n): pass", "they use n as a class"),
        ("assert Bag([2]) is not None and f(Bag(1)) == 3 and f(2) == f(2)", ""),
        ("assert len(Bag([2])) == 1", "they use an object of Bag: len(Bag([2]))"),
        ("b = Bag([2])\nassert str(b) == 'x'", "they use an object of Bag: str(b)"),
        ("b = Bag([2])\nassert f'{b}' == 'x'", "they use an object of Bag"),
        ("assert [x for x in Bag(2)] == [2]", "they use an object of Bag"),
        ("for x in Bag(2): assert x", "they use an object of Bag"),
        ("from solution import Bag as B\nassert 3 in B(2)", "they use an object of Bag"),
        ("b = Bag()\nassert not b", "they use an object of Bag"),
        ("def made(): return Bag(3)\nb = made()\nassert b[0] == 3", "they use an object of Bag"),
        ("b = Bag(1)\nb += 1", "they use an object of Bag"),
        ("x, y = Bag(1)", "they use an object of Bag"),
        ("assert Bag(1) + 2 == 3", "they use an object of Bag"),
        ("assert sum([Bag(1)]) == 3", "they use an object of Bag"),
        ("assert {Bag(1): 2}", "they use an object of Bag"),
        ("assert f(3) == Bag(3)", "they use Bag as a class"),
        ("class T(TestCase):\n    def test_a(self): self.assertEqual(f(3), Bag(3))", "they use Bag as a class"),
        (
            "class T(TestCase):\n    def setUp(self): self.s = Bag()\n    def test_a(self): assert len(self.s)",
            "they use",
        ),
        ("class T(TestCase):\n    def test_a(self): self.assertTrue(Bag())", "they use an object of Bag"),
        ("with raises(E) as e: f()\nassert e.match('x') and e.value.args.count(1) and e.value.code.real", ""),
        ("with raises(E) as e: f()\nassert e.value.told()", "they use .told of an exception"),
        ("try: f()\nexcept E as e: assert e.told()", "they use .told of an exception"),
        ("assert f(lambda x: x)", "the program gets a function"),
        ("def g(x): return x\nassert f(g)", "the program gets g of the tests"),
        ("class Box: pass\nb = Box()\nassert f(b)", "the program gets b of the tests"),
        ("@f\ndef g(): pass", "f of the program decorates g"),
        ("import solution\nsolution.n = 3", "they change the program: solution.n = 3"),
        ("from unittest import mock\nwith mock.patch('n'): f()", "they use mock"),
        ("from unittest.mock import patch\n@patch('n')\ndef test_a(m): f()", "they use mock"),
        ("@pytest.fixture\ndef s():\n    return n()\ndef test_a(s):\n    assert s", "they use pytest.fixture"),
        ("def test_a(tmp_path):\n    assert f(str(tmp_path))", "the fixture 'tmp_path'"),
        ("import pytest\npytest.skip('x')\nassert f()", "they use pytest.skip"),
        ("async def test_a():\n    assert await f(1)", "they are asynchronous"),
        ("sys.stdin = io.StringIO('4')\nassert f() == 4", "they use sys.stdin"),
        ("assert eval(f(2)) == 4", "eval(f(2)) runs a text"),
        ("import pandas as pd\nassert f(pd.DataFrame()) == 1", "they use pandas"),
    ],
)
def test_what_needs_the_programs_own_process(source: str, reason: str) -> None:
    said = reason_for(ast.parse(source), NAMES, ())
    assert said.startswith(reason)
    assert bool(said) == bool(reason)


@pytest.mark.run
def test_such_tests_run_with_the_program_where_the_recipe_has_pytest() -> None:
    rows, wrong = (
        rows_of("one_process"),
        ("def f(x): return x", {"tests": "assert f(lambda x: 1) == 1\nassert f(2) == 2"}),
    )
    lacks = (
        "def f(x): return x",
        {"tests": "def test_a():\n    __import__('no_such_module')\n    assert f(str)(lambda x: 1)"},
    )
    needs = ("def f(x): return x", {"tests": "def test_a(no_such_fixture): assert f(1)"})
    attempts = [Attempt(program, reference) for program, reference, _ in rows.values()]
    attempts += [Attempt(*row) for row in (wrong, lacks, needs)]
    without = unit_tests.bind().score(attempts)
    assert {v.status for v in without} == {"verifier_error"}
    assert all(
        v.reason.startswith("needs one process: ") and "name pytest in sandbox.packages" in v.reason for v in without
    )
    try:
        configure(SandboxSettings(packages=("pytest",)))
        *within, failed, no_module, no_fixture = unit_tests.bind({"grading": "fraction"}).score(attempts)
    finally:
        configure(SandboxSettings())
    assert not {name: v.reason for name, v in zip(rows, within, strict=True) if v.reason != "passed (in one process)"}
    assert [v.status for v in (no_module, no_fixture)] == ["verifier_error"] * 2
    assert "no_such_module" in no_module.reason
    assert "no_such_fixture" in no_fixture.reason
    assert (failed.status, failed.score) == ("graded", 0.5)
    assert failed.reason.startswith("test 1: ")
    assert failed.reason.endswith(" (in one process)")
