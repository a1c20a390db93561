"""Tests that are Python source: what they import, and the task's own text without the function that it asks for."""

from __future__ import annotations

import ast
import sys
from typing import Any

from verizero.pipeline.errors import DataError
from verizero.sandbox import settings
from verizero.verifiers.layouts.base import text_of

OF_TESTS = frozenset({"pytest", "solution", "main", "your_module"})
"""Names that tests may import besides the standard library: what `unit_tests` provides, and the program."""

_OBJECTS = frozenset({"matplotlib", "pandas", "PIL", "polars", "seaborn", "sklearn", "statsmodels", "torch", "xarray"})
"""Packages whose functions return objects that do not travel whole between a program and its tests."""


def parsed(source: Any, field: str) -> ast.Module:
    """Return the syntax tree of a source of the data. Raises: DataError naming the field, or the packages it lacks."""
    try:
        tree = ast.parse(text_of(source, field))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
        raise DataError(f"{field}: not Python: {exc}") from exc
    require_packages((name for node in ast.walk(tree) for name in _imported(node)), field)
    return tree


def require_packages(names: Any, field: str) -> None:
    """Raise DataError naming the packages that the sandbox has not, or whose objects stay in one process."""
    others = set(names) - OF_TESTS - set(sys.stdlib_module_names) - {"__future__"}
    if others and (missing := sorted(others - settings.modules())):
        raise DataError(
            f"{field}: needs {', '.join(missing)}, which programs have not; install the package and name it in "
            "sandbox.packages, or leave such rows out by on_bad_row: skip"
        )
    if unplayable := sorted(others & _OBJECTS):
        raise DataError(
            f"{field}: needs {', '.join(unplayable)}, whose objects do not travel between a program and its tests; "
            "leave such rows out by on_bad_row: skip"
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
