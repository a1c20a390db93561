"""Rows in the layouts of public data sets: read by name, graded, and refused by name."""

import base64
import json
import pickle
import zlib
from pathlib import Path

import pytest

from tests.verifiers.program_rows import FAMILIES
from verizero.pipeline.config.data import Source
from verizero.pipeline.data.prompts import read_prompts
from verizero.pipeline.errors import DataError, IsolationError
from verizero.pipeline.types import Attempt
from verizero.verifiers._sandbox_jobs import Outcome
from verizero.verifiers.base import load
from verizero.verifiers.code import CodeParams, grade
from verizero.verifiers.layouts.base import layout_of, suite_of

LINE = "print(3 * int(input()) + 7)"
STDIN = {"tests": [{"input": "1", "output": "10"}]}
COUNT = 6
"""Rows of a data set: as many as differ in kind."""


@pytest.mark.run
@pytest.mark.parametrize("name", FAMILIES)
def test_rows_of_a_data_set(name, tmp_path):
    """Each row is read by its own layout; right programs and canonical answers are right, wrong ones wrong."""
    family = FAMILIES[name]
    made = family.rows(COUNT)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(m.row) + "\n" for m in made))
    source = Source.model_validate({"file": "rows.jsonl", "mapping": family.mapping})
    prompts = read_prompts([source], 0, tmp_path)[0]
    assert {layout_of(p.reference)[0] for p in prompts} == {family.layout}
    responses = [f"```python\n{m.wrong}\n```" for m in made] + [f"So:\n```python\n{m.right}\n```" for m in made]
    responses += [str(p.demonstration) for p in prompts] if family.has_canonical else []
    repeated = prompts * (len(responses) // COUNT)
    attempts = [Attempt(r, p.reference, p.question) for p, r in zip(repeated, responses, strict=True)]
    verdicts = load(prompts[0].verifier).bind().score(attempts)
    assert [(v.status, v.score) for v in verdicts[:COUNT]] == [("graded", 0.0)] * COUNT, verdicts
    assert {(v.status, v.score, v.reason) for v in verdicts[COUNT:]} == {("graded", 1.0, "passed")}, verdicts


@pytest.mark.parametrize("name", [n for n in FAMILIES if n != "prime_code"])
def test_whole_rows_are_references_too(name):
    """All published columns are known; of each data set, one that is not published is named."""
    row = FAMILIES[name].make(1).row
    layout = {"apps": "input_output"}.get(FAMILIES[name].layout, FAMILIES[name].layout)
    assert layout_of(row)[0] == layout
    with pytest.raises(DataError, match="has no key 'gold'"):
        layout_of({**row, "gold": 1})


@pytest.mark.parametrize(
    ("reference", "layout", "mode"),
    [
        ({"input_output": json.dumps({"inputs": ["1"], "outputs": ["2"]})}, "input_output", "stdin"),
        ({"ground_truth": json.dumps({"inputs": ["1"], "outputs": ["2"]}), "style": "rule"}, "ground_truth", "stdin"),
        ([{"input": "[2, 7]\n9", "output": "[0, 1]", "testtype": "functional", "metadata": {"func_name": "f"}}],
         "livecodebench_tests", "function"),
        ({"tests": [{"input": "[2]", "output": "1", "testtype": "functional"}], "fn_name": "f"},
         "livecodebench_tests", "function"),
        ([{"type": "function_call", "fn_name": "f", "input": [1], "output": [2]}], "synthetic", "function"),
        (json.dumps([{"type": "stdin_stdout", "input": "1", "output": "2"}]), "synthetic", "stdin"),
        ({"tests": json.dumps([{"input": "1", "output": "2"}])}, "tests", "stdin"),
    ],
)  # fmt: skip
def test_other_forms_of_the_same_tests(reference, layout, mode):
    name, tests = layout_of(reference)
    assert (name, tests.mode) == (layout, mode)


@pytest.mark.parametrize(("second", "fn"), [("sum([3])", "sum"), ("max([3])", None)])
def test_a_builtin_is_the_tested_function_if_all_asserts_call_it(second, fn):
    assert layout_of({"test_list": ["assert sum([1, 2]) == 3", f"assert {second} == 3"]})[1].fn == fn


BIG = {"entry_point": "task_func", "test": "import unittest\nclass TestCases(unittest.TestCase):\n    pass"}
REFUSED = [
    ({"testz": []}, r"no layout has its keys \(testz\).*apps: inputs, outputs;.*mbpp: test_list"),
    ({**STDIN, "chekcer": "x"}, "layout tests has no key 'chekcer'; did you mean checker?"),
    ({"inputs": ["1"], "outputs": ["1"], "time": 3}, "layout apps has no key 'time'"),
    ({"test_list": ["assert f(1)"], "imports": []}, "layout mbpp has no key 'imports'; did you mean test_imports?"),
    ([{"input": "[2]", "output": "1", "testtype": "functional"}], "no.*named; map the column 'metadata'"),
    ({"tests": [{"input": "1", "output": "2"}], "fn": "f"}, "reference.fn is 'f', and the tests have 'input'"),
    ({"inputs": ["1 2\n"], "outputs": ["3\n"], "fn": "f"}, "arguments must be JSON, one a line"),
    ({"inputs": ["3 4\n"], "outputs": [None]}, r"test 0.output: expected a text.*got None"),
    ({"tests": [{"input": "3", "output": None}]}, r"tests\[0\].output: expected a text"),
    ({"tests": [{"input": {"stdin": "3"}, "output": "3"}]}, r"tests\[0\].input: expected a text"),
    ({"inputs": ["1"], "outputs": [[[3, 4]]]}, "output: expected a text, or a list of lines"),
    ({"fn": "f", "tests": [{"args": "ab", "expected": "ba"}]}, "arguments must be a list, got 'ab'"),
    ({"fn": "f", "tests": [{"args": {"a": 2}, "expected": 1}]}, "arguments must be a list"),
    ({"fn": "f", "tests": [{"args": [1], "expected": 1, "kwargs": [1]}]}, "'kwargs' must be an object"),
    ({"fn": "f", "tests": [{"args": [1], "expected": 1, "kwrags": {}}]}, r"expected the keys args, expected"),
    ({**STDIN, "limits": {"seconds": 1}}, "reference.limits: expected an object with some of cpu_s"),
    ({**STDIN, "limits": {"cpu_s": -1}}, "reference.limits.cpu_s: expected a number above 0"),
    ({**STDIN, "limits": {"memory_mib": 2**40}}, "its limit memory_mib must be at most 1000000, got 1099511627776"),
    ({**STDIN, "language": "cobol"}, "'cobol' cannot run here; known: python, c, cpp"),
    ({"public_tests": {"input": [], "output": []}, "input_file": "in.txt"}, "read or write the file 'in.txt'"),
    ({"official_tests": [], "interaction_format": "asks"}, "the problem is interactive"),
    ({"official_tests": [], "input_mode": "file"}, "programs read standard input here, got 'file'"),
    ({"test": "def check(candidate): pass", "entry_point": "f"}, "has tests of the verifier 'unit_tests'"),
    ({**BIG, "libs": "['pandas', 'random', 'numpy']"}, "libs: needs numpy, pandas, which programs have not; install"),
    ({"test_list": ["import numpy\nassert f(1)"]}, "test_list: needs numpy"),
    ({"public_test_cases": "[]", "private_test_cases": "eJxrYJ"}, "private_test_cases: cannot be unpacked"),
    ({"verification_info": "{'test_cases': open('x')}"}, "neither JSON nor Python"),
]  # fmt: skip


@pytest.mark.parametrize(("reference", "error"), REFUSED)
def test_what_cannot_be_read_is_refused_by_name(reference, error):
    with pytest.raises(DataError, match=error):
        suite_of(reference)


@pytest.mark.parametrize(
    ("pickled", "error"),
    [
        (pickle.dumps(Path("x")), "STACK_GLOBAL"),
        (pickle.dumps(["[]"]), "EMPTY_LIST"),
        (b"Nr\xff\xff\xff\x00.", "NONE"),  # an unpickler would make a table of 2 ** 25 places
        (b"X\xff\xff\xff\x7fx.", "expected 2147483647 bytes"),
        (b".", "0 texts"),
        (b"X\x02\x00\x00\x00[]r\xff\xff\xff\x00.", None),
        *((pickle.dumps("[]", protocol), None) for protocol in range(6)),
    ],
)
def test_a_packed_column_is_a_text_and_nothing_is_unpickled(pickled, error):
    column = base64.b64encode(zlib.compress(pickled)).decode()
    reference = {"public_test_cases": '[{"input": "1", "output": "2"}]', "private_test_cases": column}
    if error is None:
        assert len(suite_of(reference).tests) == 1
        return
    with pytest.raises(DataError, match=rf"private_test_cases: cannot be unpacked .*{error}"):
        suite_of(reference)


DIGIT = "def check(input, output, expected):\n    a, b = map(int, input.split())\n    return int(output) != a + b"
DIGITS = {"inputs": ["2 5\n"], "outputs": ["2\n"], "checker": DIGIT}
BIGCODEBENCH = {
    "entry_point": "task_func", "libs": "['json']", "code_prompt": "def task_func(x):",
    "test": "import unittest, os\nfrom json import dumps\nclass TestCases(unittest.TestCase):\n"
    "    def test_a(self): self.assertEqual(task_func(1), ('[1]', os.sep))",
}  # fmt: skip
"""Answers use what its tests import."""


def of_function(args, expected, **more):
    """Return a reference with one test of a function."""
    return {"fn": "f", "tests": [{"args": args, "expected": expected}], **more}


ROWS = [
    (LINE, STDIN, True),
    (LINE, {"inputs": ["1\n"] * 1001, "outputs": ["10\n"] * 1001}, "1001 tests, and at most 1000 run; set max_tests"),
    (LINE, {"tests": [{"input": "\ud800", "output": "1"}]}, "surrogates not allowed"),
    ("def f(x): return 1", of_function([eval("[" * 90 + "]" * 90)], 1), True),
    ("def f(x): return 1", of_function([json.loads("[" * 300 + "]" * 300)], 1), "nest"),
    ("def f(x): return 1", {"fn": "f", "tests": [{"args": [[]], "kwargs": [1], "expected": 1}]}, "'kwargs' must be"),
    (LINE, {**STDIN, "checker": "def check(input, output, expected):\n    return 5"}, "check returned 5"),
    (LINE, {**STDIN, "checker": "x = 1"}, "KeyError: 'check'"),
    ("print(9)", DIGITS, True),
    ("print(7)", DIGITS, False),
    ("print('no digit')", DIGITS, False),
    ("1 / 0", DIGITS, False),
    ("def f(n): return {n, 1}", of_function([2], [1],
        checker="def check(input, output, expected): return set(output) == {1, *input}"), True),
    ("def f(n): return None", of_function([2], [1],
        checker="def check(input, output, expected): return output is None"), True),
    ("def f(x: List[int]) -> int:\n    return len(Counter(x)) + inf", of_function([[1]], float("inf")), True),
    ("from __future__ import annotations\ndef f(x: List[int]): return gcd(x, 6)", of_function([4], 2), True),
    ("def other(a, b): return gcd(a, b)", of_function([4, 6], 2) | {"fn": "gcd"}, False),
    ("def f(): return limit", of_function([], 3, setup="limit = 3"), True),
    ("import time\nprint(time.perf_counter() and 1)\nwhile True: pass",
     {"tests": [{"input": "", "output": "1"}], "limits": {"cpu_s": 0.2}}, False),
    ("```cpp\n#include <iostream>\nint main() { int a; std::cin >> a; std::cout << 2 * a; }\n```",
     {"tests": [{"input": "4\n", "output": "8\n"}], "language": "C++17"}, "needs g++"),
    (LINE, STDIN, True),
]  # fmt: skip
"""Programs with references, and whether they are right; words where the row cannot be graded, which costs no other."""


@pytest.mark.run
def test_checkers_imports_limits_and_rows_at_fault():
    verdicts = load("code").bind().score([Attempt(program, reference) for program, reference, _ in ROWS])
    for verdict, (program, _, wanted) in zip(verdicts, ROWS, strict=True):
        if wanted == "needs g++" and verdict.is_correct:
            continue  # it is installed
        if isinstance(wanted, str):
            assert verdict.is_infrastructure, (program, verdict)
            assert wanted in verdict.reason
        else:
            assert (verdict.is_infrastructure, verdict.is_correct) == (False, wanted), (program, verdict)
    programs = [f"def task_func(x): return dumps([{x}]), os.sep" for x in ("x", "x + 1")]
    verdicts = load("unit_tests").bind({}).score([Attempt(program, BIGCODEBENCH) for program in programs])
    assert [v.is_correct for v in verdicts] == [True, False]


def test_a_language_without_its_tool_costs_no_program_of_another():
    def run(jobs):
        if any(job.language == "c" for job in jobs):
            raise IsolationError("no gcc")
        return [Outcome("passed", 1.0) for _ in jobs]

    references = [{**STDIN, "language": language} for language in ("python", "C", "C++")]
    verdicts = grade([Attempt(LINE, reference) for reference in references], CodeParams(), run)
    assert [v.status for v in verdicts] == ["graded", "sandbox_error", "graded"]


@pytest.mark.run
def test_a_wrong_answer_says_what_went_in_and_came_out():
    rows = [
        ("print(int(input()) + 1)", {"tests": [{"input": "41\n", "output": "43\n"}]},
         "wrong_answer: test 1: for '41' expected '43', got '42'"),
        ("def f(a, b): return [a, b]", of_function([1, "x" * 99], 0),
         "wrong_answer: test 1: for [1, '" + "x" * 53 + ".. expected 0, got [1, '" + "x" * 53 + ".."),
    ]  # fmt: skip
    verdicts = load("code").bind().score([Attempt(program, reference) for program, reference, _ in rows])
    assert [v.reason for v in verdicts] == [wanted for _, _, wanted in rows]


@pytest.mark.run
def test_a_package_of_judges_that_is_absent_is_no_fault_of_the_program():
    rows = [
        ("from sortedcontainers import SortedList\ndef f(x): return x", "verifier_error", "sortedcontainers"),
        ("def f(x):\n    import os, numpy.linalg as la\n    return x", "verifier_error", "numpy"),
        ("import sortedcontainer\ndef f(x): return x", "graded", 0.0),
        ("def f(x): raise ImportError(\"No module named 'numpy'\")", "graded", 0.0),
        ("try: import numpy\nexcept ImportError: pass\ndef f(x): return x", "graded", 1.0),
        ("try: import numpy\nexcept ImportError: pass\ndef f(x): return 0", "graded", 0.0),
    ]
    for name, reference, end in (
        ("code", of_function([1], 1), ""),
        ("unit_tests", {"tests": "assert f(1) == 1"}, ""),
        ("code", {"tests": [{"input": "", "output": "1"}]}, "\nprint(f(1))"),
    ):
        verdicts = load(name).bind().score([Attempt(program + end, reference) for program, _, _ in rows])
        for verdict, (program, status, detail) in zip(verdicts, rows, strict=True):
            assert verdict.status == status, (program, verdict)
            is_told = verdict.score == detail if status == "graded" else f"imports {detail};" in verdict.reason
            assert is_told, (program, verdict)
