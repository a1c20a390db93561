"""References of tests that are Python source: asserts, check(candidate), pytest and unittest; what they import."""

from __future__ import annotations

import ast
import builtins
import re
import sys
import textwrap
from typing import Any

from verizero.pipeline.errors import DataError
from verizero.sandbox import settings
from verizero.verifiers.layouts.base import Asserts, Layout, Reference, text_of

OF_TESTS = frozenset({"pytest", "solution", "main", "your_module"})
"""Names that tests may import besides the standard library: what `unit_tests` provides, and the program."""
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


def parsed(source: Any, field: str) -> ast.Module:
    """Return the syntax tree of a source of the data. Raises: DataError naming the field, or the packages it lacks."""
    try:
        tree = ast.parse(text_of(source, field))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
        raise DataError(f"{field}: not Python: {exc}") from exc
    require_packages((name for node in ast.walk(tree) for name in _imported(node)), field)
    return tree


def require_packages(names: Any, field: str) -> None:
    """Raise DataError naming the packages that the sandbox has not."""
    others = set(names) - OF_TESTS - set(sys.stdlib_module_names) - {"__future__"}
    if others and (missing := sorted(others - settings.modules())):
        raise DataError(
            f"{field}: needs {', '.join(missing)}, which programs have not; install the package and name it in "
            "sandbox.packages, or leave such rows out by on_bad_row: skip"
        )


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return (
        [node.module.partition(".")[0]] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
    )


def helpers_of(prompt: Any, fn: str) -> str:
    """Return the imports and helpers of a task's text in Python, without the function `fn` that it asks for."""
    tree = parsed(prompt, "reference.prompt")
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == fn)
    ]
    return ast.unparse(tree)


def function_name(entry_point: Any) -> str:
    """Return the name of a function or method: `f`, `Solution().f` and `Solution.f` are all f. Raises: DataError."""
    name = text_of(entry_point, "reference.entry_point").strip().rpartition(".")[2].removesuffix("()")
    if not name.isidentifier():
        raise DataError(f"reference.entry_point: expected a function's name, got {entry_point!r:.60}")
    return name


def _asserts(reference: Reference) -> Asserts | None:
    """Return the tests; None if they are tests of inputs and outputs."""
    tests = reference["tests"]
    if isinstance(tests, list) and tests and all(isinstance(t, str) for t in tests):
        tests = "\n".join(tests)
    if not isinstance(tests, str) or not tests.strip():
        return None
    tree = parsed(tests, "reference.tests")
    if not any(isinstance(n, ast.Assert | ast.FunctionDef | ast.ClassDef) for n in ast.walk(tree)):
        return None
    setup, prompt = (text_of(reference.get(key, ""), f"reference.{key}") for key in ("setup", "prompt"))
    for key, source in (("setup", setup), ("prompt", prompt)):
        parsed(source, f"reference.{key}")
    fn = reference.get("fn")
    if fn is not None and not isinstance(fn, str):
        raise DataError(f"reference.fn: expected a function's name, got {fn!r:.60}")
    return Asserts(tests, setup, function_name(fn) if fn else None, prompt)


def _check_tests(reference: Reference) -> Asserts:
    """Return the tests of check(candidate)."""
    fn = function_name(reference["entry_point"])
    parsed(reference["test"], "reference.test")
    prompt = helpers_of(reference["prompt"], fn) if reference.get("prompt") else ""
    return Asserts(reference["test"], text_of(reference.get("setup", ""), "reference.setup"), fn, prompt)


def _without_numpy(test: Any) -> Any:
    """Return tests with the lines above in place of numpy; as they are, if they use another part of it, or none."""
    if not isinstance(test, str) or not IMPORT.search(test):
        return test
    source = IMPORT.sub("", test)
    used = set(re.findall(r"\bnp\.(\w+)", source))
    return STAND_IN + source if used <= {"ndarray", "float32", "float64", "allclose"} else test


def _evalplus(reference: Reference) -> Asserts | None:
    """Return HumanEval's tests; None if they use another part of numpy than `allclose`, or none."""
    test = _without_numpy(reference["test"])
    return None if test == reference["test"] else _check_tests({**reference, "test": test})


def _kodcode(reference: Reference) -> Asserts:
    """Return a file of pytest, which may begin with `from solution import f`."""
    parsed(reference["test"], "reference.test")
    return Asserts(reference["test"], text_of(reference.get("setup", ""), "reference.setup"))


def _mbpp(reference: Reference) -> Asserts:
    """Return the asserts with their imports. A function with a builtin's name is found by how they call it."""
    tests = _lines(reference["test_list"], "reference.test_list")
    if not tests:
        raise DataError("reference.test_list: it is empty; a program is right only against at least one test")
    imports = _lines(reference.get("test_imports", []), "reference.test_imports")
    setup = "\n".join([*imports, text_of(reference.get("test_setup_code", ""), "reference.test_setup_code")]).strip()
    before = parsed(setup, "reference.test_setup_code")
    return Asserts("\n".join(tests), setup, _builtin(parsed("\n".join(tests), "reference.test_list"), before))


def _lines(value: object, field: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
        raise DataError(f"{field}: expected a list of lines of Python, got {value!r:.60}")
    return value


def _builtin(tests: ast.Module, before: ast.Module) -> str | None:
    """Return the builtin name that all asserts call first, if they call no other name: the program redefines it."""
    loaded = {n.id for n in ast.walk(tests) if isinstance(n, ast.Name)}
    known = {n.name for n in before.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    known |= {n.id for n in ast.walk(before) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    known |= {a.asname or a.name for n in before.body if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names}
    if any(name not in known and not hasattr(builtins, name) for name in loaded):
        return None
    first = {_first_call(n) for n in tests.body if isinstance(n, ast.Assert)}
    return first.pop() if len(first) == 1 else None


def _first_call(statement: ast.Assert) -> str | None:
    return next(
        (n.func.id for n in ast.walk(statement) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)), None
    )


def _mbpp_plus(reference: Reference) -> Asserts:
    """Return the tests in `test`, whose loop over all inputs becomes one test; those of `test_list` are among them."""
    source = _without_numpy(reference["test"])
    tree = parsed(source, "reference.test")
    first = next((n.lineno - 1 for n in tree.body if isinstance(n, ast.For)), None)
    if first is None:
        return Asserts(source)
    lines = source.splitlines(keepends=True)
    loop = textwrap.indent("".join(lines[first:]), "    ")
    return Asserts(f"{''.join(lines[:first])}\ndef test_all():\n{loop}")


def _bigcodebench(reference: Reference) -> Asserts:
    """Return the tests. Raises: DataError naming the packages that are missing."""
    libs = reference["libs"]
    if isinstance(libs, str):  # a list as Python writes it
        try:
            libs = ast.literal_eval(libs)
        except (ValueError, SyntaxError) as exc:
            raise DataError(f"reference.libs: not a list of packages ({exc}), got {libs!r:.60}") from exc
    if not isinstance(libs, list) or not all(isinstance(name, str) for name in libs):
        raise DataError(f"reference.libs: expected a list of packages, got {libs!r:.60}")
    require_packages([name.partition(".")[0] for name in libs], "reference.libs")
    tests = parsed(reference["test"], "reference.test")
    fn = function_name(reference["entry_point"])
    prompt = reference.get("code_prompt")
    # The data set runs program and tests as one file, so answers use what only the tests import.
    imports = "\n".join(ast.unparse(s) for s in tests.body if isinstance(s, ast.Import | ast.ImportFrom))
    # The prompt ends in the head of the function, without a body.
    helpers = helpers_of(f"{prompt}\n    pass\n", fn) if prompt else ""
    return Asserts(reference["test"], "", fn, f"{imports}\n{helpers}")


# fmt: off
HUMANEVAL = ("prompt", "canonical_solution", "task_id", "setup")
LAYOUTS = {
    "asserts": Layout("unit_tests", ("tests",), ("setup", "fn", "prompt"), _asserts),
    # The function of HumanEval is no method, that of LeetCodeDataset is one.
    "humaneval": Layout(
        "unit_tests", ("entry_point", "test"), HUMANEVAL,
        lambda row: None if "." in str(row["entry_point"]) else _check_tests(row),
    ),
    "leetcode": Layout(
        "unit_tests", ("entry_point", "test"),
        ("prompt", "completion", "task_id", "setup", "question_id", "difficulty", "tags", "problem_description",
        "starter_code", "estimated_date", "input_output", "query", "response"),
        lambda row: _check_tests(row) if "." in str(row["entry_point"]) else None,
    ),
    "evalplus": Layout(
        "unit_tests", ("entry_point", "test", "prompt"),
        (*HUMANEVAL, "base_input", "plus_input", "contract", "atol"), _evalplus,
    ),
    "mbpp": Layout(
        "unit_tests", ("test_list",),
        ("test_imports", "test_setup_code", "challenge_test_list", "code", "text", "prompt", "task_id", "source_file"),
        _mbpp,
    ),
    "mbpp_plus": Layout(
        "unit_tests", ("test", "test_list"),
        ("test_imports", "code", "prompt", "task_id", "source_file"), _mbpp_plus,
    ),
    "kodcode": Layout(
        "unit_tests", ("test",),
        ("solution", "setup", "version", "style", "subset", "question_id", "question", "test_info", "gpt_pass_sequence",
        "gpt_pass_trial_num", "gpt_difficulty", "gpt_pass_percentage", "trials", "chat_format", "metadata",
        "filter_reason", "benchmark_similarity", "benchmark_instance", "benchmark_task_id"), _kodcode,
    ),
    "bigcodebench": Layout(
        "unit_tests", ("entry_point", "libs", "test"),
        ("code_prompt", "canonical_solution", "task_id", "complete_prompt", "instruct_prompt", "doc_struct"),
        _bigcodebench,
    ),
}
# fmt: on
