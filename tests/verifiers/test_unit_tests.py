"""Asserts against programs that never see them: right and wrong programs, attacks, and tests that cannot be played."""

import ast

import pytest

from tests.sandbox.conftest import LEVEL_2
from tests.verifiers.suites import lines_of, rows_of
from verizero import sandbox
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Attempt
from verizero.sandbox.settings import SandboxSettings, configure
from verizero.verifiers._one_process import reason_for
from verizero.verifiers._test_suites import suite_of
from verizero.verifiers.unit_tests import unit_tests

RIGHT, WRONG, BROKEN, ATTACKS, SLOW = map(rows_of, ("right", "wrong", "broken", "attacks", "slow_attacks"))
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
"""Lists whose class is in the prompt: thousands of nodes, changed in place, and no method travels with them."""
TURN = (
    "def turn(n: Optional[Node]):\n    last = None\n    while n:\n        assert isinstance(n, Node)\n"
    "        n.next, last, n = last, n, n.next\n    return {}"
)
RIGHT_FORMS = [
    ("def double(x): return x * 2", DOUBLE),
    ("```python\ndef double(x): return x * 2\n```", "assert double(2) == 4"),
    (HAS_CLOSE, HUMAN_EVAL),
    ("def root(x):\n    if x < 0: raise ValueError(x)\n    return x ** 0.5", PYTEST),
    (
        "def f(x): return {'a': [1, (2, None)]}",
        {"test_list": ["assert f(1)['a'][1] == (2, None)"], "test_setup_code": ""},
    ),
    (
        "done = False\ndef f(x):\n    global done\n    if done: return None\n    done = True\n    return x",
        ["assert f(1) == 1", "assert f(2) == 2"],  # a process that tests share costs a program nothing
    ),
    (TURN.format("last"), LINKED),
    ("class Node:\n    def __init__(self, val, next=None): pass\n" + TURN.format("last"), LINKED),
]
WRONG_FORMS = [
    ("def double(x): return x + 2", DOUBLE),
    ("def has_close(xs, t): return True", HUMAN_EVAL),
    ("def root(x): return abs(x) ** 0.5", PYTEST),
    (TURN.format("None"), LINKED),
    ("class Node:\n    __slots__ = ()\n    def __eq__(s, o): return True\ndef turn(n): return n", LINKED),
    ("def turn(n):\n    n.same = lambda o: True\n    n.next = None\n    return n", LINKED),
]
BAD_REFERENCES = [
    {"tests": []},
    {"tests": "x = 1"},
    {"tests": "def ("},
    3,
    {"tests": ["assert 1 == 1"]},
    {"tests": "assert sorted(filter([1])) == [1]"},
    {"tests": "def f(x): return x\ndef test_g():\n    assert f(len([])) == 0"},
    {"test": "def check(c):\n    assert c(1)"},
]
PLAIN = [
    "None", "True", "3", "-7", "10**30", "-(10**4000)", "2.5", "float('inf')", "1e-300", "3+4j", "'a\\u00e9\\ud800'",
    "b'\\x00\\xff'", "bytearray(b'ab')", "[1, [2.0, (3,)]]", "(1, [2], {3})", "{'a': 1, 2: (3, None), (4, 5): {}}",
    "{1, 2}", "frozenset({(1, 2)})", "range(1, 9, 3)", "slice(1, None, 2)", "collections.deque([1, 2], 5)",
    "collections.Counter('aab')", "collections.OrderedDict([('b', 1), ('a', 2)])",
    "collections.defaultdict(list, {1: [2]})", "fractions.Fraction(1, 3)", "decimal.Decimal('1.10')",
    "datetime.date(2024, 2, 29)", "datetime.datetime(2024, 1, 2, 3, 4, tzinfo=datetime.timezone.utc)",
    "datetime.timedelta(days=1, seconds=2)", "datetime.time(1, 2)", "pathlib.Path('/a/b')", "re.compile('a+', re.I)",
    "int", "{'a': 1}.keys()", "{'a': 1}.items()", "{'a': 1}.values()",
]  # fmt: skip
"""Values that keep their type both ways."""


def graded(rows, **params):
    """Return (name, program, verdict) of each row, all graded in one batch."""
    bound = unit_tests.bind({"cpu_s": 3, **params})
    verdicts = bound.score([Attempt(program, reference) for program, reference, *_ in rows.values()])
    return [(name, row[0], verdict) for (name, row), verdict in zip(rows.items(), verdicts, strict=True)]


def of_plain():
    """Return a program that gives values back and names their types, and its tests, one a value."""
    tests = [
        f"x = {value}\ny = f(x)\nassert kind(x) == (type(x).__module__, type(x).__qualname__)\n"
        f"assert repr(x) == repr(y) and type(x) is type(y) and ({value.endswith('.values()')} or x == y)"
        for value in PLAIN
    ]
    modules = "import collections, fractions, decimal, datetime, pathlib, re"
    program = "def f(x): return x\ndef kind(x): return type(x).__module__, type(x).__qualname__"
    return program, {"setup": modules, "tests": tests}


@pytest.mark.run
def test_right_programs_pass():
    rows = {"plain values": of_plain()} | RIGHT | dict(enumerate(RIGHT_FORMS))
    assert not [(name, v.reason) for name, _, v in graded(rows, cpu_s=5) if not v.is_correct]


@pytest.mark.run
@pytest.mark.parametrize(
    ("rows", "status"),
    [
        (WRONG | dict(enumerate((*row, "") for row in WRONG_FORMS)), "graded"),
        (BROKEN, "verifier_error"),
        (
            dict(enumerate(("def f(x): return x", bad, "bad_reference") for bad in BAD_REFERENCES)),
            "verifier_error",
        ),
    ],
    ids=["wrong", "broken", "bad reference"],
)
def test_a_wrong_program_fails_a_test_at_fault_is_no_wrong_answer_and_the_reason_says_why(rows, status):
    for name, _, verdict in graded(rows, cpu_s=5):
        assert (verdict.status, verdict.score) == (status, 0.0), (name, verdict.reason)
        assert rows[name][2] in verdict.reason, name


@pytest.mark.run
def test_a_hang_in_one_test_costs_only_that_one_and_equal_programs_are_graded_in_order():
    slow = "def f(x):\n    while x == 1: pass\n    return x"
    tests = ["assert f(0) == 0", "assert f(1) == 1", "assert f(2) == 2"]
    [(_, _, verdict)] = graded({0: (slow, tests)}, grading="fraction", cpu_s=0.3, wall_s=60)
    assert (verdict.status, verdict.score) == ("graded", pytest.approx(2 / 3))
    programs = ("def double(x): return 2*x", "def double(x): return 0", "") * 20
    verdicts = [v for *_, v in graded(dict(enumerate((p, DOUBLE) for p in programs)))]
    assert [v.score for v in verdicts] == [1.0, 0.0, 0.0] * 20
    assert [v.status for v in verdicts[:3]] == ["graded", "graded", "no_answer"]


def test_splitting_keeps_every_assert():
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
def test_the_names_that_a_program_must_define(tests, fn, names):
    assert suite_of(tests, "", fn).names == names


@pytest.mark.parametrize("line", lines_of("reasons"))
def test_what_needs_the_programs_own_process(line):
    source, _, reason = line.replace("\\n", "\n").partition(" ||")
    needs = reason_for(ast.parse(source), ("n", "f", "E", "Bag"), ())
    assert needs.startswith(reason.strip())
    assert bool(needs) == bool(reason)


@pytest.mark.run
@pytest.mark.parametrize(
    ("walls", "step"),
    [(sandbox.WALLS, 1), (LEVEL_2, 8), pytest.param(LEVEL_2, 1, marks=pytest.mark.nightly)],
    ids=["level3", "level2 some", "level2"],
)
def test_such_tests_run_with_the_program_where_the_recipe_has_pytest(walls, step):
    rows = dict([*rows_of("one_process").items()][::step]) | {
        "wrong": ("def f(x): return x", {"tests": "assert f(lambda x: 1) == 1\nassert f(2) == 2"}),
        "no module": (
            "def f(x): return x",
            {"tests": "def test_a():\n    __import__('no_such_module')\n    assert f(str)(lambda x: 1)"},
        ),
        "no fixture": ("def f(x): return x", {"tests": "def test_a(no_such_fixture): assert f(1)"}),
    }
    for *_, verdict in graded(rows):
        assert verdict.status == "verifier_error"
        assert verdict.reason.startswith("needs one process: ")
        assert "name pytest in sandbox.packages" in verdict.reason
    try:
        configure(SandboxSettings(packages=("pytest",)))
        sandbox.configure(walls=walls, packages=("pytest",))
        *within, (_, _, wrong), (_, _, no_module), (_, _, no_fixture) = graded(rows, grading="fraction")
    finally:
        configure(SandboxSettings())
    assert not [(name, v.reason) for name, _, v in within if v.reason != "passed (in one process)"]
    for verdict, missing in ((no_module, "no_such_module"), (no_fixture, "no_such_fixture")):
        assert verdict.status == "verifier_error"
        assert missing in verdict.reason
    assert (wrong.status, wrong.score) == ("graded", 0.5)
    assert wrong.reason.startswith("test 1: ")
    assert wrong.reason.endswith(" (in one process)")


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


def attacks():
    """Yield programs that want the reward without the work, with tests that an honest program could pass."""
    yield "liar", (LIAR, COMPARED)
    undeserved = [test for test in COMPARED if not any(each in test for each in DESERVED)]
    for base, value in BASES.items():
        yield base, (SUBCLASSES.format(base=base, value=value), undeserved)
    double = ["assert f(2) == 4", "assert f(3) == 6"]
    for name, act in (line.split(" | ", 1) for line in lines_of("frames")):
        yield f"frame in a call: {name}", (f"{_SEND}def f(x):\n    {act}\n    return 0", double)
        yield f"frame at load: {name}", (f"{_SEND}{act}\ndef f(x): return 0", double)
    yield from ATTACKS.items()
    yield "stop in a map", (ATTACKS["stops"].program, ["assert all(map(lambda c: f(c) == 2 * c, [1, 2]))"])


@pytest.mark.run
def test_no_attack_earns_anything_or_looks_like_a_failure_of_the_grader():
    for name, _, verdict in graded(dict(attacks()), grading="fraction"):
        assert (verdict.score, verdict.status in ("graded", "timeout")) == (0.0, True), (name, verdict)
    for name, _, verdict in graded(SLOW, cpu_s=0.5, wall_s=2, memory_mib=128):
        assert (verdict.score, verdict.status in ("graded", "timeout")) == (0.0, True), (name, verdict)
        assert SLOW[name].reason in verdict.status, name
