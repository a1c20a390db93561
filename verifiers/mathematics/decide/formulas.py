"""Two expressions or quantities by value: units in letters, constants of integration, and else equality."""

from __future__ import annotations

from verifiers.mathematics.decide.equality import same
from verifiers.mathematics.decide.quantities import quantities_equal, quantity
from verifiers.mathematics.policy import MathParams
from verifiers.mathematics.read.syntax_tree import E, Node, has, is_constant, neg, nodes, substitute, variables
from verifiers.mathematics.words.units import UNITS
from verifiers.mathematics.words.vocabulary import ENGLISH

ADDED = frozenset({"const", "constant", "C", "C_1", "c_1", "C_0", "K"})
"""What a gold calls the constant of an antiderivative; c too, beside one other name: in x^2 + bx + c it is not free."""
INTEGRATION_CONSTANTS = frozenset({"const", "constant", "C", "c", "K", "k", "C_1", "c_1", "C_0", "D", "A"})


def expressions_equal(gold: Node, said: Node, params: MathParams) -> bool | None:
    """Two expressions or quantities, by value."""
    said = _with_letters_of(gold, said)
    for word in [n.args[0] for n in nodes(gold) if n.op == "word" and n.args[0] in ENGLISH]:
        if set(word) <= variables(said):
            gold = _replaced(gold, word, Node("mul", tuple(Node("sym", (c,)) for c in word)))
    one = quantity(gold)
    letters = one is not None and one.has_unit
    two = quantity(said, letters and _has_unit_letters(said))
    if one is None and _has_unit_letters(gold):
        one = quantity(gold, True)
    if one is None and two is not None and two.has_unit is False:
        return False
    if (
        one is not None
        and two is not None
        and not one.has_unit
        and two.has_unit
        and not is_constant(one.raw)
        and _has_unit_letters(gold)
    ):
        one = quantity(gold, True) or one
    if is_constant(gold) and two is not None and variables(two.raw):
        return False
    if one is None or two is None:
        if has(said, "word") and two is None:
            two = quantity(said, True)
        if one is None or two is None:
            return False
    equal = quantities_equal(one, two, params)
    if equal or not (variables(gold) and variables(said)) or one.has_unit:
        return equal
    return _up_to_constant(gold, said) or equal


def _with_letters_of(gold: Node, said: Node) -> Node:
    """`said` with the gold's letters: "hr" as h times r beside h and r, c for the C of a general solution."""
    names, given = variables(gold), variables(said)
    if names == given:
        return said
    letters = {n.args[0] for n in nodes(gold) if n.op == "sym"}
    for word in [n.args[0] for n in nodes(said) if n.op == "word" and len(n.args[0]) <= 3]:
        if set(word) <= letters and word not in names:
            said = _replaced(said, word, Node("mul", tuple(Node("sym", (c,)) for c in word)))
    for word in given & {"const", "constant"}:
        said = _replaced(said, word, Node("sym", ("C",)))
    extra = given - names
    general = E in nodes(gold) or names & {"x", "t"}
    if names - given == {"C"} and len(extra) == 1 and extra <= INTEGRATION_CONSTANTS and general:
        return substitute(said, {next(iter(extra)): Node("sym", ("C",))})
    return said


def _replaced(tree: Node, word: str, by: Node) -> Node:
    if tree == Node("word", (word,)):
        return by
    if tree.op == "pow" and tree.args[0] == Node("word", (word,)) and by.op == "mul":
        return Node("mul", (*by.args[:-1], Node("pow", (by.args[-1], tree.args[1]))))
    return Node(tree.op, tuple(_replaced(a, word, by) if isinstance(a, Node) else a for a in tree.args))


def _has_unit_letters(tree: Node) -> bool:
    names = variables(tree)
    return bool(names) and all(n in UNITS for name in names for n in str(name).split())


def _up_to_constant(gold: Node, said: Node) -> bool | None:
    """Antiderivatives: equal but for the name of the added constant, or for a number that it takes in."""
    one, two = _added_constant(gold), _added_constant(said)
    if (
        one is None
        or two is None
        or not (variables(gold) & ADDED or ("c" in variables(gold) and len(variables(one)) == 1))
    ):
        return None
    rest = Node("add", (one, neg(two)))
    names = sorted(variables(rest))
    if not names:
        return bool(variables(one))
    moved = substitute(rest, {n: Node("sym", (n + "~",)) for n in names})
    return same(rest, moved)


def _added_constant(tree: Node) -> Node | None:
    """The sum without its constant of integration; None if it has none, or has it twice."""
    if tree.op != "add":
        return None
    found = [a for a in tree.args if a.op in {"sym", "word"} and a.args[0] in INTEGRATION_CONSTANTS]
    kept = [a for a in tree.args if a not in found]
    if len(found) != 1 or not kept or any(found[0].args[0] in variables(k) for k in kept):
        return None
    return kept[0] if len(kept) == 1 else Node("add", tuple(kept))
