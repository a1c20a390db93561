"""Formulas in one form before they are compared, and the comparison of formulas, vectors and matrices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise, permutations
from typing import Any

from verizero.verifiers.mathematics.decide.equality import same
from verizero.verifiers.mathematics.decide.equation_chains import end_of, name_of
from verizero.verifiers.mathematics.decide.quantities import numbers_equal, quantities_equal, quantity
from verizero.verifiers.mathematics.read.syntax_tree import (
    COLLECTIONS,
    DOTS,
    INF,
    PI,
    E,
    Node,
    collected,
    difference,
    has,
    is_constant,
    is_vector_sum,
    nodes,
    num,
    substitute,
    sym,
    variables,
    with_children,
)
from verizero.verifiers.mathematics.words.vocabulary import ENGLISH, UNITS, words_of

ADDED = words_of("const constant C C_1 c_1 C_0 K")
"""Names of the constant of an antiderivative in golds. So is c with a single other name, but not in x^2 + bx + c."""
NUMBERED = words_of("C_1 C_2 C_3 c_1 c_2 c_3")
MAX_CONSTANTS = 3
INTEGRATION_CONSTANTS = words_of("const constant C c K k C_1 c_1 C_0 D A")


def expressions_equal(gold: Node, answer: Node) -> bool | None:
    """True if two expressions or quantities have the same value, whatever constants are called; None if undecided."""
    equal = _equal_as_named(gold, answer)
    names, others = variables(gold), variables(answer)
    if equal or names.isdisjoint(("x", "t")) or NUMBERED.isdisjoint(names | others):
        return equal
    renamed = _with_constants_renamed(answer, names, others)
    return any(_equal_as_named(gold, a) for a in renamed) or equal


def _with_constants_renamed(answer: Node, names: frozenset[str], others: frozenset[str]) -> Iterator[Node]:
    """Yield the answer with its constants of a general solution, C_1 and C_2 or A and B, in names of the gold's."""
    ours, theirs = (sorted((n - m) | (n & NUMBERED)) for n, m in ((names, others), (others, names)))
    if 1 < len(ours) == len(theirs) <= MAX_CONSTANTS and {*ours, *theirs} <= NUMBERED | INTEGRATION_CONSTANTS | {"B"}:
        for order in permutations(ours):
            yield substitute(answer, {name: sym(new) for name, new in zip(theirs, order, strict=True)})


def _equal_as_named(gold: Node, answer: Node) -> bool | None:
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
    equal = quantities_equal(wanted, reached)
    if equal or not (variables(gold) and variables(answer)) or wanted.has_unit:
        return equal
    return _up_to_constant(gold, answer) or equal


def derived_values(gold: Node) -> list[Node] | None:
    """Return the values of a chain that begins with how they arise: 5 of 2 + 3 = 5, x^5 of x^2 x^3 = x^5.

    The first is exact, the others are rounded: 40/3 and 13.33 of 40/3 ≈ 13.33. None for any other gold, such as an
    equation with unknowns or x = 5.
    """
    members, signs = gold.args[::2], gold.args[1::2]
    num_exact = (*signs, "≈").index("≈") + 1
    if set(signs) - {"=", "≈"} or (name_of(members[0]) is not None and not is_constant(members[0])):
        return None
    if num_exact == 1 and not is_constant(members[0]):
        return None
    exact = members[:num_exact]
    if not all(expressions_equal(left, right) is True for left, right in pairwise(exact)):
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


MAX_ITEMS = 1_000
QUANTIFIED = COLLECTIONS | {"builder"}
NOT_POINTS = frozenset("BFGNTU")
"""Capitals that name a distribution or a function before brackets."""
PARAMETERS = words_of("t s u r lambda mu")
"""Names for any number in the coordinates of a line."""
WHOLE_NAMES = frozenset("nkmlj")
"""Names for any whole number in a family of angles: n pi is k pi."""


def in_the_case_of(gold: Node, answer: Node) -> Node:
    """Return `answer` with its only variable, a Latin letter, in the case of the gold's only variable."""
    names, others = variables(gold), variables(answer)
    if len(names) == len(others) == 1 and names != others:
        (name,), (other,) = names, others
        is_whole = {name, other} <= WHOLE_NAMES and PI in nodes(gold)
        is_parameter = {name, other} <= PARAMETERS and gold.op in {"tuple", "matrix"}
        is_one_letter = len(name) == len(other) == 1 and name.isascii() and name.lower() == other.lower()
        if is_whole or is_parameter or is_one_letter:
            return substitute(answer, {other: sym(name)})
    if gold.op in COLLECTIONS:
        ours, theirs = names - others, others - names
        if len(ours) == len(theirs) == 1 and ours | theirs <= PARAMETERS:  # x = 2t, y = 1 - t
            return substitute(answer, {name: sym(new) for name, new in zip(theirs, ours, strict=True)})
    return answer


def with_products(answer: Node, gold: Node) -> Node:
    """Return `answer` with x times y for x(y) if x is a number in the gold: only the gold tells what is a function."""
    functions = {n.args[0] for n in nodes(gold) if n.op == "call"}
    numbers = {n.args[0] for n in nodes(gold) if n.op == "sym"} - functions

    def product(tree: Node) -> Node:
        if tree.op == "rel":  # y(x) = 2x gives a function a value
            return Node("rel", (tree.args[0], *(product(a) if isinstance(a, Node) else a for a in tree.args[1:])))
        tree = with_children(tree, product)
        is_product = tree.op == "call" and len(tree.args) == 2 and tree.args[0] in numbers
        return Node("mul", (sym(tree.args[0]), tree.args[1])) if is_product else tree

    return product(answer)


def letters_for_unit(gold: Node, answer: Node) -> Node | None:
    """Return `gold` with m and V for the millivolts of mV^2/2 if `answer` has these names and no unit; else None."""
    words = {n.args[0] for n in nodes(gold) if n.op == "word"}
    if not words or has(answer, "word") or not all(w.isalpha() and set(w) <= variables(answer) for w in words):
        return None
    if not has(gold, "sym") and not any(n.op == "pow" and n.args[0].op == "word" for n in nodes(gold)):
        return None  # a number with a unit, not a formula
    return spelled(gold, words)


def bare_points(gold: Node, answer: Node) -> tuple[Node, Node] | None:
    """Return (2, 3) for the point A(2, 3) on both sides; None if their names differ.

    Only what can be nothing but a point may lose its name: N(0, 1) is a distribution, F(x, y) a value.
    """
    if gold.op != "mul" != answer.op:
        return gold, answer
    name, other = _name_before(gold), _name_before(answer)
    if name and other:
        return (gold.args[1], answer.args[1]) if name == other else None
    if name and name not in NOT_POINTS and all(map(is_constant, gold.args[1].args[2:])):
        return gold.args[1], answer
    if other and other not in NOT_POINTS and all(map(is_constant, answer.args[1].args[2:])):
        return gold, answer.args[1]
    return gold, answer


def _name_before(tree: Node) -> str | None:
    """Return the capital before the brackets of a tuple; None for any other tree."""
    if tree.op != "mul" or len(tree.args) != 2 or tree.args[0].op != "sym" or tree.args[1].args[:2] != ("(", ")"):
        return None
    name = str(tree.args[0].args[0])
    return name if len(name) == 1 and name.isupper() and tree.args[1].op == "tuple" else None


def with_all_items(tree: Node) -> Node:
    """Return 1, 2, 3, 4, 5 for 1, 2, ..., 5, any other tree as it is.

    The items must be whole numbers, at least two before the dots, whose step leads to the items behind the dots.
    """
    if DOTS not in tree.args or tree.op not in {"set", *COLLECTIONS}:
        return tree
    at = tree.args.index(DOTS)
    before, after = _whole(tree.args[:at]), _whole(tree.args[at + 1 :])
    if len(before) < 2 or not after or len(before) + len(after) + 1 != len(tree.args):
        return tree
    first, step = before[0], before[1] - before[0]
    count = (after[-1] - first) // step + 1 if step else 0
    if not len(before) + len(after) <= count <= MAX_ITEMS:
        return tree
    items = [first + step * i for i in range(count)]
    shown = items[:at] == before and items[count - len(after) :] == after
    return Node(tree.op, tuple(num(i) for i in items)) if shown else tree


def _whole(items: tuple[Any, ...]) -> list[int]:
    return [a.args[0] for a in items if isinstance(a, Node) and a.op == "num" and isinstance(a.args[0], int)]


def without_quantifiers(gold: Node, answer: Node) -> tuple[Node, Node] | None:
    """Return the trees without items such as `k in Z`, which only define a name in another item, in the gold's name.

    None if both have such items, of other sets of numbers.
    """
    if gold.op not in QUANTIFIED and answer.op not in QUANTIFIED:
        return gold, answer
    wanted, bound = _quantified(gold)
    reached, others = _quantified(answer)
    if bound and others and sorted(bound.values()) != sorted(others.values()):
        return None
    if len(bound) == len(others) == 1 and bound != others and not bound.keys() & variables(reached):
        reached = substitute(reached, {name: sym(new) for name, new in zip(others, bound, strict=True)})
    return wanted, reached


def _quantified(tree: Node) -> tuple[Node, dict[str, str]]:
    """Return the tree without the items that only define a name, and the set of numbers of each such name."""
    if tree.op == "builder" and tree.args[0].op == "sym" and tree.args[0].args[0] not in variables(tree.args[1]):
        return Node("mul", tree.args), {}  # { q | x > 0 } says nothing of q
    if tree.op == "builder" and tree.args[0].op != "sym":
        what, condition = tree.args
        conditions = condition.args if condition.op in COLLECTIONS else (condition,)
        bound = _bound(c for c in conditions if c.op == "rel" and c.args[1] == "in" and c.args[2].op == "const")
        return (what, bound) if len(bound) == len(conditions) else (tree, {})
    if tree.op not in COLLECTIONS:
        return tree, {}
    defining = [a for a in tree.args if _is_quantifier(a)]
    kept = [a for a in tree.args if a not in defining]
    if defining and kept and not _bound(defining).keys() <= variables(Node("list", tuple(kept))):
        return tree, {}
    return (collected(tree.op, kept), _bound(defining)) if defining and kept else (tree, {})


def _bound(quantifiers: Iterable[Node]) -> dict[str, str]:
    return {str(q.args[0].args[0]): str(q.args[2].args[0]) for q in quantifiers if q.args[0].op == "sym"}


def _is_quantifier(tree: Node) -> bool:
    if tree.op != "rel" or tree.args[1] != "in" or tree.args[2].op != "const":
        return False
    name, numbers = tree.args[0], tree.args[2].args[0]
    return numbers in {"Z", "N"} or (name.op == "sym" and name.args[0] in INTEGRATION_CONSTANTS)


def is_scaled(tree: Node) -> bool:
    """True if the tree is a number times a vector or matrix."""
    vectors = [a for a in tree.args if a.op in {"tuple", "matrix"}] if tree.op in {"mul", "neg", "div"} else []
    # -(1, 0] is no vector, and neither is -(infinity, 0): intervals have no multiples here.
    return bool(vectors) and all(
        v.op == "matrix" or (v.args[:2] in {("(", ")"), ("[", "]")} and INF not in v.args) for v in vectors
    )


Rows = list[list[Node]]


def _rows(tree: Node) -> Rows | None:
    """Return the cells of a matrix (scaled, transposed), a tuple or a sum of unit vectors; None for anything else."""
    if tree.op == "matrix":
        return [list(row.args[2:]) for row in tree.args]
    if tree.op == "tuple":
        return [[a] for a in tree.args[2:]] if tree.args[:2] in {("(", ")"), ("[", "]")} else None
    if tree.op == "binom":
        return [[a] for a in tree.args]  # a column of two is often written \binom{1}{2}
    if tree.op == "transpose":
        inner = _rows(tree.args[0])
        if inner is None or tree.args[0].op == "tuple":
            return inner
        return [list(column) for column in zip(*inner, strict=True)] if len({len(r) for r in inner}) == 1 else None
    if is_vector_sum(tree):
        # The coordinate of an axis is the value of the sum where that unit vector is 1 and the others are 0.
        size = 3 if "vec k" in variables(tree) else 2
        units = [{f"vec {c}": num(int(c == axis)) for c in ("i", "j", "k", "imath", "jmath")} for axis in "ijk"[:size]]
        return [[substitute(tree, names)] for names in units]
    return _scaled(tree) if tree.op in {"mul", "neg", "div"} else None


def _scaled(tree: Node) -> Rows | None:
    """Return the cells of a matrix times or over a number, the operation done in every cell."""
    inner = [a for a in tree.args if has(a, "matrix", "tuple")]
    if len(inner) != 1 or (tree.op == "div" and inner[0] is not tree.args[0]):
        return None
    rows = _rows(inner[0])
    if rows is None:
        return None
    return [[Node(tree.op, tuple(c if a is inner[0] else a for a in tree.args)) for c in row] for row in rows]


def same_matrix(gold: Node, answer: Node) -> bool | None:
    """True if both have equal cells; a tuple may also answer for a row or a column."""
    answer = end_of(answer)
    wanted, reached = _rows(gold), _rows(answer)
    if wanted is None or reached is None:
        return False
    if [len(r) for r in wanted] != [len(r) for r in reached]:
        written_flat = _is_line(wanted) and _is_line(reached) and "tuple" in {gold.op, answer.op}
        if not (written_flat or is_vector_sum(gold) or is_vector_sum(answer)):
            return False
        wanted, reached = [[c for r in wanted for c in r]], [[c for r in reached for c in r]]
        if len(wanted[0]) != len(reached[0]):
            return False
    cells = [(g, a) for row, other in zip(wanted, reached, strict=True) for g, a in zip(row, other, strict=True)]
    return all(numbers_equal(g, a) if is_constant(g) else expressions_equal(g, a) for g, a in cells)


def _is_line(rows: Rows) -> bool:
    return len(rows) == 1 or {len(r) for r in rows} == {1}
