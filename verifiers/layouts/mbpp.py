"""MBPP, whole and sanitized: `test_list` has asserts, which `test_imports` and `test_setup_code` run before."""

from __future__ import annotations

import ast
import builtins

from verizero.pipeline.errors import DataError
from verizero.verifiers.layouts._sources import parsed
from verizero.verifiers.layouts.base import Asserts, Reference, text_of

VERIFIER = "unit_tests"
KEYS = ("test_list",)
OTHERS = ("test_imports", "test_setup_code", "challenge_test_list", "code", "text", "prompt", "task_id", "source_file")


def read(reference: Reference) -> Asserts:
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
