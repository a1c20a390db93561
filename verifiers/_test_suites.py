"""The tests of a reference, as the sandbox runs them, and the names of the program in them."""

from __future__ import annotations

import ast
import builtins
import symtable
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from verizero.pipeline.errors import DataError
from verizero.sandbox.worker.frames import MODULES
from verizero.verifiers._one_process import reason_for

_MAX_SHOWN = 120


@dataclass(frozen=True, slots=True)
class TestSuite:
    """The tests of a reference, and the functions and classes of the program that they use."""

    __test__ = False

    tests: tuple[tuple[str, str | None], ...]
    """Source, and the function or method to call after it."""
    names: tuple[str, ...]
    imported: tuple[str, ...]
    records: tuple[str, ...] = ()
    """Plain classes of the task's text, which tests and program both have."""
    one_process: str = ""
    """The part of the tests that needs the program's own process; empty if nothing does."""

    def jobs(self) -> tuple[dict[str, Any], ...]:
        """Return the tests in the sandbox's form."""
        return tuple(
            {"source": source, "names": list(self.names), "function": function, "records": list(self.records)}
            for source, function in self.tests
        )


@lru_cache(maxsize=4096)
def suite_of(source: str, setup: str, fn: str | None, prompt: str = "") -> TestSuite:
    """Return the tests in a source: each top-level assert or statement with asserts, such as a loop, each `test_...`
    function or method, each assert of `check`.

    Each assert keeps the statements before it, and each function the whole file without asserts. `fn` is the name of
    the program's function, or an expression such as `Solution().f`. `prompt` runs before the tests and the program.
    Raises: DataError if the source is no Python, or holds no test that can use a program.
    """
    try:
        tree, own = ast.parse(source), ast.parse(setup)
        setup = f"{prompt}\n{setup}"
        before = ast.parse(setup)
        fn = _copied(tree, f"{setup}\n{source}") if fn is None else ast.unparse(ast.parse(fn.strip(), mode="eval"))
    except (SyntaxError, ValueError, RecursionError) as exc:
        raise DataError(f"reference.tests: not Python: {exc}") from exc
    tree.body = [s for s in tree.body if not isinstance(s, ast.FunctionDef) or s.name != fn]
    whole = ast.Module(body=[*before.body, *tree.body], type_ignores=[])
    imported = _imported(whole)
    names = _names(whole, f"{setup}\n{ast.unparse(tree)}", fn, bool(imported) or _imports_program(whole))
    if not names and not imported and not _imports_program(whole):
        raise DataError("reference.tests: they call nothing of the program; name its function in reference.fn")
    inside = {id(n.value) for n in ast.walk(whole) if isinstance(n, ast.Attribute)}
    called = {n.id for n in ast.walk(whole) if isinstance(n, ast.Name) and id(n) not in inside}
    modules = [n for n in names if n in sys.stdlib_module_names and n not in called]
    names = tuple(n for n in names if n not in modules)
    before.body += [ast.Import([ast.alias(n)]) for n in modules]  # what answers import, some tests use
    # Classes of the task's text that have only attributes and methods, such as nodes of lists and trees.
    classes = [s for s in ast.parse(prompt).body if isinstance(s, ast.ClassDef)]
    classes = [c for c in classes if not (c.bases or c.keywords or c.decorator_list or "__slots__" in ast.dump(c))]
    records = tuple(c.name for c in classes)
    kept = ast.Module([*own.body, *(s for s in tree.body if not _is_main_guard(s))], [])
    checks = [s for s in tree.body if isinstance(s, ast.FunctionDef) and s.name == "check"]
    candidates = [argument.arg for check in checks for argument in check.args.args[:1]]
    calls = (s.value for s in tree.body if isinstance(s, ast.Expr) and _is_check_call(s))
    checked = (ast.unparse(c.args[0]) for c in calls if isinstance(c, ast.Call) and len(c.args) == 1)
    fn = fn or next(checked, None)
    one_process = reason_for(kept, (*names, *imported, *candidates), classes)
    tests = _split(_Explaining().visit(before).body, _Explaining().visit(tree).body, fn)
    if not tests:
        raise DataError("reference.tests: no assert, no test_ function and no check(candidate) in it")
    return TestSuite(tuple(tests), names, imported, records, one_process)


def _split(setup: Sequence[ast.stmt], body: Sequence[ast.stmt], fn: str | None) -> list[tuple[str, str | None]]:
    """Return the tests: texts, each with the function to call after it."""
    prelude = [ast.unparse(s) for s in setup]
    kept = [s for s in body if not _is_main_guard(s) and not _is_check_call(s)]
    texts = [ast.unparse(s) for s in kept]
    whole = "\n".join([*prelude, *(t for s, t in zip(kept, texts, strict=True) if not _is_assert(s))])
    tests: list[tuple[str, str | None]] = []
    for statement, text in zip(kept, texts, strict=True):
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and statement.name.startswith("test"):
            tests.append((whole, statement.name))
        elif isinstance(statement, ast.FunctionDef) and statement.name == "check" and len(statement.args.args) == 1:
            tests += [("\n".join([*prelude, t]), None) for t in _of_check(statement, text, fn)]
        elif isinstance(statement, ast.ClassDef) and (
            statement.name.startswith("Test") or any("TestCase" in ast.unparse(base) for base in statement.bases)
        ):
            methods = [s.name for s in statement.body if isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef)]
            tests += [(whole, f"{statement.name}.{name}") for name in methods if name.startswith("test")]
        elif _is_assert(statement):
            tests.append(("\n".join([*prelude, text]), None))
            continue
        prelude.append(text)
        inside = (n for n in ast.walk(statement) if isinstance(n, ast.stmt))
        is_definition = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if not is_definition and any(map(_is_assert, inside)):
            tests.append(("\n".join(prelude), None))
    return tests


def _of_check(check: ast.FunctionDef, text: str, fn: str | None) -> list[str]:
    """Return the tests of `check(candidate)`: one for each assert of its own, or one for all of it."""
    if fn is None:
        raise DataError(f"reference.fn: check(candidate) needs the function's name, got {fn!r}")
    if not any(_is_assert(s) for s in check.body) or any(isinstance(n, ast.Return) for n in ast.walk(check)):
        return [f"{text}\ncheck({fn})"]
    lines, tests = [f"{check.args.args[0].arg} = {fn}"], []
    for statement in check.body:
        lines.append(ast.unparse(statement))
        if _is_assert(statement):
            tests.append("\n".join(lines))
            lines.pop()
    has_loop = not _is_assert(check.body[-1]) and any(isinstance(n, ast.Raise) for n in ast.walk(check.body[-1]))
    return [*tests, "\n".join(lines)] if has_loop else tests


_COMPARISONS = {"eq": ast.Eq, "ne": ast.NotEq, "lt": ast.Lt, "le": ast.LtE, "gt": ast.Gt, "ge": ast.GtE}


class _Explaining(ast.NodeTransformer):
    """Writes each assert as an `if` that raises an AssertionError with the value that was got.

    `a.__eq__(b)` becomes `a == b`: for unlike types the method returns NotImplemented, which is true.
    """

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        operator = _COMPARISONS.get(_name_of(node.func).strip("_")) if _name_of(node.func).startswith("__") else None
        if operator is None or len(node.args) != 1 or not isinstance(node.func, ast.Attribute):
            return node
        left = node.func.value
        is_of_base = isinstance(left, ast.Call) and _name_of(left.func) == "super"
        return node if is_of_base else ast.copy_location(ast.Compare(left, [operator()], [node.args[0]]), node)

    def visit_Assert(self, node: ast.Assert) -> Any:
        text = ast.Constant(ast.unparse(node.test)[:_MAX_SHOWN])
        self.generic_visit(node)
        test, got, values = node.test, node.test, dict[str, ast.expr]()
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            values = {"_verizero_left": test.left, "_verizero_right": test.comparators[0]}
            left, right = (ast.Name(name, ast.Load()) for name in values)
            is_swapped = _is_literal(test.left) and not _is_literal(test.comparators[0])
            test, got = ast.Compare(left, test.ops, [right]), right if is_swapped else left
        else:
            values = {"_verizero_left": test}
            test = got = ast.Name("_verizero_left", ast.Load())
        text_of_failure = ast.Call(
            ast.Name("_verizero_said", ast.Load()), [text, got, *([node.msg] if node.msg else [])], []
        )
        error = ast.Call(ast.Name("AssertionError", ast.Load()), [text_of_failure], [])
        made = [ast.Assign([ast.Name(n, ast.Store())], v, lineno=node.lineno) for n, v in values.items()]
        check = ast.If(ast.UnaryOp(ast.Not(), test), [ast.Raise(error)], [])
        group = ast.If(ast.Constant(_GROUP), [*made, check], [])
        return ast.fix_missing_locations(ast.copy_location(group, node))


_GROUP = "assert"
"""The condition of an `if` that was an assert."""


def _is_assert(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and isinstance(statement.test, ast.Constant) and statement.test.value == _GROUP


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _imports_program(tree: ast.Module) -> bool:
    nodes = list(ast.walk(tree))
    plain = (alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names)
    return any(name in MODULES for name in plain) or any(
        isinstance(n, ast.ImportFrom) and n.module in MODULES for n in nodes
    )


def _imported(tree: ast.Module) -> tuple[str, ...]:
    """Return the names that the tests import from the program."""
    froms = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module in MODULES]
    return tuple(alias.name for n in froms for alias in n.names if alias.name != "*")


def _names(tree: ast.Module, text: str, fn: str | None, imports_program: bool) -> tuple[str, ...]:
    """Return the names that the program must define: those that are used and defined nowhere, and those in `fn`.

    A builtin name is the program's only if `fn` says so, or if it is the only function that the tests call.
    """
    free = _free_names(text)
    nodes = list(ast.walk(tree))
    called = [n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    loaded = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    of_fn = [n.id for n in ast.walk(ast.parse(fn or "")) if isinstance(n, ast.Name)]
    unknown = [n for n in called + loaded if n in free and not hasattr(builtins, n) and not n.startswith("__")]
    names = tuple(dict.fromkeys([*of_fn, *unknown]))
    if not names and not imports_program:
        names = tuple({n for n in called if hasattr(builtins, n) and n in free})
        own = {n.name for n in nodes if isinstance(n, ast.FunctionDef) and not n.name.startswith("test")}
        if len(names) > 1 or (names and not own.isdisjoint(called)):
            raise DataError("reference.tests: they call only builtins and their own; name the function in reference.fn")
    return names


def _copied(tree: ast.Module, text: str) -> str | None:
    """Return the program's function where the tests define it too: the f of `test_f`, if they miss no name."""
    defined = {s.name for s in tree.body if isinstance(s, ast.FunctionDef)}
    copied = [name for name in defined if f"test_{name}" in defined]
    missed = [n for n in _free_names(text) if not hasattr(builtins, n) and not n.startswith("__")]
    return copied[0] if len(copied) == 1 and not missed and not _imports_program(tree) else None


def _free_names(text: str) -> set[str]:
    """Return the names that a source uses as globals and does not define."""
    module = symtable.symtable(text, "tests", "exec")
    used, defined, tables = set[str](), set[str](), [module]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            if table is module or symbol.is_global():
                is_made = symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
                (defined if is_made else used).add(symbol.get_name())
    return used - defined


def _name_of(function: ast.expr) -> str:
    """Return the last name of what is called: `f` of f and of a.b.f; empty for other expressions."""
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _is_main_guard(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def _is_check_call(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and ast.unparse(statement).startswith("check(")
