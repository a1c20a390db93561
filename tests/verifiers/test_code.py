"""The verifier of code: which program, which tests, and which verdict."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verizero.pipeline.types import Attempt
from verizero.verifiers import code, sql
from verizero.verifiers._sandbox_jobs import Outcome
from verizero.verifiers.layouts.base import suite_of

LINE = {"fn": "f", "tests": [{"args": [x], "expected": 3 * x + 7} for x in range(3, 9)]}
SUM = {"tests": [{"input": f"{a} {b}\n", "output": f"{a + b}\n"} for a, b in [(1, 2), (10, -4), (0, 0)]]}
SOLVE_SUM = "a, b = map(int, input().split())\nprint(a + b)"
SOLVE_LINE = "def f(x): return 3*x+7"
SORTED = {"fn_name": "arrange", "inputs": [[[3, 1, 2]], [[1]]], "outputs": [[[1, 2, 3]], [[1]]]}


def graded(rows, **params):
    return code.code.bind(params).score([Attempt(response, reference) for response, reference in rows])


def one(response, reference, **params):
    return graded([(response, reference)], **params)[0]


def jobs_of(rows, **params):
    """Return the jobs that the sandbox would get."""
    ran = []

    def run(jobs):
        ran.extend(jobs)
        return [Outcome("passed", 1.0)] * len(jobs)

    code.grade([Attempt(response, reference) for response, reference in rows], code.CodeParams(**params), run)
    return ran


RIGHT = [
    (SOLVE_LINE, LINE),
    (f"<think>7 3</think>{SOLVE_LINE}", LINE),
    (f"7 3</think>\n{SOLVE_LINE}", LINE),
    (f"Here you are:\n```python\n{SOLVE_LINE}\n```\nIt adds.", LINE),
    (f"```\n{SOLVE_LINE}\n```", LINE),
    (f"<answer>\n```python\n{SOLVE_LINE}\n```\n</answer>", LINE),
    (f"<answer>{SOLVE_LINE}</answer>", LINE),
    ("```python\ndef f(x): return 0\n```\nBetter:\n```python\n" + SOLVE_LINE + "\n```", LINE),
    (f"```python\n{SOLVE_LINE}\n```\nUse it so:\n```python\nprint(f(2))\n```", LINE),
    (f"```python\n{SOLVE_LINE}\n```\nIt prints\n```text\n13\n```", LINE),
    ("f = lambda x: 3*x + 7", LINE),
    ("class Solution:\n    def f(self, x):\n        return 3*x+7", LINE),
    (SOLVE_LINE, json.dumps(LINE)),
    (SOLVE_LINE, [{"fn": "f", "args": [1], "expected": 10}]),
    (SOLVE_SUM, SUM),
    (f"```python\n{SOLVE_SUM}\n```", SUM),
    (SOLVE_SUM, {"inputs": ["1 2\n", ["3 4"]], "outputs": ["3\n", ["7"]]}),
    (SOLVE_SUM, {"input_output": json.dumps({"inputs": ["1 2\n"], "outputs": ["3\n"]})}),
    ("def arrange(x): return sorted(x)", SORTED),
    ("def arrange(x): return sorted(x)", {**SORTED, "inputs": ["[3, 1, 2]", "[1]"]}),
    ("def arrange(x): return [len(x)]", {"fn_name": "arrange", "inputs": [[[3, 1]], [[1]]], "outputs": [[2], [1]]}),
    ("def arrange(x): return len(x)", {"fn_name": "arrange", "inputs": [[[3, 1]], [[1]]], "outputs": [[2], [1]]}),
]
WRONG = [
    ("def f(x): return 3*x+8", LINE),
    ("def g(x): return 3*x+7", LINE),
    ("def f(x): return str(3*x+7)", LINE),
    ("def f(x): raise ValueError", LINE),
    ("I would multiply by three and add seven.", LINE),
    (f"{SOLVE_LINE}\n```python\ndef f(x): return 0\n```", LINE),
    (f"```python\n{SOLVE_LINE}\n```\n```python\ndef f(x): return 0\n```", LINE),
    (f"<think>{SOLVE_LINE}</think>pass", LINE),
    ("print(3)", SUM),
    ("def arrange(x): return x", SORTED),
    ("def arrange(x): return [[1, 2, 3]] if len(x) > 1 else 1", SORTED),
]
NOTHING = [
    ("", "empty_answer"),
    (f"<think>{SOLVE_LINE}</think>", "empty_answer"),
    (f"<think>{SOLVE_LINE}", "unclosed_thinking"),
    (f"```python\n{SOLVE_LINE}", "unclosed_fence"),
    ("```cpp\nint f(int x) { return 3*x+7; }\n```", "no_python_block: fences of cpp"),
    ("```\n```\n", "no_python_block: empty fences"),
    ("```cpp\nf\n```\n```text\n13\n```", "no_python_block: fences of cpp, text"),
]
BROKEN = [
    {"tests": []},
    {"tests": [{"args": [1], "expected": 2}]},
    {"tests": [{"fn": "f", "args": [1]}]},
    {"tests": [{"fn": "f", "args": [1], "expected": 2}, {"input": "1", "output": "2"}]},
    {"inputs": ["1"], "outputs": []},
    {"inputs": [], "outputs": []},
    "not json",
    None,
    7,
]


@pytest.mark.run
def test_programs_are_graded_in_any_order_and_equal_ones_run_once():
    labelled = [(*row, True) for row in RIGHT] + [(*row, False) for row in WRONG]
    random.Random(3).shuffle(labelled)
    rows = [row[:2] for row in labelled] * 2
    for verdict, (response, _, is_right) in zip(graded(rows), labelled * 2, strict=True):
        assert (verdict.status, verdict.score) == ("graded", float(is_right)), (response, verdict)
    ran = jobs_of(rows)
    assert len(ran) == len({(j.program, json.dumps(list(j.tests))) for j in ran}) < len(labelled)


@pytest.mark.parametrize(("response", "reason"), NOTHING)
def test_no_program_is_no_answer(response, reason):
    verdict = one(response, LINE)
    assert (verdict.status, verdict.reason) == ("no_answer", reason)


def test_a_broken_reference_is_no_wrong_answer():
    for verdict, reference in zip(graded([(SOLVE_LINE, b) for b in BROKEN]), BROKEN, strict=True):
        assert (verdict.status, "bad_reference" in verdict.reason) == ("verifier_error", True), reference
    verdict = one(SOLVE_LINE, LINE, language="bash")
    assert (verdict.status, "bash" in verdict.reason) == ("verifier_error", True)


def test_a_cut_program_counts_only_in_a_closed_fence():
    cut = [SOLVE_LINE, f"```python\n{SOLVE_LINE}\n```\nand so"]
    verdicts = code.code.bind().score([Attempt(response, LINE, truncated=True) for response in cut])
    assert [(v.status, v.score) for v in verdicts] == [("no_answer", 0.0), ("graded", 1.0)]


@pytest.mark.run
def test_a_share_of_tests_earns_a_share_and_only_time_without_one_is_a_timeout():
    two = {"fn": "f", "tests": [{"args": [x], "expected": x} for x in (1, 2)]}
    programs = {"1": (0.0, 0.5, "graded"), "x if x < 2 else sum(0 for _ in iter(int, 1))": (0.0, 0.5, "timeout")}
    programs["sum(0 for _ in iter(int, 1))"] = (0.0, 0.0, "timeout")
    for body, (whole, share, status) in programs.items():
        verdict = one(f"def f(x): return {body}", two, cpu_s=0.3)
        assert (verdict.score, verdict.status) == (whole, status), body
        verdict = one(f"def f(x): return {body}", two, cpu_s=0.3, grading="fraction")
        assert (verdict.score, verdict.status) == (share, "graded" if share else status), body


def test_a_sandbox_that_is_down_is_no_wrong_answer():
    def down(jobs):
        raise OSError("no worker left")

    lost, empty = code.grade([Attempt(SOLVE_LINE, LINE), Attempt("", LINE)], code.CodeParams(), down)
    assert (lost.status, empty.status) == ("sandbox_error", "no_answer")
    assert "no worker left" in lost.reason
    query = Attempt("SELECT 1", {"setup": "CREATE TABLE t (x)", "query": "SELECT 1"})
    assert sql.grade([query], sql.SqlParams(), down)[0].status == "sandbox_error"


def test_equal_programs_against_other_tests_run_apart():
    """1 and True and 1.0 are equal keys of a dict, and other tests all the same."""
    references = [{"fn": "f", "tests": [{"args": [0], "expected": e}]} for e in (1, True, 1.0, "1")]
    verdicts = graded([("def f(x): return True", r) for r in references])
    assert [v.score for v in verdicts] == [0.0, 1.0, 0.0, 0.0]


@given(st.integers(1, 60), st.integers(1, 60))
def test_at_most_so_many_tests_spread_over_the_list(total, most):
    suite = suite_of({"tests": [{"input": str(i), "output": ""} for i in range(total)]}).first(most)
    chosen = [int(t["input"]) for t in suite.tests]
    assert len(chosen) == min(total, most)
    assert chosen == sorted(set(chosen))
    if most > 1:
        assert (chosen[0], chosen[-1]) == (0, total - 1)


@pytest.mark.parametrize(("language", "tag"), [("bash", "sh"), ("javascript", "js"), ("cpp", "c++"), ("c", "c")])
def test_a_fence_of_the_language_is_found(language, tag):
    reply = f"```python\nprint(1)\n```\n```{tag}\nprint(3)\n```"
    jobs = jobs_of([(reply, {"tests": [{"input": "", "output": "3"}]})], language=language)
    assert [(j.program, j.language) for j in jobs] == [("print(3)", language)]
