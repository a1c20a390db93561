"""Ratios and congruences."""

from __future__ import annotations

from verifiers.mathematics.decide.equality import same
from verifiers.mathematics.decide.equation_chains import last, name_of, value_of
from verifiers.mathematics.decide.regions import COLLECTIONS
from verifiers.mathematics.policy import MathParams
from verifiers.mathematics.read.syntax_tree import Node, expand_signs, neg, num, substitute, variables


def same_ratio(gold: Node, said: Node, params: MathParams) -> bool | None:
    if said.op == "rel":
        value = value_of(said)
        said = value.tree if value is not None else said
    if gold.op != "ratio" or said.op != "ratio":
        ratio, other = (gold, said) if gold.op == "ratio" else (said, gold)
        if gold.op == "num" and isinstance(gold.args[0], int):
            return False
        if len(ratio.args) != 2 or other.op in COLLECTIONS | {"tuple", "set", "rel"}:
            return False
        if gold.op == "ratio" and other.op not in {"div", "neg"}:
            return None if other.op == "const" else same(Node("div", ratio.args), other) and ratio.args[1] == num(1)
        return same(Node("div", ratio.args), other) is True
    if len(gold.args) != len(said.args):
        return False
    first = zip(gold.args[1:], said.args[1:], strict=True)
    return all(same(Node("mul", (gold.args[0], s)), Node("mul", (said.args[0], g))) for g, s in first)


def classes(tree: Node) -> list[Node]:
    """The residue classes that a congruence with plus-minus or several values stands for, each alone."""
    if tree.op in COLLECTIONS:
        return [c for a in tree.args for c in classes(a)]
    if tree.op != "mod":
        return [tree]
    value, *rest = tree.args
    if value.op in COLLECTIONS or value.op == "set":
        return [c for a in value.args for c in classes(Node("mod", (a, *rest)))]
    return list(dict.fromkeys(Node("mod", (v, *rest)) for v in expand_signs(value)))


def congruent(gold: Node, said: Node) -> bool | None:
    """The same residue class: equal moduli, values that differ by a multiple; 7k + 3 is 3 modulo 7."""
    if gold.op != "mod" or said.op != "mod":
        one, two = _as_congruence(gold), _as_congruence(said)
        return one is not None and two is not None and congruent(one, two)
    if same(gold.args[1], said.args[1]) is not True or len(gold.args) != len(said.args):
        return False
    if len(gold.args) > 2 and same(gold.args[2], said.args[2]) is not True:
        return False
    if gold.args[0].op in COLLECTIONS or said.args[0].op in COLLECTIONS:
        return bool(gold.args[0] == said.args[0])
    steps = Node("div", (Node("add", (gold.args[0], neg(said.args[0]))), gold.args[1]))
    return same(Node("floor", (steps,)), steps)


def _as_congruence(tree: Node) -> Node | None:
    """A congruence, also one written x = 7k + 3; None for another statement."""
    if tree.op == "mod":
        return tree
    if tree.op == "rel" and (set(tree.args[1::2]) - {"=", "≡"} or name_of(tree.args[0]) is None):
        return None
    return _progression(last(tree))


def _progression(tree: Node) -> Node | None:
    """7k + 3 as the congruence 3 modulo 7; None if the tree is not of that form."""
    names = variables(tree)
    if len(names) != 1 or tree.op not in {"add", "mul"}:
        return None
    name = next(iter(names))
    at = [substitute(tree, {name: num(v)}) for v in (0, 1, 2)]
    step, next_step = Node("add", (at[1], neg(at[0]))), Node("add", (at[2], neg(at[1])))
    return Node("mod", (at[0], Node("abs", (step,)))) if same(step, next_step) else None
