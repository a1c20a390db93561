"""Which names of a program its tests use as classes, and which as functions.

The program may answer for `V(1) * 2`, since the class under test says what that is. It must not answer for `f(1) - 2`
because it has made a class of `f`.
"""

from __future__ import annotations

import ast
import collections
import datetime
import decimal
import fractions
import itertools
import types
from collections.abc import Iterator

_PLAIN = (
    str, bytes, int, float, complex, list, dict, set, tuple, range, collections.deque, collections.Counter,
    collections.OrderedDict, datetime.datetime, datetime.timedelta, decimal.Decimal, fractions.Fraction,
    types.FunctionType, types.GeneratorType, types.CoroutineType,
)  # fmt: skip
_OF_PLAIN = frozenset(name for kind in _PLAIN for name in dir(kind))
"""Attributes of values that functions return: to use one makes no class of the function."""
_TYPE_CHECKS = frozenset(
    [
        "isinstance",
        "issubclass",
        "raises",
        "assertRaises",
        "assertRaisesRegex",
        "assertIsInstance",
        "assertNotIsInstance",
    ]
)
_WRAPPER = "Solution"
"""The class around a function on sites of puzzles. No test compares an instance."""


def classes_in(tree: ast.Module) -> tuple[str, ...]:
    """Return the names of which tests make objects with attributes that no plain value has, or that they use as types.

    A name counts too where an object of it is compared to another one. The names may be of anything; order: sorted.
    """
    origins = _origins(tree)
    classes = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr not in _OF_PLAIN and not node.attr.startswith("__"):
            classes |= {origin for name in _names(node.value) for origin in origins.get(name, (name,))}
        elif isinstance(node, ast.Call) and _last_name(node.func) in _TYPE_CHECKS:
            classes |= {name for arg in node.args for name in _bare(arg)}
        elif isinstance(node, ast.ExceptHandler) and node.type is not None:
            classes |= set(_bare(node.type))
        elif isinstance(node, ast.Compare):
            sides = [{o for n in _names(side) for o in origins.get(n, (n,))} for side in (node.left, *node.comparators)]
            classes |= set[str]().union(*(a & b for a, b in itertools.pairwise(sides)))
            classes |= {name for side in (node.left, *node.comparators) for name in _bare(side)}
    return tuple(sorted(classes - {_WRAPPER}))


def _origins(tree: ast.Module) -> dict[str, set[str]]:
    """Return for each variable, attribute and function the names of what it was made of."""
    origins: dict[str, set[str]] = collections.defaultdict(set)
    for _ in range(2):  # what was made of what was made
        for target, value in _assignments(tree):
            for name in _names(value):
                origins[target] |= {name} | origins.get(name, set())
    return origins


def _assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield from ((name, node.value) for target in node.targets for name in _targets(target))
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            yield from ((name, node.value) for name in _targets(node.target))
        elif isinstance(node, ast.For | ast.comprehension):
            yield from ((name, node.iter) for name in _targets(node.target))
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            yield from ((name, node.context_expr) for name in _targets(node.optional_vars))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for part in ast.walk(node):
                if isinstance(part, ast.Return | ast.Yield) and part.value is not None:
                    yield node.name, part.value


def _targets(target: ast.expr) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def _names(value: ast.expr) -> set[str]:
    """Return the names of what a value may be a part of: of `a.b(c)[d]`, those are a and b; of `[a, b]` both."""
    if isinstance(value, ast.Name):
        return {value.id}
    if isinstance(value, ast.Attribute):
        return {value.attr} | _names(value.value)
    if isinstance(value, ast.Call):
        return _names(value.func)
    if isinstance(value, ast.Subscript | ast.Await | ast.Starred | ast.NamedExpr):
        return _names(value.value)
    return {name for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr) for name in _names(part)}


def _last_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _bare(value: ast.expr) -> Iterator[str]:
    """Yield a name that is alone, or such names in a tuple."""
    parts = value.elts if isinstance(value, ast.Tuple) else [value]
    yield from (_last_name(part) for part in parts if isinstance(part, ast.Name | ast.Attribute))
