"""The project's own source as the rules of the house see it: files, imports, functions."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CODE = ("pipeline", "verifiers", "sandbox", "flows")


def code_files() -> list[Path]:
    """Every Python file that is part of the product."""
    return sorted(p for folder in CODE for p in (ROOT / folder).rglob("*.py") if "__pycache__" not in p.parts)


def all_files() -> list[Path]:
    """Every text file that is kept: what git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:  # an unpacked archive without its history
        return [p for p in ROOT.rglob("*") if p.is_file() and not set(p.parts) & {".venv", "runs", "__pycache__"}]
    found = [ROOT / line for line in listed.stdout.splitlines()]
    return [p for p in found if p.is_file() and p.suffix not in {".png", ".gz", ".xz", ".parquet"}]


def relative(path: Path) -> str:
    """The path from the project's root, with slashes."""
    return path.relative_to(ROOT).as_posix()


@cache
def parsed(source: str) -> ast.Module:
    """The syntax tree of a file; several rules read each file."""
    return ast.parse(source)


@cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    """Every node of a file's syntax tree, parents before children, without the contexts of names (load, store)."""
    seen: list[ast.AST] = [parsed(source)]
    for node in seen:
        seen += children(node)
    return tuple(seen)


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes right below a node, contexts left out; half the time of `ast.iter_child_nodes`."""
    below: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            below += [v for v in value if isinstance(v, ast.AST)]
        elif isinstance(value, ast.AST) and name != "ctx":
            below.append(value)
    return below


@dataclass(frozen=True)
class Import:
    """One imported module, in full, and where."""

    module: str
    line: int


@cache
def imports_of(source: str, module: str, typing_too: bool = False) -> tuple[Import, ...]:
    """The imports of a file, at any depth, by statement or by a literal import_module.

    Typing-only blocks are left out unless `typing_too`.

    `from package import name` counts as package.name where that could be a module, and relative ones are resolved
    against `module`, the file's own dotted name.
    """
    return tuple(_imports(source, module, typing_too))


def _imports(source: str, module: str, typing_too: bool) -> Iterator[Import]:
    for_types = set() if typing_too else _for_types(source)
    for node in nodes(source):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*module.split(".")[: -node.level], *filter(None, [node.module])])
            yield from (Import(f"{base}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            named = (str(node.args[0].value),) if called in ("import_module", "__import__") else ()
            yield from (Import(module_name, node.lineno) for module_name in named)


def _for_types(source: str) -> set[ast.AST]:
    """The nodes in blocks that only a type checker reads; what is after their `else` is not among them."""
    blocks = (n for n in nodes(source) if isinstance(n, ast.If) and _is_typing(n.test))
    return {inner for block in blocks for statement in block.body for inner in ast.walk(statement)}


def _is_typing(test: ast.expr) -> bool:
    names = ("TYPE_CHECKING", "typing.TYPE_CHECKING")
    return isinstance(test, ast.Name | ast.Attribute) and ast.unparse(test) in names


def imported_by(path: Path) -> tuple[Import, ...]:
    """What a file imports, each as `imports_of` has it."""
    return imports_of(path.read_text(), dotted(path))


def dotted(path: Path) -> str:
    """The module name of a file."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def long_functions(source: str, limit: int) -> list[tuple[str, int]]:
    """Functions of more lines than `limit`, with their lines, decorators and docstring counted."""
    found = []
    for node in nodes(source):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            lines = (node.end_lineno or first) - first + 1
            if lines > limit:
                found.append((node.name, lines))
    return found


def stubs(source: str) -> list[str]:
    """Functions that do nothing and do not say why, outside protocols and overloads.

    A docstring alone is a reason: a fake engine has nothing to close.
    """
    found: list[str] = []
    todo: list[ast.AST] = [parsed(source)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.ClassDef) and any(ast.unparse(b).startswith("Protocol") for b in node.bases):
            continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            overloads = any("overload" in ast.unparse(d) for d in node.decorator_list)
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            if not overloads and body and all(_does_nothing(s) for s in body):
                found.append(node.name)
        todo.extend(children(node))
    return found


def _does_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Raise):
        return statement.exc is not None and "NotImplementedError" in ast.unparse(statement.exc)
    is_dots = isinstance(statement, ast.Expr) and ast.unparse(statement) == "..."
    return is_dots or isinstance(statement, ast.Pass)
