"""Functions given by branches, each a value with the condition under which it holds."""

from __future__ import annotations

from verizero.verifiers.mathematics.read.syntax_tree import REALS, Node, collected, has, nodes, with_children
from verizero.verifiers.mathematics.words.tables import meanings, words_of

OTHERWISE = words_of("otherwise else elsewhere 其他 其它")
OPPOSITE = meanings("""
    odd         even
    even        odd
    rational    irrational
    irrational  rational
""")
FILLING = words_of("an a the number integer real all any")


def branches(tree: Node) -> list[tuple[Node, Node]]:
    """Return (value, condition) of every branch, with "otherwise" as what the other conditions leave."""
    conditions = [b.args[1] for b in tree.args]
    rest = [c for c in conditions if not _is_rest(c)]
    return [(b.args[0], _left_by(rest) if _is_rest(b.args[1]) else b.args[1]) for b in tree.args]


def _is_rest(condition: Node) -> bool:
    return condition.op == "word" and not OTHERWISE.isdisjoint(condition.args[0].split())


def _left_by(conditions: list[Node]) -> Node:
    """Return the condition that holds where none of these does."""
    if len(conditions) == 1 and any(n.op == "word" and n.args[0] in OPPOSITE for n in nodes(conditions[0])):
        return _opposite(conditions[0])
    return Node("minus", (REALS, collected("either", conditions)))


def _opposite(tree: Node) -> Node:
    if tree.op == "word":
        return Node("word", (OPPOSITE.get(tree.args[0], tree.args[0]),))
    return with_children(tree, _opposite)


def words_of_condition(tree: Node) -> list[str] | None:
    """Return the words and names of a condition in words, "n odd" or "odd n", in one order; None if it has none."""
    if not has(tree, "word") or has(tree, "rel", "minus"):
        return None
    named = [str(n.args[0]).split() for n in nodes(tree) if n.op in {"word", "sym"}]
    return sorted(w for words in named for w in words if w not in FILLING)
