"""The tests of a reference, as the sandbox runs them, and the names of the program in them."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from verizero.pipeline.errors import DataError
from verizero.verifiers._test_classes import classes_in

_MODULES = ("solution", "main", "your_module")
"""Modules of which a test imports the program."""
_MAX_SHOWN = 120
_RUN_TEXT = frozenset({"eval", "exec", "compile"})
_RUN_BYTES = frozenset({"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "doctest", "runpy", "code"})
"""Modules that run what a value says."""
_OF_ONE_PROCESS = frozenset({"assertWarns", "assertWarnsRegex", "assertLogs", "assertNoLogs"})
"""Methods of unittest that look at what the program's process alone has."""


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
    classes: tuple[str, ...] = ()
    """Names that the tests use as classes: a program that makes a class of a function gains nothing by it."""

    def jobs(self) -> tuple[dict[str, Any], ...]:
        """Return the tests in the sandbox's form."""
        return tuple(
            {"source": source, "names": list(self.names), "function": function, "records": list(self.records)}
            | {"classes": list(self.classes)}
            for source, function in self.tests
        )


@lru_cache(maxsize=4096)
def suite_of(source: str, setup: str, fn: str | None, prompt: str = "") -> TestSuite:
    """Return the tests in a source: each top-level assert, each `test_...` function or method, each assert of `check`.

    Each assert keeps the statements before it, and each function the whole file without asserts. `fn` is the name of
    the program's function, or an expression such as `Solution().f`. `prompt` runs before the tests and the program.
    Raises: DataError if the source is no Python, runs values as code, or holds no test that can use a program.
    """
    try:
        setup = f"{prompt}\n{setup}"
        tree, before = ast.parse(source), ast.parse(setup)
        fn = fn if fn is None else ast.unparse(ast.parse(fn.strip(), mode="eval"))
    except (SyntaxError, ValueError, RecursionError) as exc:
        raise DataError(f"reference.tests: not Python: {exc}") from exc
    whole = ast.Module(body=[*before.body, *tree.body], type_ignores=[])
    if (problem := _unplayable(whole)) is not None:
        raise DataError(f"reference.tests: {problem}")
    imported = _imported(whole)
    names = _names(whole, f"{setup}\n{source}", fn, bool(imported) or _imports_program(whole))
    if not names and not imported and not _imports_program(whole):
        raise DataError("reference.tests: they call nothing of the program; name its function in reference.fn")
    classes = classes_in(whole)
    tests = _split(_explained(before).body, _explained(tree).body, fn or _checked(tree))
    if not tests:
        raise DataError("reference.tests: no assert, no test_ function and no check(candidate) in it")
    return TestSuite(tuple(tests), names, imported, _records(ast.parse(prompt)), classes)


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
        elif isinstance(statement, ast.ClassDef) and _is_test_class(statement):
            methods = [s.name for s in statement.body if isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef)]
            tests += [(whole, f"{statement.name}.{name}") for name in methods if name.startswith("test")]
        elif _is_assert(statement):
            tests.append(("\n".join([*prelude, text]), None))
            continue
        prelude.append(text)
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


def _is_test_class(statement: ast.ClassDef) -> bool:
    return statement.name.startswith("Test") or any("TestCase" in ast.unparse(b) for b in statement.bases)


class _Explaining(ast.NodeTransformer):
    """Writes each assert as an `if` that raises an AssertionError with the value that was got."""

    def visit_Assert(self, node: ast.Assert) -> Any:
        test, got, values = node.test, node.test, dict[str, ast.expr]()
        text = ast.Constant(ast.unparse(test)[:_MAX_SHOWN])
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


def _explained(tree: ast.Module) -> ast.Module:
    changed: ast.Module = _Explaining().visit(tree)
    return changed


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _records(prompt: ast.Module) -> tuple[str, ...]:
    """Return the classes of a task's text that have only attributes and methods, such as nodes of lists and trees."""
    classes = [s for s in prompt.body if isinstance(s, ast.ClassDef)]
    return tuple(
        c.name for c in classes if not (c.bases or c.keywords or c.decorator_list or "__slots__" in ast.dump(c))
    )


def _imports_program(tree: ast.Module) -> bool:
    nodes = list(ast.walk(tree))
    plain = (alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names)
    return any(name in _MODULES for name in plain) or any(
        isinstance(n, ast.ImportFrom) and n.module in _MODULES for n in nodes
    )


def _imported(tree: ast.Module) -> tuple[str, ...]:
    """Return the names that the tests import from the program."""
    froms = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module in _MODULES]
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
        if len(names) > 1:
            raise DataError("reference.tests: they call only builtins; name the program's function in reference.fn")
    return names


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


def _checked(tree: ast.Module) -> str | None:
    """Return the argument of a call `check(f)` at the top level, None without one."""
    calls: Iterable[Any] = (s.value for s in tree.body if isinstance(s, ast.Expr) and _is_check_call(s))
    return next((ast.unparse(c.args[0]) for c in calls if isinstance(c, ast.Call) and len(c.args) == 1), None)


def _unplayable(tree: ast.Module) -> str | None:
    """Return what in the tests cannot be done apart from the program; None if nothing is.

    A value that is run as code in the tests' own process may be the program's, which would then decide all asserts. A
    module that no test uses runs nothing.
    """
    tree = ast.Module(body=[s for s in tree.body if not _is_main_guard(s)], type_ignores=[])
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    for node in ast.walk(tree):
        if problem := _reads_process(node) or _runs_value(node):
            return problem
        if unsafe := sorted(_modules_in_use(node, used) & _RUN_BYTES):
            return f"they import {unsafe[0]}, which runs what it reads; compare the values themselves"
    return None


def _reads_process(node: ast.AST) -> str | None:
    """Return what a node looks at that is in the program's process only."""
    looked_into: Sequence[ast.expr] = ()
    if isinstance(node, ast.Call):
        looked_into, called = node.args, _name_of(node.func)
        if called in _OF_ONE_PROCESS or (called == "catch_warnings" and node.keywords):
            return f"they use {called}, and warnings and logs stay in the program's process"
    elif isinstance(node, ast.Compare):
        looked_into = node.comparators
    elif isinstance(node, ast.For | ast.comprehension):
        looked_into = [node.iter]
    if any(isinstance(x, ast.Attribute) and ast.unparse(x) == "sys.path" for x in looked_into):
        return "they read sys.path, of which the program's process has its own"
    return None


def _runs_value(node: ast.AST) -> str | None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
        is_plain = isinstance(node.func, ast.Name) or ast.unparse(node.func.value) == "builtins"
        if _name_of(node.func) in _RUN_TEXT and is_plain and node.args and not isinstance(node.args[0], ast.Constant):
            text = f"{ast.unparse(node):.60}"
            return f"{text} runs a text among the tests; compare the value itself, or read it by ast.literal_eval"
    return None


def _name_of(function: ast.expr) -> str:
    """Return the last name of what is called: `f` of f and of a.b.f; empty for other expressions."""
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _modules_in_use(node: ast.AST, used: Set[str]) -> set[str]:
    """Return the modules that a statement imports, of which one of the names `used` comes."""
    if isinstance(node, ast.Import):
        named = [(alias.name, alias.asname or alias.name.partition(".")[0]) for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        named = [(node.module or "", alias.asname or alias.name) for alias in node.names]
    else:
        return set()
    return {module.partition(".")[0] for module, name in named if name in used or name == "*"}


def _is_main_guard(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def _is_check_call(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and ast.unparse(statement).startswith("check(")
