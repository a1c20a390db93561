"""The project's own source as the rules of the house see it: files, imports, functions."""

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar, cast

Node = TypeVar("Node", bound=ast.AST)
LEAVES = (ast.Constant, ast.Name, ast.alias, ast.Load, ast.Store)
"""Classes of most nodes, which have none below them but the context of a name."""
ROOT = Path(__file__).resolve().parents[1]
CODE = ("pipeline", "verifiers", "sandbox", "flows")
"""The folders of code. They are imported from the package `verizero`, whose parts are links to them."""
PACKAGE = "verizero"


def code_files() -> list[Path]:
    """Every Python file that is part of the product."""
    package = (ROOT / PACKAGE).glob("*.py")
    return sorted(
        [*package, *(p for folder in CODE for p in (ROOT / folder).rglob("*.py") if "__pycache__" not in p.parts)]
    )


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
def _by_kind(source: str) -> dict[type[ast.AST], list[ast.AST]]:
    """The nodes of a file's syntax tree by their class, parents before children."""
    kinds: dict[type[ast.AST], list[ast.AST]] = {}
    seen: list[ast.AST] = [parsed(source)]
    for node in seen:
        kind = type(node)
        kinds.setdefault(kind, []).append(node)
        if kind in LEAVES:
            continue
        for name in node._fields:  # half the time of `ast.iter_child_nodes`
            value = getattr(node, name, None)
            if isinstance(value, list):
                seen += [v for v in value if isinstance(v, ast.AST)]
            elif isinstance(value, ast.AST):
                seen.append(value)
    return kinds


def nodes(source: str, *kinds: type[Node]) -> list[Node]:
    """The nodes of these classes in a file's syntax tree, class by class."""
    return [cast(Node, node) for kind in kinds for node in _by_kind(source).get(kind, ())]


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
    for node in nodes(source, ast.Import, ast.ImportFrom, ast.Call):
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
    blocks = (n for n in nodes(source, ast.If) if _is_typing(n.test))
    return {inner for block in blocks for statement in block.body for inner in ast.walk(statement)}


def _is_typing(test: ast.expr) -> bool:
    names = ("TYPE_CHECKING", "typing.TYPE_CHECKING")
    return isinstance(test, ast.Name | ast.Attribute) and ast.unparse(test) in names


def imported_by(path: Path) -> tuple[Import, ...]:
    """What a file imports, each as `imports_of` has it."""
    return imports_of(path.read_text(), dotted(path))


def dotted(path: Path) -> str:
    """The module name of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join((PACKAGE, *parts) if parts[0] in CODE else parts)
