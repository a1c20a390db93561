"""Rows of programs in the columns of public data sets, made here, each with a right and a wrong program."""

import base64
import json
import pickle
import textwrap
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
NUMBERS = ([3, 1, 2], [], [5], [-4, 4], [7, 7, 7])


@dataclass(frozen=True)
class Made:
    """One row, the program that is right for it, and one that is wrong."""

    row: Row
    right: str
    wrong: str


@dataclass(frozen=True)
class Family:
    """The rows of one data set: the mapping that is shipped for it, the layout of its references, and its maker."""

    mapping: str
    layout: str
    make: Callable[[int], Made]
    has_canonical: bool = True
    params: dict[str, Any] = field(default_factory=dict)

    def rows(self, count=20):
        """Return the first rows."""
        return [self.make(i) for i in range(count)]


def value(i, numbers):
    """Return the right answer of task i: a number of a list of numbers."""
    return i * sum(numbers) + len(numbers)


def stdin_program(i, plus=0):
    return f"numbers = list(map(int, input().split()))\nprint({i} * sum(numbers) + len(numbers) + {plus})"


def function(i, name, plus=0):
    return f"def {name}(numbers: List[int]) -> int:\n    return {i} * sum(numbers) + len(numbers) + {plus}"


def method(i, name, plus=0):
    body = function(i, name, plus).replace("(numbers: ", "(self, numbers: ").replace("\n", "\n    ")
    return f"class Solution:\n    {body}"


def texts():
    return [" ".join(map(str, numbers)) + "\n" for numbers in NUMBERS]


def outputs(i):
    return [f"{value(i, numbers)}\n" for numbers in NUMBERS]


def asserts(i, name):
    return [f"assert {name}({numbers}) == {value(i, numbers)}" for numbers in NUMBERS]


def apps(i):
    """Odd rows are of a function, whose expected values are wrapped in every other of them."""
    tests = {"inputs": texts(), "outputs": outputs(i)}
    starter, right, wrong = "", stdin_program(i), stdin_program(i, 1)
    if i % 2:
        wrapped = [[value(i, n)] if i % 4 == 1 else value(i, n) for n in NUMBERS]
        tests = {"fn_name": "solve", "inputs": [[n] for n in NUMBERS], "outputs": wrapped}
        starter, right, wrong = "class Solution:\n", method(i, "solve"), method(i, "solve", 1)
    row = {
        "problem_id": i,
        "question": f"Task {i}.",
        "solutions": json.dumps([right]),
        "input_output": json.dumps(tests),
        "difficulty": "interview",
        "url": "",
        "starter_code": starter,
    }
    return Made(row, right, wrong)


def taco(i):
    made = apps(i)
    row = {k: v for k, v in made.row.items() if k != "problem_id"}
    return Made({**row, "tags": "['math']", "source": "codeforces"}, made.right, made.wrong)


def humaneval(i):
    """The prompt has an import that answers leave out, and in every other row a helper that tests call."""
    name, helper = f"task_{i}", "def total(numbers: List[int]) -> int:\n    return sum(numbers)\n\n\n"
    head = f"def {name}(numbers: List[int]) -> int:\n"
    prompt = f'from typing import List\n\n\n{helper if i % 2 else ""}{head}    """ Task {i}. """\n'
    checks = [line.replace(name, "candidate") for line in asserts(i, name)]
    if i % 2:
        checks[0] = f"assert candidate([3, 1, 2]) == {i} * total([3, 1, 2]) + 3"
    metadata = "\n\nMETADATA = {'author': 'x', 'dataset': 'test'}\n\n\n"
    row = {
        "task_id": f"Made/{i}",
        "prompt": prompt,
        "canonical_solution": function(i, name).partition("\n")[2] + "\n",
        "test": metadata + "def check(candidate):\n" + "\n".join(f"    {line}" for line in checks) + "\n\n",
        "entry_point": name,
    }
    right = function(i, name).replace("sum(", "total(") if i % 2 else function(i, name)
    return Made(row, right, function(i, name, 1))


def evalplus(i):
    """Tests that run over lists of inputs and results, and compare floats by numpy."""
    made = humaneval(2 * i)
    test = f"""

import numpy as np

def is_floats(x) -> bool:
    if isinstance(x, float):
        return True
    if isinstance(x, (list, tuple)):
        return all(isinstance(i, float) for i in x)
    if isinstance(x, np.ndarray):
        return x.dtype == np.float64 or x.dtype == np.float32
    return False

def assertion(out, exp, atol):
    exact_match = out == exp
    if atol == 0 and is_floats(exp):
        atol = 1e-6
    if not exact_match and atol != 0:
        assert np.allclose(out, exp, rtol=1e-07, atol=atol)
    else:
        assert exact_match

def check(candidate):
    inputs = {[[n] for n in NUMBERS]}
    results = {[value(2 * i, n) / 3 for n in NUMBERS]}
    for i, (inp, exp) in enumerate(zip(inputs, results)):
        assertion(candidate(*inp), exp, 0)
"""
    third = [p.replace("return ", "return 1 / 3 * (") + ")" for p in (made.right, made.wrong)]
    solution = third[0].partition("\n")[2] + "\n"
    return Made({**made.row, "test": test, "canonical_solution": solution}, third[0], third[1])


def mbpp_plus(i):
    """The tests of EvalPlus at the top of the file, which name no entry point."""
    made = evalplus(i)
    name = f"task_{2 * i}"
    helpers, _, check = made.row["test"].partition("def check(candidate):\n")
    right, wrong = (f"from typing import List\n{program}" for program in (made.right, made.wrong))
    row = {
        "task_id": i,
        "code": right,
        "prompt": f"Write a function for task {i}.",
        "source_file": "made.py",
        "test_imports": [],
        "test_list": [f"assert {name}([]) == 0.0"],
        "test": helpers + textwrap.dedent(check).replace("candidate(", f"{name}("),
    }
    return Made(row, right, wrong)


def mbpp(i):
    """Every third function has a builtin's name; every other row has setup code."""
    name = "filter" if i % 3 == 0 else f"task_{i}"
    tests = asserts(i, name)[:3]
    setup = "BIG = [10, 20]" if i % 2 else ""
    if i % 2:
        tests[2] = f"assert {name}(BIG) == {value(i, [10, 20])}"
    row = {
        "task_id": i,
        "text": f"Write a function for task {i}.",
        "code": f"from typing import List\r\n{function(i, name)}",
        "test_list": tests,
        "test_setup_code": setup,
        "challenge_test_list": [],
    }
    return Made(row, function(i, name), function(i, name, 1))


def mbpp_sanitized(i):
    tests = [f"assert math.isclose(task_{i}({n}), math.pi * {value(i, n)}, rel_tol=1e-6)" for n in NUMBERS[:3]]
    right, wrong = (
        f"import math\ndef task_{i}(n):\n    return math.pi * ({i} * sum(n) + len(n) + {p})" for p in (0, 1)
    )
    row = {
        "source_file": "made.json",
        "task_id": i,
        "prompt": f"Write a function for task {i}.",
        "code": right,
        "test_imports": ["import math"],
        "test_list": tests,
    }
    return Made(row, right, wrong)


def leetcode(i):
    """Answers need what `prompt` imports; tests call the method by names of its arguments."""
    checks = "".join(f"    assert candidate(numbers = {n}) == {value(i, n)}\n" for n in NUMBERS)
    right = method(i, "taskOf").replace("sum(numbers)", "reduce(lambda a, b: a + b, numbers, 0)")
    row = {
        "task_id": f"task-{i}",
        "question_id": i,
        "difficulty": "Easy",
        "tags": ["Array"],
        "problem_description": f"Task {i}.",
        "starter_code": "class Solution:\n    def taskOf(self, numbers: List[int]) -> int:\n        ",
        "prompt": "import random\nfrom typing import *\nfrom functools import *\n\ninf = float('inf')\n",
        "completion": right,
        "entry_point": "Solution().taskOf",
        "test": f"def check(candidate):\n{checks}",
        "input_output": [{"input": f"numbers = {n}", "output": str(value(i, n))} for n in NUMBERS],
        "query": f"Solve task {i}.",
        "response": "",
    }
    return Made(row, right, method(i, "taskOf", 1))


def kodcode(i):
    """Every third row imports two functions."""
    names = [f"task_{i}", f"twice_{i}"] if i % 3 == 0 else [f"task_{i}"]
    second = f"\n\ndef twice_{i}(x):\n    return 2 * x" if i % 3 == 0 else ""
    test = f"import pytest\nfrom solution import {', '.join(names)}\n\n"
    test += f"def test_empty():\n    assert task_{i}([]) == 0\n\n"
    test += f"@pytest.mark.parametrize('n, want', {[(n, value(i, n)) for n in NUMBERS]})\n"
    test += f"def test_all(n, want):\n    assert task_{i}(n) == want\n"
    test += f"\ndef test_twice():\n    assert twice_{i}(2) == 4\n" if second else ""
    row = {
        "question_id": f"Made_{i}",
        "question": f"Task {i}.",
        "solution": "from typing import List\n" + function(i, f"task_{i}") + second,
        "test": test,
        "test_info": [{"function_declaration": f"def task_{i}(numbers):", "function_name": f"task_{i}"}],
        "gpt_pass_percentage": 1.0,
    }
    return Made(row, function(i, f"task_{i}") + second, function(i, f"task_{i}", 1) + second)


def livecodebench(i):
    """Private tests are packed in every third row; odd rows are of a function, which `metadata` names."""
    if i % 2:
        tests = [
            {"input": f"{json.dumps(n)}\n{json.dumps('ab')}", "output": str(value(i, n)), "testtype": "functional"}
            for n in NUMBERS
        ]
        right, wrong = (method(i, "solveIt", p).replace("List[int])", "List[int], s: str)") for p in (0, 1))
    else:
        pairs = zip(texts(), outputs(i), strict=True)
        tests = [{"input": a, "output": b, "testtype": "stdin"} for a, b in pairs]
        right, wrong = stdin_program(i), stdin_program(i, 1)
    private = json.dumps(tests[2:])
    if i % 3 == 0:
        private = base64.b64encode(zlib.compress(pickle.dumps(private))).decode()
    row = {
        "question_title": "Made",
        "question_content": f"Task {i}.",
        "platform": "leetcode" if i % 2 else "atcoder",
        "question_id": f"made_{i}",
        "contest_id": "made",
        "contest_date": "2026-01-01T00:00:00",
        "starter_code": "class Solution:\n    def solveIt(self, numbers: List[int], s: str) -> int:" if i % 2 else "",
        "difficulty": "easy",
        "public_test_cases": json.dumps(tests[:2]),
        "private_test_cases": private,
        "metadata": json.dumps({"func_name": "solveIt"} if i % 2 else {}),
    }
    return Made(row, right, wrong)


def code_contests(i):
    given, wanted = texts(), outputs(i)
    row = {
        "name": f"{i}_A. Made",
        "description": f"Task {i}.",
        "source": 2,
        "public_tests": {"input": given[:1], "output": wanted[:1]},
        "private_tests": {"input": given[1:3], "output": wanted[1:3]},
        "generated_tests": {"input": given[3:], "output": wanted[3:]},
        "time_limit": {"seconds": 2, "nanos": 0},
        "memory_limit_bytes": 256_000_000,
        "solutions": {"language": [3], "solution": [stdin_program(i)]},
    }
    # Wrong on generated tests alone.
    return Made(row, stdin_program(i), stdin_program(i, 0).replace("len(numbers)", "len(set(numbers))"))


FILE_CHECKER = """import sys
def main():
    input_text, wanted, said = (open(path).read() for path in sys.argv[1:4])
    numbers = list(map(int, input_text.split()))
    print(1 if sum(map(int, said.split())) == int(wanted) else 0)
main()
"""


def codeforces(i):
    """Any numbers with the right sum are right, so the stored output is one of many."""
    wanted = [str(value(i, n)) for n in NUMBERS]
    row = {
        "id": f"{i}/A",
        "title": "Made",
        "description": f"Task {i}: print numbers with this sum.",
        "input_format": "Numbers.",
        "output_format": "Numbers.",
        "note": None,
        "examples": [{"input": "1", "output": "1"}],
        "time_limit": 2.0,
        "memory_limit": 256.0,
        "input_mode": "stdio",
        "interaction_format": None,
        "official_tests": [{"input": a, "output": b} for a, b in zip(texts(), wanted, strict=True)],
        "official_tests_complete": True,
        "generated_checker": FILE_CHECKER,
        "language": "python",
    }
    split = "\nprint(1, numbers_value - 1)"
    right = stdin_program(i).replace("print(", "numbers_value = (") + split
    wrong = "print('no number')" if i % 2 else stdin_program(i, 1)
    return Made(row, right, wrong)


def synthetic(i):
    """Odd rows call a function; their column is written as Python writes it in every third row."""
    if i % 2:
        cases = [{"type": "function_call", "fn_name": "solve", "input": [n], "output": [value(i, n)]} for n in NUMBERS]
        right, wrong = function(i, "solve"), function(i, "solve", 1)
    else:
        pairs = zip(texts(), outputs(i), strict=True)
        cases = [{"type": "stdin_stdout", "input": a, "output": b} for a, b in pairs]
        right, wrong = stdin_program(i), stdin_program(i, 1)
    info = {"language": "python", "test_cases": cases}
    row = {
        "source": "apps",
        "task_type": "verifiable_code",
        "problem_id": f"vcp_{i}",
        "prompt": f"Task {i}.",
        "gold_standard_solution": f"```python\n{right}\n```",
        "verification_info": repr(info) if i % 3 == 0 else json.dumps(info),
        "metadata": "{}",
    }
    return Made(row, right, wrong)


def prime_code(i):
    """Odd rows call a function with JSON, one value a line, as rows of LiveCodeBench in this form do."""
    tests = {"inputs": texts(), "outputs": outputs(i)}
    right, wrong = stdin_program(i), stdin_program(i, 1)
    if i % 2:
        tests = {
            "fn_name": "solve",
            "inputs": [json.dumps(n) for n in NUMBERS],
            "outputs": [json.dumps(str(value(i, n))) for n in NUMBERS],
        }
        right, wrong = (function(i, "solve", p).replace("return ", "return str(") + ")" for p in (0, 1))
    row = {
        "data_source": "taco",
        "prompt": [{"role": "system", "content": "Answer."}, {"role": "user", "content": f"Task {i}."}],
        "ability": "code",
        "reward_model": {"style": "rule", "ground_truth": json.dumps(tests)},
        "extra_info": {"index": i, "split": "train"},
    }
    return Made(row, right, wrong)


FAMILIES = {
    "apps": Family("apps", "apps", apps),
    "taco": Family("taco", "apps", taco),
    "humaneval": Family("humaneval", "humaneval", humaneval),
    "evalplus": Family("humaneval", "evalplus", evalplus),
    "mbpp": Family("mbpp", "mbpp", mbpp),
    "mbpp_plus": Family("mbpp_plus", "mbpp_plus", mbpp_plus),
    "mbpp_sanitized": Family("mbpp_sanitized", "mbpp", mbpp_sanitized),
    "leetcode": Family("leetcode", "leetcode", leetcode),
    "kodcode": Family("kodcode", "kodcode", kodcode),
    "livecodebench": Family("livecodebench", "livecodebench", livecodebench, has_canonical=False),
    "code_contests": Family("code_contests", "code_contests", code_contests, has_canonical=False),
    "codeforces": Family("codeforces", "codeforces", codeforces, has_canonical=False),
    "synthetic": Family("synthetic", "verification_info", synthetic),
    "prime_code": Family("prime_code", "apps", prime_code, has_canonical=False),
}
