"""Ratios and congruences."""

from __future__ import annotations

from verizero.verifiers.mathematics.decide.equality import same
from verizero.verifiers.mathematics.decide.equation_chains import end_of, last
from verizero.verifiers.mathematics.decide.names import name_of
from verizero.verifiers.mathematics.read.syntax_tree import (
    COLLECTIONS,
    Node,
    difference,
    expand_signs,
    num,
    substitute,
    variables,
)


def same_ratio(gold: Node, answer: Node) -> bool | None:
    """True if both are the same ratio; a quotient answers for a ratio of two terms."""
    answer = end_of(answer)
    if gold.op != "ratio" or answer.op != "ratio":
        ratio, other = (gold, answer) if gold.op == "ratio" else (answer, gold)
        if gold.op == "num" and isinstance(gold.args[0], int):
            return False  # 6:3 does not answer 2
        if len(ratio.args) != 2 or other.op in COLLECTIONS | {"tuple", "set", "rel"}:
            return False
        if gold.op == "ratio" and other.op not in {"div", "neg"}:
            return None if other.op == "const" else same(Node("div", ratio.args), other) and ratio.args[1] == num(1)
        return same(Node("div", ratio.args), other) is True
    if len(gold.args) != len(answer.args):
        return False
    # a : b is c : d if a d = b c, also where a term is zero.
    first = zip(gold.args[1:], answer.args[1:], strict=True)
    return all(same(Node("mul", (gold.args[0], a)), Node("mul", (answer.args[0], g))) for g, a in first)


def classes(tree: Node) -> list[Node]:
    """Return the residue classes of a congruence with plus-minus or several values, each as a congruence."""
    if tree.op in COLLECTIONS:
        return [c for a in tree.args for c in classes(a)]
    if tree.op != "mod":
        return [tree]
    value, *rest = tree.args
    if value.op in COLLECTIONS or value.op == "set":
        return [c for a in value.args for c in classes(Node("mod", (a, *rest)))]
    return list(dict.fromkeys(Node("mod", (v, *rest)) for v in expand_signs(value)))


def congruent(gold: Node, answer: Node) -> bool | None:
    """True if both are one residue class: equal moduli, values that differ by a multiple; 7k + 3 is 3 modulo 7."""
    if gold.op != "mod" or answer.op != "mod":
        wanted, reached = _as_congruence(gold), _as_congruence(answer)
        return wanted is not None and reached is not None and congruent(wanted, reached)
    if same(gold.args[1], answer.args[1]) is not True or len(gold.args) != len(answer.args):
        return False
    if len(gold.args) > 2 and same(gold.args[2], answer.args[2]) is not True:
        return False
    if gold.args[0].op in COLLECTIONS or answer.args[0].op in COLLECTIONS:
        return bool(gold.args[0] == answer.args[0])
    steps = Node("div", (difference(gold.args[0], answer.args[0]), gold.args[1]))
    return same(Node("floor", (steps,)), steps)


def _as_congruence(tree: Node) -> Node | None:
    """Return a congruence, also of x = 7k + 3; None for another statement."""
    if tree.op == "mod":
        return tree
    if tree.op == "rel" and (set(tree.args[1::2]) - {"=", "≡"} or name_of(tree.args[0]) is None):
        return None
    return _progression(last(tree))


def _progression(tree: Node) -> Node | None:
    """Return 7k + 3 as the congruence 3 modulo 7; None if the tree is not of that form."""
    names = variables(tree)
    if len(names) != 1 or tree.op not in {"add", "mul"}:
        return None
    name = next(iter(names))
    # Linear in k: the steps from k = 0 to 1 and from 1 to 2 are equal, and the step is the modulus.
    at = [substitute(tree, {name: num(v)}) for v in (0, 1, 2)]
    step, next_step = difference(at[1], at[0]), difference(at[2], at[1])
    return Node("mod", (at[0], Node("abs", (step,)))) if same(step, next_step) else None
