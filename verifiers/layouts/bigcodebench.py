"""BigCodeBench: tests of unittest with the packages that they need in `libs`, most of which no sandbox here has."""

from __future__ import annotations

import ast
from typing import Any

from verizero.pipeline.errors import DataError
from verizero.verifiers.layouts._sources import function_name, helpers_of, parsed, require_packages
from verizero.verifiers.layouts.base import Asserts, Reference

VERIFIER = "unit_tests"
KEYS = ("entry_point", "libs", "test")
OTHERS = (
    "code_prompt", "canonical_solution", "task_id", "complete_prompt", "instruct_prompt", "doc_struct",
)  # fmt: skip


def read(reference: Reference) -> Asserts:
    """Return the tests. Raises: DataError naming the packages that are missing."""
    require_packages(_names(reference["libs"]), "reference.libs")
    tests = parsed(reference["test"], "reference.test")
    fn = function_name(reference["entry_point"])
    prompt = reference.get("code_prompt")
    # The data set runs program and tests as one file, so answers use what only the tests import.
    imports = "\n".join(ast.unparse(s) for s in tests.body if isinstance(s, ast.Import | ast.ImportFrom))
    helpers = f"{imports}\n{_helpers(prompt, fn) if prompt else ''}"
    return Asserts(reference["test"], "", fn, helpers)


def _helpers(prompt: Any, fn: str) -> str:
    """Return the imports and constants of a prompt that ends in the head of the function, without a body."""
    return helpers_of(f"{prompt}\n    pass\n", fn)


def _names(libs: Any) -> list[str]:
    """Return the packages of the column, which is a list, or one as Python writes it."""
    if isinstance(libs, str):
        try:
            libs = ast.literal_eval(libs)
        except (ValueError, SyntaxError) as exc:
            raise DataError(f"reference.libs: not a list of packages ({exc}), got {libs!r:.60}") from exc
    if not isinstance(libs, list) or not all(isinstance(name, str) for name in libs):
        raise DataError(f"reference.libs: expected a list of packages, got {libs!r:.60}")
    return [name.partition(".")[0] for name in libs]
