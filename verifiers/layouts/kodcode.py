"""KodCode: a file of pytest, which may begin with `from solution import f`."""

from __future__ import annotations

import ast
from typing import Any

from verizero.pipeline.errors import DataError
from verizero.verifiers.layouts._sources import parsed
from verizero.verifiers.layouts.base import Asserts, Reference, text_of

VERIFIER = "unit_tests"
KEYS = ("test",)
OTHERS = ("solution", "setup")


def read(reference: Reference) -> Asserts:
    """Return the tests without the import."""
    return file_tests(reference["test"], text_of(reference.get("setup", ""), "reference.setup"))


def file_tests(source: Any, setup: str = "") -> Asserts:
    """Return the tests of a file, in which the names that it imports from the program are there without an import."""
    tree = parsed(source, "reference.test")
    imports = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "solution"]
    if any(isinstance(n, ast.Import) and any(a.name == "solution" for a in n.names) for n in ast.walk(tree)):
        raise DataError("reference.test: it imports 'solution' as a module; write 'from solution import f'")
    if not imports:
        return Asserts(text_of(source, "reference.test"), setup)
    names = [alias for statement in imports for alias in statement.names]
    if any(alias.name == "*" for alias in names):
        names = []
    renamed = ast.parse("\n".join(f"{a.asname} = {a.name}" for a in names if a.asname)).body
    tree.body = [*renamed, *(n for n in tree.body if n not in imports)]
    return Asserts(ast.unparse(tree), setup, names[0].name if len(names) == 1 else None)
