"""Checks of the project's structure and language, as functions over source text, for `tests/test_house.py`."""

import ast
import re
from graphlib import CycleError, TopologicalSorter

from tests.source import code_files, dotted, imports_of, nodes, relative

OPENINGS = {"What", "Whether", "How", "Where", "Those", "Of", "Whoever", "Whatever", "Whichever"}
"""A docstring that begins with one of these has no subject and verb, or hides them."""
BARRED_NAMES = {"found", "said", "given", "one"}
"""Names of variables that say nothing of what they hold."""
BARRED = {
    r"\bhang(?:s|ing)? on\b": "depend on",
    r"\bbeside\b": "next to, with, while",
    r"\bstands?\b(?! for\b)": "is, exists, occurs",
    r"\banew\b": "again",
    r"\b(?:go|goes|going|gone|went) on\b": "continue, resume",
    r"\botherwise than\b": "differently",
    r"\b(?:is|are|was|were) said\b": "is reported",
    r"\b(?:came|comes?) of\b": "result",
    r"\b(?:held|hold|holds) against\b": "compare to",
    r"\b(?:is|are|was|were) no more\b": "is gone",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\bhand(?:s|ed|ing)? (?:it |them |weights )?over\b": "publish, pass",
    r"(?<!in )(?<!in-)\bflights?\b": "batch in flight",
    r"\bwhoever\b": "who",
}
"""Pattern -> the plain words to write in its place."""
ANY_BARRED = re.compile("|".join(BARRED), re.IGNORECASE)
SPEAKERS = {"say", "print", "warn", "error", "add_parser", "add_argument", "Field", "note", "fail"}
"""A text in a call of one of these is read by people."""


def cycle(graph):
    """A circle of the graph, its first node twice; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as exc:
        circle = exc.args[1]
        return circle
    return []


def import_graph(sources):
    """Dotted module name -> the modules among `sources` that it imports, at any depth, for types too.

    Who imports a module from outside its package imports the package's `__init__` first.
    """
    graph = {}
    for module, source in sources.items():
        graph[module] = set()
        for imported in imports_of(source, module, typing_too=True):
            name = imported.module
            while name and name not in sources and name + ".__init__" not in sources:
                name = name.rpartition(".")[0]  # `from module import name`
            if name and name != module and name in sources:
                graph[module].add(name)
            package = name if name + ".__init__" in sources else name.rpartition(".")[0]
            if package + ".__init__" in sources and not module.startswith(package + "."):
                graph[module].add(package + ".__init__")
    return graph


def docstrings(source):
    """(line, text) of every docstring, those below fields and constants included."""
    for statement in nodes(source, ast.Expr):
        match statement.value:
            case ast.Constant(value=str(text)):
                yield statement.lineno, text


def bad_openings(source):
    """(line, first line) of docstrings that begin with one of OPENINGS."""
    lines = ((number, text.strip().splitlines()[0]) for number, text in docstrings(source) if text.strip())
    return [(number, text) for number, text in lines if re.split(r"\W", text)[0] in OPENINGS]


def barred_names(source):
    """(line, name) of variables and parameters named by one of BARRED_NAMES."""
    names = (n for n in nodes(source, ast.Name) if n.id in BARRED_NAMES and isinstance(n.ctx, ast.Store))
    hits = {(n.lineno, n.id) for n in names}
    hits |= {(n.lineno, n.arg) for n in nodes(source, ast.arg) if n.arg in BARRED_NAMES}
    return sorted(hits)


def prose_of(source):
    """(line, text) of what people read in a Python file: docstrings, comments and messages."""
    yield from docstrings(source)
    # Not by `tokenize`, which takes four times as long as all other rules: a "#" within a text is read as a comment.
    for number, line in enumerate(source.splitlines(), 1):
        if (start := line.find("# ")) >= 0:
            yield number, line[start:]
    speaking = (call for call in nodes(source, ast.Call) if _called(call) in SPEAKERS)
    for node in (*nodes(source, ast.Raise), *speaking):
        for inner in ast.walk(node):
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                yield inner.lineno, inner.value


def _called(node):
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def barred_words(lines):
    """(line, words, better words) of what BARRED forbids in the texts."""
    hits = []
    for number, text in lines:
        if not ANY_BARRED.search(text):
            continue
        for pattern, better in BARRED.items():
            for match in re.finditer(pattern, text, re.IGNORECASE):
                hits.append((number + text[: match.start()].count("\n"), match.group(), better))
    return sorted(set(hits))


def text_lines(path):
    """(line, text) of what people read in a file: pages whole, Python its prose, YAML its comments."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".py":
        return list(prose_of(text))
    numbered = list(enumerate(text.splitlines(), 1))
    if path.suffix in (".yaml", ".yml"):
        return [(n, line[line.index("#") :]) for n, line in numbered if "#" in line]
    return numbered if path.suffix == ".md" else []


def findings(paths):
    """Every finding in the files, as `file:line: what`."""
    for path in sorted(paths):
        where, text = relative(path), path.read_text(encoding="utf-8", errors="replace")
        yield from (f"{where}:{n}: {words!r}: write {better}" for n, words, better in barred_words(text_lines(path)))
        if path.suffix != ".py" or where.startswith("tests/"):
            continue
        yield from (f"{where}:{n}: docstring begins {line[:60]!r}" for n, line in bad_openings(text))
        yield from (f"{where}:{n}: variable named {name!r}" for n, name in barred_names(text))


def sources():
    """Dotted name -> source of every file of the product."""
    return {dotted(p).removesuffix(".__init__"): p.read_text() for p in code_files()}
