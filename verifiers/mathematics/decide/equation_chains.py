"""Chains of equals signs: their names, the value that they end in, and contradictions between members."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from verizero.verifiers.mathematics.decide.equality import same
from verizero.verifiers.mathematics.decide.quantities import MARKS, explicitly_rounded, quantity
from verizero.verifiers.mathematics.read.syntax_tree import (
    COLLECTIONS,
    IMAGINARY,
    E,
    Node,
    children,
    has,
    has_word,
    is_constant,
    is_vector_sum,
    nodes,
    num,
    substitute,
    sym,
    variables,
)
from verizero.verifiers.mathematics.words.nouns import stem
from verizero.verifiers.mathematics.words.vocabulary import UNITS, words_of

INVERSES = words_of("f^-1 g^-1 h^-1")
FUNCTIONS = INVERSES | frozenset("yfghF")
"""Names of functions: y = x^2 answers f(x) = x^2."""
ARGUMENTS = words_of("x y z t n u v w k s")
"""Arguments that stand for any number: f(x), in contrast to f(1), f(a) and P(A)."""
GENERAL = words_of("""
    the a an is are of equals so its this that answer ans final total value result solution number amount required
    our overall desired correct
""")
"""Words that say nothing of what a value is."""
SEGMENT = re.compile(r"(?:bar|overleftrightarrow|length) (?=[A-Z]{2})")
DERIVATIVE = re.compile(r"(d|partial)(\d?) (\w+)/(\w+)")
SHORT_UNITS = frozenset(f'"{unit}"' for unit in UNITS if len(unit) == 2 and not unit.isupper())
"""Units of two letters, which are no description of a value: Pa = 10 does not answer N = 10, but the segment PA may."""
COMPOUND = re.compile(r"[ (^|=]|..")


def name_of(tree: Node) -> str | None:
    """Return the name that a left-hand side is: x, f(1), f^{-1}(x), (x, y), |AB|, dy/dx, words in quotes; else None."""
    if tree in (IMAGINARY, E):
        return str(tree.args[0])  # i = 3 gives a value to a variable
    if tree.op == "word":
        word = tree.args[0]
        return word if len(word) == 1 else f'"{word if len(word) == 2 else word.lower()}"'
    if tree.op == "sym":
        derivative = DERIVATIVE.fullmatch(tree.args[0])
        if derivative is not None:
            d, order, what, by = derivative.groups()
            return what + "'" * int(order or 1) if d == "d" else f"{what}_{by}"
        return _segment(SEGMENT.sub("", str(tree.args[0])))
    if tree.op == "call":
        inside = [_text(a) for a in tree.args[1:]]
        return str(tree.args[0]) if ARGUMENTS.issuperset(inside) else f"{tree.args[0]}({','.join(inside)})"
    if tree.op == "pow":
        name = _marked(tree)
        return name if name is not None and name[0].isupper() else None
    if tree.op == "abs" and all(n.op in {"sym", "mul"} for n in nodes(tree.args[0])):
        letters = "".join(sorted(variables(tree)))
        return letters if len(letters) == 2 and letters.isupper() else f"|{letters}|"
    if tree.op == "tuple" and all(a.op == "sym" for a in tree.args[2:]):
        return "(" + ",".join(a.args[0] for a in tree.args[2:]) + ")"
    if tree.op == "mul":
        if len(tree.args) == 2 and tree.args[0] == sym("Delta") and tree.args[1].op == "sym":
            return f"Delta {tree.args[1].args[0]}"  # a change of p is no product
        if len(tree.args) == 2 and tree.args[0].op == "pow" and tree.args[1].op == "sym":
            inverse = _marked(tree.args[0])
            return inverse if inverse in INVERSES else None
        return _product_name(tree)
    return None


def _text(tree: Node) -> str:
    return str(tree.args[0]) if tree.op in {"sym", "num", "const"} else str(tree)


def _segment(name: str) -> str:
    """Return the name of a segment with its end points in order: AB for BA."""
    return "".join(sorted(name)) if len(name) == 2 and name.isupper() else name


def _product_name(tree: Node) -> str | None:
    """Return the name that a product of letters spells: the segment AB, the angle ABC, the gradient of f(1,2)."""
    if len(tree.args) == 2 and tree.args[0] == sym("nabla") and tree.args[1].op == "call":
        return f"nabla {name_of(tree.args[1])}"
    if any(n.op != "sym" for n in tree.args):
        return None
    letters = [a.args[0] for a in tree.args]
    if len(letters) == 2 and letters[0] == "m" and letters[1].startswith("angle "):
        return str(letters[1])
    return _segment("".join(letters)) if "".join(letters).isupper() else None


def _marked(tree: Node) -> str | None:
    """Return the name of an inverse or a transpose, A^{-1} or A^T; None for another power."""
    base, mark = tree.args
    return f"{base.args[0]}^{mark.args[0]}" if base.op == "sym" and mark in (num(-1), sym("T")) else None


def names_agree(name: str, other: str) -> bool:
    """True if a value of one name may answer for the other.

    Words agree with each other if one side says more closely what the other says, and with any letter; letters agree
    with themselves, y with the name of a function, and a lone letter with what has a longer name.
    """
    if name == other:
        return True
    if name[0] == other[0] == '"':
        wanted, reached = (_meaning(n) for n in (name, other))
        return wanted <= reached or reached <= wanted
    if '"' in {name[0], other[0]}:
        return SHORT_UNITS.isdisjoint((name, other))
    if name.endswith("'") and other.endswith("'"):
        return names_agree(name[:-1], other[:-1])
    lone, longer = sorted((name, other), key=len)
    if len(lone) == 1 and COMPOUND.match(longer) and not _is_letter(longer):
        return lone.islower() or lone in longer
    return "y" in {name, other} and {name, other} <= FUNCTIONS


def _meaning(words: str) -> set[str]:
    return {stem(w) for w in re.findall(r"[^\W_]+", words.lower())} - GENERAL


def _is_letter(name: str) -> bool:
    """True if the name is one letter, be it Greek, with a subscript, a prime or a mark."""
    return re.fullmatch(r"[A-Za-z]'*|[A-Za-z]+_.+|[a-z]+|\w+\^-?\w+", name, re.IGNORECASE) is not None


def agree_in_names(gold: Node, answer: Node) -> bool:
    """True if two chains of names with one value, x = y = 2, are about the same names, also as arguments: f(x) = 2x."""
    wanted, reached = ({m for m in t.args[::2] if m.op == "sym"} for t in (gold, answer))
    if len(wanted) > 1 and len(reached) > 1 and wanted != reached:
        return False
    ours, theirs = ({a for a in _arguments(t.args[0]) if a.op == "sym"} for t in (gold, answer))
    return not theirs or variables(Node("list", tuple(ours - theirs))).isdisjoint(variables(answer.args[-1]))


def _arguments(left: Node) -> tuple[Node, ...]:
    """Return the arguments of f(x) or f^{-1}(x) on the left of an equation; none of another left side."""
    is_inverse = left.op == "mul" and left.args[0].op == "pow" and _marked(left.args[0]) in INVERSES
    return left.args[1:] if left.op == "call" or is_inverse else ()


def is_recurrence(gold: Node) -> bool:
    """True if the name on the left is on the right too, with the same or another subscript: x_n+1 = 2 x_n."""
    letter = str(gold.args[0].args[0]).split("_")[0]
    return any(str(n).split("_")[0] == letter and "_" in str(n) for n in variables(gold.args[-1]))


def in_argument_of(gold: Node, answer: Node) -> Node | None:
    """Return the right side of `answer` in the gold's argument: x^2 of f(n) = n^2 for f(x) = x^2; None if not so."""
    if answer.op != "rel":
        return None
    ours, theirs = _arguments(gold.args[0]), _arguments(answer.args[0])
    if not ours or len(ours) != len(theirs):
        return None
    names = list(zip(theirs, ours, strict=True))
    if any(node.op != "sym" for pair in names for node in pair):
        return None
    return substitute(answer.args[-1], {old.args[0]: new for old, new in names})


DENYING = words_of("not never neither maybe perhaps possibly unless if wrong incorrect")


class Value(NamedTuple):
    """The value at the end of a chain of equals signs, with the name that the chain gives it."""

    tree: Node
    name: str | None = None
    approximate: bool = False
    """True if only a sign of approximation leads to it."""
    of: Node | None = None
    """The expression, such as a + b, of which it is the value, if that is no name."""

    @property
    def label(self) -> str | None:
        """Return what the value is of: its name or expression."""
        return self.name or (str(self.of) if self.of is not None else None)


class Contradiction(Exception):
    """Members of a chain of equals signs differ: x = 42 = 43."""


def value_of(tree: Node) -> Value | None:
    """Return the value that an expression or a chain of equals signs ends in.

    None stands for another statement, such as an inequality, or an equation that is not solved.

    Raises: Contradiction if constant members differ.
    """
    if tree.op != "rel":
        return Value(tree)
    if set(tree.args[1::2]) - {"=", "≈"}:
        return None
    members, signs = list(tree.args[::2]), list(tree.args[1::2])
    if has_word(members[0], DENYING):
        return None
    if len(members) == 2 and is_constant(members[0]) and members[1].op == "sym":
        members.reverse()  # 3 = x
    name = None if signs[0] == "≈" and is_constant(members[0]) else name_of(members[0])  # the number e in e ≈ 2.718
    if name is not None:
        members, signs = members[1:], signs[1:] if len(members) > 2 else []
    # The members up to the first sign of approximation are exact; the last of them is the value.
    num_exact = 1 if tree.args[1] != "≈" or name is None else 0
    while num_exact and num_exact < len(members) and signs[num_exact - 1] == "=":
        num_exact += 1
    before, rounded = members[: max(num_exact, 1)], members[max(num_exact, 1) :]
    value = before[-1]
    if name is None and len(members) > 1 and not _is_plain_left(members[0], value):
        return None
    named = tree.args[0]
    if named.op == value.op == "tuple" and len(named.args) != len(value.args):
        return None
    # 777 = 3x + 2 is an equation, though 3x + 2 = 5 could be a value.
    if any(is_constant(left) and _is_formula(right) for left, right in pairwise(before)):
        return None
    for left, right in pairwise([m for m in before if not _is_formula(m)]):
        if _differ(left, right):
            raise Contradiction
    for member in rounded if num_exact else []:
        number = quantity(member)
        if is_constant(value) and number is not None and is_constant(number.raw) and not _near(value, number.raw):
            raise Contradiction
    of = members[0] if name is None and len(members) > 1 and variables(members[0]) else None
    return Value(value, name, not num_exact, of)


def has_known_members(gold: Node, answer: Node) -> bool:
    """True if each middle member of the answer's chains, where the gold has chains too, is a value or in the gold."""
    golds, answers = (
        [t for t in (tree.args if tree.op in COLLECTIONS else (tree,)) if t.op == "rel" and len(t.args) > 3]
        for tree in (gold, answer)
    )
    if not golds or not answers:
        return True
    known = [(m, name_of(m)) for chain in golds for m in chain.args[::2]]
    return all(
        (not _is_formula(member) and (not has(member, "word") or quantity(member) is not None))
        or any(member == m or (name is not None and name == name_of(member)) or same(member, m) for m, name in known)
        for chain in answers
        for member in chain.args[2:-1:2]
    )


def with_each_name(tree: Node) -> Node:
    """Return a list in which x = y = 4 is x = 4, y = 4; other trees unchanged."""
    if tree.op not in {"list", "both"}:
        return Node("list", tuple(parts)) if len(parts := _each_name(tree)) > 1 else tree
    return Node(tree.op, tuple(part for item in tree.args for part in _each_name(item)))


def _each_name(tree: Node) -> list[Node]:
    """Return a chain of different names with one value as an equation for each name; any other tree alone."""
    if tree.op != "rel" or len(tree.args) < 5 or set(tree.args[1::2]) != {"="}:
        return [tree]
    *names, value = tree.args[::2]
    if any(n.op != "sym" for n in names) or len(set(names)) < len(names) or value.op == "sym":
        return [tree]
    return [Node("rel", (name, "=", value)) for name in names]


def end_of(tree: Node) -> Node:
    """Return the value of a chain as `value_of` does; any other statement as it is."""
    value = value_of(tree)
    return tree if value is None else value.tree


def last(tree: Node) -> Node:
    """Return the last member of a chain; any other tree as it is."""
    return tree.args[-1] if tree.op == "rel" else tree


def without_undone(tree: Node) -> Node | None:
    """Return `I = 1/2` of `I = integral = 1/2`; None for what is no chain or ends in an integral, a sum or a limit."""
    if tree.op != "rel" or set(tree.args[1::2]) - {"=", "≈"} or has(tree.args[-1], "undone"):
        return None
    kept = [(a, s) for a, s in zip(tree.args[::2], ("=", *tree.args[1::2]), strict=True) if not has(a, "undone")]
    if len(kept) == 1:
        return kept[0][0] if kept[0][1] == "=" else None
    chain: list[Node | str] = [kept[0][0]]
    for member, sign in kept[1:]:
        chain += [sign, member]
    return Node("rel", tuple(chain))


def _is_formula(tree: Node) -> bool:
    """True if it has names other than units and counted things."""
    return has(tree, "sym", "call")


def _differ(left: Node, right: Node) -> bool:
    """True if two values without free names are surely not the same: numbers, quantities, points and sets of them."""
    if left.op == right.op and left.op in {"tuple", "matrix", "set"}:
        items, others = children(left), children(right)
        if len(items) != len(others):
            return True
        if left.op == "set":
            return not all(any(not _differ(a, b) for b in others) for a in items)
        return any(_differ(a, b) for a, b in zip(items, others, strict=True))
    if is_constant(left) and is_constant(right):
        return same(left, right) is False
    if not has(left, *MARKS) and not has(right, *MARKS):
        return False
    one_side, other_side = quantity(left), quantity(right)
    if one_side is None or other_side is None:
        return False
    # 5 = 5 cm is fine, as is 50 mm = 5 cm.
    return same(one_side.raw, other_side.raw) is False and same(one_side.value, other_side.value) is False


def _near(value: Node, rounded: Node) -> bool:
    return explicitly_rounded(rounded, value) or same(value, rounded) is True


def _is_plain_left(left: Node, value: Node) -> bool:
    """True if the left side may just be what the problem asked for: a + b = 42, but not y - 2x = 42."""
    names = variables(left)
    if not names or (not _is_formula(left) and quantity(left) is not None):
        return True
    if left.op == value.op == "ratio":
        return not any(map(is_constant, left.args))  # a:b:c = 3:4:5
    if is_vector_sum(value):
        return not is_vector_sum(left) and not has(left, "word", "num", "dec")
    if not is_constant(value):
        return names == variables(value) and same(left, value) is True
    return len(names) > 1 and not has(left, "word", "num", "dec")
