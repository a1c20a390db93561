"""Tests that cannot be run apart from the program: which they are, and how they run with it, under pytest.

Such tests call methods of the program's objects, give it functions of their own, or use mocks and fixtures. In one
process the program can reach its tests, so this is done only where the recipe allows it.
"""

from __future__ import annotations

import ast
import builtins
import collections
import datetime
import decimal
import fractions
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from verizero.sandbox import Status, TestResult, settings
from verizero.sandbox.worker.frames import MODULES
from verizero.verifiers._programs import with_prelude
from verizero.verifiers._sandbox_jobs import Job, Outcome

RUNNER = (Path(__file__).parent / "in_sandbox" / "one_process.py").read_text()
_HEAD = "import solution as _verizero_solution\nglobals().update(_verizero_names())"
"""The first lines of the file of the tests."""
REMEDY = "name pytest in sandbox.packages to run tests and program in one process, or leave such rows out"
_WRAPPER = "Solution"
"""The class around a function on sites of puzzles, whose methods can be called from another process."""
_PLAIN = (
    str, bytes, int, float, complex, list, dict, set, tuple, range, collections.deque, collections.Counter,
    collections.OrderedDict, datetime.datetime, datetime.timedelta, decimal.Decimal, fractions.Fraction,
)  # fmt: skip
_OF_PLAIN = frozenset(name for kind in _PLAIN for name in dir(kind))
"""Attributes of values that travel whole."""
_OF_ARRAYS = frozenset({
    "T", "all", "any", "argmax", "argmin", "astype", "cumsum", "dot", "dtype", "flatten", "item", "max", "mean", "min",
    "ndim", "ravel", "reshape", "round", "shape", "size", "std", "sum", "tolist", "var",
})  # fmt: skip
"""The same of numpy's arrays, in tests that import numpy."""
_OF_EXCEPTIONS = frozenset({"raises", "assertRaises", "assertRaisesRegex"})
"""Functions that take a class of exceptions, which travels: so it may be the program's."""
_OF_EXCEPTION = frozenset({"match", *(
    name for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, BaseException)
    for name in dir(kind)
)})  # fmt: skip
"""Methods and attributes that an exception has also where it was not raised."""
_ERROR = ("value", "exception")
"""Attributes with the exception, of what has caught it."""
_OF_TYPES = frozenset({"isinstance", "issubclass", "assertIsInstance", "assertNotIsInstance"})
_GIVES_ITEMS = frozenset(
    {"dict", "enumerate", "filter", "iter", "list", "map", "max", "min", "next", "reversed", "sorted", "tuple", "zip"}
)
"""Functions whose results have items of their arguments."""
_TRUTHS = frozenset({"assertTrue", "assertFalse", "assertIn", "assertNotIn"})
_ORDER = frozenset({"max", "min", "sorted", "sum"})
"""Functions that ask the items of their argument for an order or a sum."""
_MODULES = frozenset({
    "mock", "asyncio", "inspect", "dataclasses", "weakref", "tracemalloc", "warnings", "logging",
    "pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "doctest", "runpy", "code",  # run what they read
    "matplotlib", "pandas", "PIL", "polars", "seaborn", "sklearn", "statsmodels", "torch", "xarray",  # own objects
})  # fmt: skip
"""Modules that look into objects, run a value as code, or have objects that do not travel whole."""
_WORDS = frozenset({
    "sys.stdin", "sys.argv", "sys.path", "os.environ", "os.chdir", "random.seed", "np.random.seed", "builtins.input",
    "builtins.open", "builtins.print", "types.GeneratorType", "GeneratorType", "self.assertWarns", "self.assertLogs",
    "self.assertWarnsRegex", "self.assertNoLogs",
})  # fmt: skip
"""Names of what a test reads or changes, and each process has of its own."""
_OF_PYTEST = frozenset({"raises", "approx", "mark", "fail", "main"})
"""Parts of pytest that tests in a process of their own have; of its marks `parametrize`, and what has no meaning."""
_RUN_TEXT = frozenset({"eval", "exec", "compile"})
_HERE = frozenset({"capsys", "self"})
"""Parameters of tests that need no fixture."""


def may_share() -> bool:
    """True if the recipe lets programs and tests share a process, since programs may import pytest."""
    return "pytest" in settings.modules()


def job_of(program: str, tests: Sequence[tuple[str, str | None]], names: Sequence[str]) -> Job:
    """Return the job that runs tests and program under pytest."""
    file = with_prelude(_file_of(tests), _HEAD)
    call = {"fn": "verizero_run", "args": [program, file, list(names), list(MODULES)], "expected": None}
    return Job(RUNNER, (call,), "function")


def results_of(outcome: Outcome) -> Outcome:
    """Return the outcome of such a job with the tests that pytest has run; as it is if they did not end."""
    if not outcome.tests or outcome.tests[0].status != "wrong_answer":
        return outcome
    ended = outcome.tests[0].value
    if not isinstance(ended, list):
        return outcome
    known: dict[str, Status] = {"passed": "passed", "failed": "wrong_answer", "broken": "bad_test"}
    tests = tuple(TestResult(known[how], error=f"{name}: {why}") for name, how, why in ended if how in known)
    return replace(outcome, tests=tests)


def _file_of(tests: Sequence[tuple[str, str | None]]) -> str:
    """Return a file for pytest: a source with functions as it is, and each other one in a test of its own."""
    lines = [next((source for source, function in tests if function), "")]
    for number, source in enumerate((source for source, function in tests if not function), 1):
        tree = ast.parse(source)
        imports = [s for s in tree.body if isinstance(s, ast.Import | ast.ImportFrom)]  # `*` is for modules alone
        body: list[ast.stmt] = [s for s in tree.body if s not in imports] or [ast.Pass()]
        lines += map(ast.unparse, imports)
        test = ast.parse(f"def test_verizero_{number}(): pass").body[0]
        test.body = body  # type: ignore[attr-defined]
        lines.append(ast.unparse(test))
    return "\n".join(lines)


def reason_for(tree: ast.Module, names: Iterable[str], classes: Sequence[ast.ClassDef]) -> str:
    """Return what in the tests needs the program's own process; empty if nothing does.

    `names` are the program's; of the `classes` of the task's text both sides have objects.
    """
    tests = _Tests(tree, names, classes)
    for rule in (tests.of_words, tests.of_definitions, tests.of_objects, tests.of_arguments):
        for node in tests.nodes:
            if reason := rule(node):
                return reason
    return ""


class _Tests:
    """The nodes of tests, and what is known of the names in them."""

    def __init__(self, tree: ast.Module, names: Iterable[str], classes: Sequence[ast.ClassDef]) -> None:
        self.nodes = nodes = list(ast.walk(tree))
        self.used = {n.id for n in nodes if isinstance(n, ast.Name)}
        imports = [alias for n in nodes if isinstance(n, ast.Import) for alias in n.names]
        self.aliases = {alias.asname or alias.name for alias in imports if alias.name in MODULES}
        """Names under which the tests have the program's module."""
        records = {c.name for c in classes}
        self.plain = {n.attr for c in classes for n in ast.walk(c) if isinstance(n, ast.Attribute)} | _OF_PLAIN
        self.plain |= {n.name for c in classes for n in c.body if isinstance(n, ast.FunctionDef)}
        self.plain |= _OF_ARRAYS if any(alias.name == "numpy" for alias in imports) else frozenset()
        """Attributes of values that travel whole."""
        attributes = (n for n in nodes if isinstance(n, ast.Attribute))
        of_module = {n.attr for n in attributes if isinstance(n.value, ast.Name) and n.value.id in self.aliases}
        self.program = (set(names) | of_module) - self._exceptions() - {_WRAPPER} - records
        defined = {n.name: n for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        called = (n.func for n in nodes if isinstance(n, ast.Call))
        self.own = {name: n for name, n in defined.items() if name not in self.program | records}
        self.origins: dict[str, set[str]] = collections.defaultdict(set)
        """Variable, attribute or function -> the names of what it was made of."""
        made = [(target, _names(value)) for node in nodes for target, value in _assignments(node)]
        for _ in range(2):  # what was made of what was made
            for target, of in made:
                self.origins[target] |= of.union(*(self.origins.get(name, ()) for name in of))
        named = {name for function in called for name in self.of_program(function)}
        self.classes = {name for name in named if name[:1].isupper() and "_" not in name}
        """Names of the program that the tests call as classes."""
        self.caught = {n.name or "" for n in nodes if isinstance(n, ast.ExceptHandler)} - {""}
        """Variables with an exception, or with what has caught it."""
        for item in (item for n in nodes if isinstance(n, ast.With) for item in n.items):
            if isinstance(item.context_expr, ast.Call) and _last_name(item.context_expr.func) in _OF_EXCEPTIONS:
                self.caught |= {item.optional_vars.id} if isinstance(item.optional_vars, ast.Name) else set()

    def _exceptions(self) -> set[str]:
        """Return the names that the tests use as classes of exceptions."""
        calls = (n for n in self.nodes if isinstance(n, ast.Call) and n.args)
        used = [call.args[0] for call in calls if _last_name(call.func) in _OF_EXCEPTIONS]
        used += [n.type for n in self.nodes if isinstance(n, ast.ExceptHandler) and n.type is not None]
        return {name for value in used for name in _bare(value)}

    def of_program(self, value: ast.expr) -> set[str]:
        """Return the names of the program of which a value may be a part."""
        return {o for name in _names(value) for o in self.origins.get(name, (name,))} & self.program

    def of_words(self, node: ast.AST) -> str:
        """Return which module, or which part of a process, the tests use."""
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", "") or ""
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                parts = f"{module}.{alias.name}" if module in ("", "unittest") else module
                if (name in self.used or name == "*") and (words := _MODULES.intersection(parts.split("."))):
                    return f"they use {min(words)}"
                if module == "pytest" and alias.name not in _OF_PYTEST:
                    return f"they use pytest.{alias.name}"
        if isinstance(node, ast.Attribute | ast.Name) and (text := ast.unparse(node)) in _WORDS:
            return f"they use {text}"
        if isinstance(node, ast.Attribute) and _last_name(node.value) == "pytest" and node.attr not in _OF_PYTEST:
            return f"they use pytest.{node.attr}"
        if isinstance(node, ast.Call) and ast.unparse(node.func).removeprefix("builtins.") in _RUN_TEXT:
            is_own = not node.args or isinstance(node.args[0], ast.Constant)
            return "" if is_own else f"{ast.unparse(node):.60} runs a text among the tests"
        return ""

    def of_definitions(self, node: ast.AST) -> str:
        """Return which fixture or other special function the tests have, or how they change the program."""
        if isinstance(node, ast.AsyncFunctionDef | ast.Await):
            return "they are asynchronous"
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else []
        if any(isinstance(t, ast.Attribute) and ast.unparse(t.value) in self.aliases for t in targets):
            return f"they change the program: {ast.unparse(node):.60}"
        if not isinstance(node, ast.FunctionDef):
            return ""
        if node.name.startswith(("setup_", "teardown_")):
            return f"they have {node.name}"
        decorators = " ".join(map(ast.unparse, node.decorator_list))
        if "fixture" in decorators or "skip" in decorators:
            return f"they have {node.name} with @{decorators:.60}"
        calls = [d for d in node.decorator_list if isinstance(d, ast.Call) and d.args]
        tables = [call.args[0] for call in calls if _last_name(call.func) == "parametrize"]
        texts = [n.value for table in tables for n in ast.walk(table) if isinstance(n, ast.Constant)]
        cases = {word.strip() for text in texts for word in str(text).split(",")}
        arguments = [*node.args.posonlyargs, *node.args.args]
        needed = [a.arg for a in arguments[: len(arguments) - len(node.args.defaults)] if a.arg not in cases | _HERE]
        return f"the fixture {needed[0]!r}" if needed and node.name.startswith("test") else ""

    def of_objects(self, node: ast.AST) -> str:
        """Return which object of the program the tests ask for more than a value: an attribute, its class, an order."""
        named = {n for v in self._operands(node) for n in self.of_program(v)} & self.classes
        if named:
            first_line = ast.unparse(node).partition("\n")[0]
            return f"they use an object of {min(named)}: {first_line:.60}"
        if isinstance(node, ast.Attribute):
            is_of_name = isinstance(node.value, ast.Name) and node.value.id in self.program
            named = set() if is_of_name and node.attr.startswith("__") else self.of_program(node.value)
            if node.attr in self.plain:  # of a function's value, or of an object whose class has such a method
                named = {name for name in named if name[:1].isupper()}
            return f"they use .{node.attr} of an object that {min(named)} gives" if named else ""
        if isinstance(node, ast.Call) and _last_name(node.func) in _OF_TYPES:
            named = {name for arg in node.args for name in _bare(arg)} & self.program
        elif sides := _sides(node):
            if any(isinstance(side, ast.Call) and _last_name(side.func) == "type" for side in sides):
                named = {name for side in sides for name in _bare(side)} & self.program
            of_sides = [self.of_program(side) for side in sides]
            named |= {name for name in set.intersection(*of_sides) if name[:1].isupper()}
            named |= set.union(*of_sides) & self.classes if all(of_sides) else set()
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            error = node.func.value
            error = error.value if isinstance(error, ast.Attribute) and error.attr in _ERROR else error
            if getattr(error, "id", "") in self.caught and node.func.attr not in _OF_EXCEPTION:
                return f"they use .{node.func.attr} of an exception"
        elif isinstance(node, ast.ClassDef):
            named = {name for base in node.bases for name in _bare(base)} & self.program
        elif isinstance(node, ast.withitem):
            named = self.of_program(node.context_expr)
        elif written := getattr(node, "annotation", None) or getattr(node, "returns", None):
            named = {n.id for n in ast.walk(written) if isinstance(n, ast.Name)} & self.program
        return f"they use {min(named)} as a class" if named else ""

    def _operands(self, node: ast.AST) -> Iterator[ast.expr]:
        """Yield the values that a node asks for a length, a text, a truth, an item, a hash or the like."""
        values: Sequence[ast.expr | None] = ()
        if isinstance(node, ast.Call):
            name = _last_name(node.func)
            is_builtin = isinstance(node.func, ast.Name) and hasattr(builtins, name) and name not in self.program
            values = node.args if is_builtin or name in _TRUTHS else ()
            if is_builtin and name in _ORDER:
                yield from node.args
        elif isinstance(node, ast.Compare) and any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
            values = node.comparators
        elif isinstance(node, ast.Assign):
            values = [node.value] if any(isinstance(t, ast.Tuple | ast.List) for t in node.targets) else ()
        elif isinstance(node, ast.BinOp | ast.AugAssign):
            values = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.target, node.value]
        elif isinstance(node, ast.BoolOp | ast.Set | ast.Dict):
            values = node.values if isinstance(node, ast.BoolOp) else getattr(node, "keys", getattr(node, "elts", ()))
        elif isinstance(node, ast.For | ast.comprehension):
            values = [node.iter, *getattr(node, "ifs", ())]
        elif isinstance(node, ast.Assert | ast.If | ast.While | ast.IfExp):
            values = [node.test]
        elif isinstance(node, ast.UnaryOp | ast.Subscript | ast.Starred | ast.FormattedValue):
            values = [node.operand if isinstance(node, ast.UnaryOp) else node.value]
        yield from (v for v in values if isinstance(v, ast.Name | ast.Call | ast.Attribute))

    def of_arguments(self, node: ast.AST) -> str:
        """Return which function, class or object of the tests the program gets as an argument, or decorates."""
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            decorators = {n for d in node.decorator_list for n in _names(d)} & self.program
            return f"{min(decorators)} of the program decorates {node.name}" if decorators else ""
        if not isinstance(node, ast.Call) or not _names(node.func) & self.program:
            return ""
        classes = {name for name, made in self.own.items() if isinstance(made, ast.ClassDef)}
        for value in [*node.args, *(keyword.value for keyword in node.keywords)]:
            called = {id(part.func) for part in ast.walk(value) if isinstance(part, ast.Call)}
            for part in ast.walk(value):
                if isinstance(part, ast.Lambda | ast.GeneratorExp):
                    return "the program gets a function or an iterator of the tests"
                if isinstance(part, ast.Name) and (
                    (part.id in self.own and id(part) not in called) or ({part.id} | self.origins[part.id]) & classes
                ):
                    return f"the program gets {part.id} of the tests"
        return ""


def _assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a node gives to a value: variables, attributes, and functions to what they return."""
    if isinstance(node, ast.Assign):
        yield from ((name, node.value) for target in node.targets for name in _targets(target))
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield from ((name, node.value) for name in _targets(node.target))
    elif isinstance(node, ast.For | ast.comprehension):
        yield from ((name, node.iter) for name in _targets(node.target))
    elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
        yield from ((alias.asname, ast.Name(alias.name)) for alias in node.names if alias.asname)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield from ((name, node.context_expr) for name in _targets(node.optional_vars))
    elif isinstance(node, ast.FunctionDef):
        for part in ast.walk(node):
            if isinstance(part, ast.Return | ast.Yield) and part.value is not None:
                yield node.name, part.value


def _sides(node: ast.AST) -> list[ast.expr]:
    """Return the values that a node compares, also as a method of unittest; none of other nodes."""
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    is_assert = isinstance(node, ast.Call) and _last_name(node.func).startswith("assert") and len(node.args) > 1
    return node.args[:2] if is_assert else []  # type: ignore[attr-defined]


def _targets(target: ast.expr) -> Iterator[str]:
    inside = {id(node.value) for node in ast.walk(target) if isinstance(node, ast.Attribute)}
    for node in ast.walk(target):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name) and id(node) not in inside:
            yield node.id


def _names(value: ast.expr) -> set[str]:
    """Return the names of what a value may be a part of: of `a.b(c)[d]`, those are a and b; of `[a, b]` both."""
    if isinstance(value, ast.Name):
        return {value.id}
    if isinstance(value, ast.Attribute):
        return {value.attr} | _names(value.value)
    if isinstance(value, ast.Call):
        inside = value.args if _last_name(value.func) in _GIVES_ITEMS else ()
        return {name for part in (value.func, *inside) for name in _names(part)}
    if isinstance(value, ast.Subscript | ast.Starred | ast.NamedExpr):
        return _names(value.value)
    return {name for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr) for name in _names(part)}


def _last_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _bare(value: ast.expr) -> Iterator[str]:
    """Yield a name that is alone, or such names in a tuple."""
    parts = value.elts if isinstance(value, ast.Tuple) else [value]
    yield from (_last_name(part) for part in parts if isinstance(part, ast.Name | ast.Attribute))
