"""The code verifier: which program, which tests, what a verdict; then the same with the real sandbox."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifiers.fake_sandbox import FakeSandbox
from verizero.pipeline.types import Attempt, Verdict
from verizero.verifiers.code import CodeParams, code, grade
from verizero.verifiers.layouts.base import suite_of

LINE = {"fn": "f", "tests": [{"args": [x], "expected": 3 * x + 7} for x in range(3, 9)]}
SUM = {"tests": [{"input": f"{a} {b}\n", "output": f"{a + b}\n"} for a, b in [(1, 2), (10, -4), (0, 0)]]}
SOLVE_SUM = "a, b = map(int, input().split())\nprint(a + b)"
SOLVE_LINE = "def f(x): return 3*x+7"
SORTED = {"fn_name": "arrange", "inputs": [[[3, 1, 2]], [[1]]], "outputs": [[[1, 2, 3]], [[1]]]}


def one(response: str, reference: Any, truncated: bool = False, **params: Any) -> Verdict:
    return grade([Attempt(response, reference, truncated=truncated)], CodeParams(**params), FakeSandbox())[0]


GOLD = [
    (SOLVE_LINE, LINE),
    (f"<think>7 3</think>{SOLVE_LINE}", LINE),
    (f"7 3</think>\n{SOLVE_LINE}", LINE),
    (f"Here you are:\n```python\n{SOLVE_LINE}\n```\nIt adds.", LINE),
    (f"```\n{SOLVE_LINE}\n```", LINE),
    (f"~~~py\n{SOLVE_LINE}\n~~~", LINE),
    (f"````python\n{SOLVE_LINE}\n````", LINE),
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
BROKEN: list[Any] = [
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


@pytest.mark.parametrize(("response", "reference"), GOLD)
def test_right_programs_are_right(response: str, reference: Any) -> None:
    assert one(response, reference).is_correct


@pytest.mark.parametrize(("response", "reference"), WRONG)
def test_wrong_programs_are_wrong(response: str, reference: Any) -> None:
    said = one(response, reference)
    assert (said.status, said.score) == ("graded", 0.0)


@pytest.mark.parametrize(("response", "reason"), NOTHING)
def test_no_program_is_no_answer(response: str, reason: str) -> None:
    said = one(response, LINE)
    assert (said.status, said.reason) == ("no_answer", reason)


@pytest.mark.parametrize("reference", BROKEN)
def test_a_broken_reference_is_no_wrong_answer(reference: Any) -> None:
    said = one(SOLVE_LINE, reference)
    assert said.status == "verifier_error"
    assert "bad_reference" in said.reason


def test_a_cut_program_counts_only_in_a_closed_fence() -> None:
    assert one(SOLVE_LINE, LINE, truncated=True).status == "no_answer"
    assert one(f"```python\n{SOLVE_LINE}\n```\nand so", LINE, truncated=True).is_correct


def test_fraction_is_the_share_of_tests_that_pass() -> None:
    partly = "def f(x): return 3*x+7 if x < 5 else 0"
    assert one(partly, LINE, grading="fraction").score == pytest.approx(2 / 6)
    assert one(partly, LINE).score == 0.0


def test_a_program_past_its_time_is_a_timeout_unless_it_earned_a_share() -> None:
    late = "def f(x):\n    if x > 3: raise TimeoutError\n    return 3*x+7"
    assert one(late, LINE).status == "timeout"
    assert one(late, LINE, grading="fraction").score == pytest.approx(1 / 6)
    assert one("def f(x): raise TimeoutError", LINE, grading="fraction").status == "timeout"


def test_a_sandbox_that_is_down_is_no_wrong_answer() -> None:
    said = grade([Attempt(SOLVE_LINE, LINE), Attempt("", LINE)], CodeParams(), FakeSandbox(down=True))
    assert [v.status for v in said] == ["sandbox_error", "no_answer"]
    assert "no worker left" in said[0].reason


def test_equal_programs_run_once_and_order_is_kept() -> None:
    attempts = [Attempt(r, ref) for r, ref in GOLD + WRONG] * 4
    random.Random(3).shuffle(attempts)
    box = FakeSandbox()
    together = grade(attempts, CodeParams(), box)
    assert [(v.status, v.score) for v in together] == [
        (v.status, v.score) for v in (grade([a], CodeParams(), FakeSandbox())[0] for a in attempts)
    ]
    assert len(box.ran) == len({(j.program, json.dumps(list(j.tests))) for j in box.ran})
    assert len(box.ran) < len(attempts) / 3


def test_equal_programs_against_other_tests_run_apart() -> None:
    """1 and True and 1.0 are equal keys of a dict, and other tests all the same."""
    references = [{"fn": "f", "tests": [{"args": [0], "expected": e}]} for e in (1, True, 1.0, "1")]
    said = grade([Attempt("def f(x): return True", r) for r in references], CodeParams(), FakeSandbox())
    assert [v.score for v in said] == [0.0, 1.0, 0.0, 0.0]


@given(st.integers(1, 60), st.integers(1, 60))
def test_at_most_so_many_tests_spread_over_the_list(total: int, most: int) -> None:
    suite = suite_of({"tests": [{"input": str(i), "output": ""} for i in range(total)]}).first(most)
    chosen = [int(t["input"]) for t in suite.tests]
    assert len(chosen) == min(total, most)
    assert chosen == sorted(set(chosen))
    if most > 1:
        assert (chosen[0], chosen[-1]) == (0, total - 1)


def test_function_tests_need_python() -> None:
    said = one(SOLVE_LINE, LINE, language="bash")
    assert said.status == "verifier_error"
    assert "bash" in said.reason


def test_a_fence_of_the_language_is_found() -> None:
    for language, tag in (("bash", "sh"), ("javascript", "js"), ("cpp", "c++"), ("c", "c")):
        box = FakeSandbox()
        reply = f"```python\nprint(1)\n```\n```{tag}\nprint(3)\n```"
        grade([Attempt(reply, {"tests": [{"input": "", "output": "3"}]})], CodeParams(language=language), box)
        assert [(j.program, j.language) for j in box.ran] == [("print(3)", language)]


@pytest.mark.parametrize(("response", "reference"), [*GOLD, *WRONG])
def test_the_sandbox_agrees_with_the_fake(response: str, reference: Any) -> None:
    attempt = Attempt(response, reference)
    real, fake = code.bind().score([attempt])[0], grade([attempt], CodeParams(), FakeSandbox())[0]
    assert (real.status, real.score) == (fake.status, fake.score), real.reason


HACKS = {
    "exit_zero": "import sys\nsys.exit(0)",
    "exit_hard": "import os\nos._exit(0)",
    "equal_to_all": "class A:\n    def __eq__(self, o): return True\n    __hash__ = None\ndef f(x): return A()",
    "int_equal_to_all": "class A(int):\n    def __eq__(self, o): return True\ndef f(x): return A(0)",
    "frames": "import sys\ndef f(x):\n    fr = sys._getframe()\n    while fr:\n        for k in ('expected', 'test'):\n"
    "            if k in fr.f_locals: return fr.f_locals[k]\n        fr = fr.f_back",
    "gc": "import gc\ndef f(x):\n"
    "    return next(o['expected'] for o in gc.get_objects() if type(o) is dict and 'expected' in o)",
    "overwrites_tests": "import builtins, json\njson.dumps = lambda *a, **k: 'true'\nbuiltins.print = lambda *a: None\n"
    "def f(x): return True",
    "reads_files": "import glob\ndef f(x): return open(glob.glob('/tmp/*')[0]).read()",
    "raises_exit": "def f(x): raise SystemExit(0)",
    "prints_passed": "def f(x): print('passed', 3*x+7)",
    "forever": "def f(x):\n    while True: pass",
}


@pytest.mark.parametrize("name", HACKS)
def test_reward_hacks_earn_nothing(name: str) -> None:
    cpu_s = 0.3 if name == "forever" else 1
    said = code.bind({"cpu_s": cpu_s, "wall_s": 2}).score([Attempt(HACKS[name], LINE)])[0]
    assert said.status in ("graded", "timeout")
    assert said.score == 0.0
    assert (said.status == "timeout") == (name == "forever")
