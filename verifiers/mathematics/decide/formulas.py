"""Two formulas or quantities by value: units written as letters, constants of integration, else plain equality."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

from verizero.verifiers.mathematics.decide.equality import same
from verizero.verifiers.mathematics.decide.names import name_of
from verizero.verifiers.mathematics.decide.quantities import quantities_equal, quantity
from verizero.verifiers.mathematics.policy import MathParams
from verizero.verifiers.mathematics.read.syntax_tree import (
    E,
    Node,
    collected,
    difference,
    has,
    is_constant,
    nodes,
    substitute,
    sym,
    variables,
    with_children,
)
from verizero.verifiers.mathematics.words.tables import words_of
from verizero.verifiers.mathematics.words.units import UNITS
from verizero.verifiers.mathematics.words.vocabulary import ENGLISH

ADDED = words_of("const constant C C_1 c_1 C_0 K")
"""Names of the constant of an antiderivative in golds. So is c with a single other name, but not in x^2 + bx + c."""
INTEGRATION_CONSTANTS = words_of("const constant C c K k C_1 c_1 C_0 D A")


def expressions_equal(gold: Node, answer: Node, params: MathParams) -> bool | None:
    """True if two expressions or quantities have the same value; None if undecided."""
    answer = _with_letters_of(gold, answer)
    for word in [n.args[0] for n in nodes(gold) if n.op == "word" and n.args[0] in ENGLISH]:
        if set(word) <= variables(answer):
            gold = spelled(gold, {word})
    # Letters such as m are units or names. They are read as units where the other side leaves no other reading.
    wanted = quantity(gold)
    reached = quantity(answer, wanted is not None and wanted.has_unit and _has_unit_letters(answer))
    if wanted is None and _has_unit_letters(gold):
        wanted = quantity(gold, True)
    if wanted is None and reached is not None and reached.has_unit is False:
        return False
    if wanted is not None and not wanted.has_unit and reached is not None and reached.has_unit:
        in_letters = not is_constant(wanted.raw) and _has_unit_letters(gold)
        wanted = (quantity(gold, True) if in_letters else None) or wanted
    if is_constant(gold) and reached is not None and variables(reached.raw):
        return False
    if reached is None and has(answer, "word"):
        reached = quantity(answer, True)
    if wanted is None or reached is None:
        return False
    equal = quantities_equal(wanted, reached, params)
    if equal or not (variables(gold) and variables(answer)) or wanted.has_unit:
        return equal
    return _up_to_constant(gold, answer) or equal


def derived_values(gold: Node, params: MathParams) -> list[Node] | None:
    """Return the values of a chain that begins with how they arise: 5 of 2 + 3 = 5, x^5 of x^2 x^3 = x^5.

    The first is exact, the others are rounded: 40/3 and 13.33 of 40/3 ≈ 13.33. None for any other gold, such as an
    equation with unknowns or x = 5.
    """
    members, signs = gold.args[::2], gold.args[1::2]
    num_exact = (*signs, "≈").index("≈") + 1
    if set(signs) - {"=", "≈"} or name_of(members[0]) is not None:
        return None
    if num_exact == 1 and not is_constant(members[0]):
        return None
    exact = members[:num_exact]
    if not all(expressions_equal(left, right, params) is True for left, right in pairwise(exact)):
        return None
    return [exact[-1], *(_number(m) for m in members[num_exact:])]


def _number(tree: Node) -> Node:
    """Return the number of a quantity: 5.67 of 5.67 cm."""
    of = quantity(tree)
    return tree if of is None else of.raw


def _with_letters_of(gold: Node, answer: Node) -> Node:
    """Return `answer` in the gold's letters: "hr" as h times r if the gold has h and r, c for its constant C."""
    names, others = variables(gold), variables(answer)
    if names == others:
        return answer
    letters = {n.args[0] for n in nodes(gold) if n.op == "sym"}
    for word in [n.args[0] for n in nodes(answer) if n.op == "word" and len(n.args[0]) <= 3]:
        if set(word) <= letters and word not in names:
            answer = spelled(answer, {word})
    for word in others & {"const", "constant"}:
        answer = _replaced(answer, word, sym("C"))
    extra = others - names
    is_general_solution = E in nodes(gold) or names & {"x", "t"}
    if names - others == {"C"} and len(extra) == 1 and extra <= INTEGRATION_CONSTANTS and is_general_solution:
        return substitute(answer, {next(iter(extra)): sym("C")})
    return answer


def spelled(tree: Node, words: Collection[str]) -> Node:
    """Return the tree with each of the words as the product of its letters; an exponent goes to the last letter."""
    if tree.op == "word" and tree.args[0] in words:
        return Node("mul", tuple(sym(c) for c in tree.args[0]))
    if tree.op == "pow" and tree.args[0].op == "word" and tree.args[0].args[0] in words:
        *before, last = tree.args[0].args[0]
        return Node("mul", (*(sym(c) for c in before), Node("pow", (sym(last), tree.args[1]))))
    return with_children(tree, lambda a: spelled(a, words))


def _replaced(tree: Node, word: str, by: Node) -> Node:
    return by if tree == Node("word", (word,)) else with_children(tree, lambda a: _replaced(a, word, by))


def _has_unit_letters(tree: Node) -> bool:
    names = variables(tree)
    return bool(names) and all(n in UNITS for name in names for n in str(name).split())


def _up_to_constant(gold: Node, answer: Node) -> bool | None:
    """True if antiderivatives are equal but for the name of the added constant, or for a number that it takes in."""
    wanted, reached = _without_constant(gold), _without_constant(answer)
    if wanted is None or reached is None:
        return None
    if not (variables(gold) & ADDED or ("c" in variables(gold) and len(variables(wanted)) == 1)):
        return None
    rest = difference(wanted, reached)
    names = sorted(variables(rest))
    if not names:
        return bool(variables(wanted))
    # The rest is a constant if it is the same at two independent points.
    return same(rest, substitute(rest, {n: sym(n + "~") for n in names}))


def _without_constant(tree: Node) -> Node | None:
    """Return the sum without its constant of integration; None if it has none, or has it twice."""
    if tree.op != "add":
        return None
    constants = [a for a in tree.args if a.op in {"sym", "word"} and a.args[0] in INTEGRATION_CONSTANTS]
    kept = [a for a in tree.args if a not in constants]
    if len(constants) != 1 or not kept or any(constants[0].args[0] in variables(k) for k in kept):
        return None
    return collected("add", kept)
