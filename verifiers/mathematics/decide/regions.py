"""Subsets of the real line: intervals, unions, solved inequalities and sets, compared as sets of cells.

All end points of both sides are ranked. The line is then a row of cells, which are the points and the open gaps between
them, and union, intersection, difference and equality are those of sets of cells.
"""

from __future__ import annotations

from verizero.verifiers.mathematics.decide.equality import approximate, same
from verizero.verifiers.mathematics.read.syntax_tree import (
    COLLECTIONS,
    EMPTY,
    INF,
    REALS,
    Node,
    is_constant,
    neg,
    sym,
    variables,
    with_children,
)
from verizero.verifiers.mathematics.words.vocabulary import words_of

MAX_ENDS = 40
NEG_INF = neg(INF)
SIZES = words_of("< > <= >=")
FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}
Cells = frozenset[int]


class NotRegion(Exception):
    """The tree is no subset of the real line whose ends are numbers."""


def looks_like_region(tree: Node) -> bool:
    """True if the form of the tree can only be a region: inequality, union, builder, the reals."""
    if tree.op == "rel":
        return any(s in {"<", ">", "<=", ">=", "!=", "in", "notin"} for s in tree.args[1::2])
    if tree.op in COLLECTIONS:
        return all(looks_like_region(a) for a in tree.args)
    if tree.op == "add":
        return REALS in tree.args
    return tree.op in {"union", "inter", "minus", "builder"} or tree in (REALS, NEG_INF)


def same_region(gold: Node, answer: Node) -> bool:
    """True if both are the same set of reals. Raises: NotRegion if one of them is no such set."""
    if gold.op == "rel" or (gold.op in COLLECTIONS and all(a.op == "rel" for a in gold.args)):
        # An interval as gold asks for the inequality to be solved.
        gold, answer = without_abs(gold), without_abs(answer)
    trees = _with_names(gold), _with_names(answer)
    line = _Line()
    ours, theirs = map(line.names_in, trees)
    if len(ours) > 1 or len(theirs) > 1:
        raise NotRegion
    if ours and theirs and ours != theirs:
        return False
    line.cut()
    return line.cells(trees[0]) == line.cells(trees[1])


def without_abs(tree: Node) -> Node:
    """Return the tree with |x - 1| < 2 as -2 + 1 < x < 2 + 1, and |x| > 2 as x < -2 or x > 2."""
    if tree.op in COLLECTIONS:
        return with_children(tree, without_abs)
    if tree.op != "rel" or len(tree.args) != 3 or tree.args[1] not in SIZES:
        return tree
    left, sign, right = tree.args
    if left.op != "abs":
        left, sign, right = right, FLIPPED[sign], left
    if left.op != "abs" or not is_constant(right):
        return tree
    (inner,) = left.args
    terms = inner.args if inner.op == "add" else (inner,)
    names = [t for t in terms if not is_constant(t)]
    if len(names) != 1 or names[0].op != "sym":
        return tree
    shifts = [neg(t) for t in terms if is_constant(t)]
    low, high = (Node("add", (end, *shifts)) if shifts else end for end in (neg(right), right))
    if sign in {"<", "<="}:
        return Node("rel", (low, sign, names[0], sign, high))
    return Node("either", (Node("rel", (names[0], FLIPPED[sign], low)), Node("rel", (names[0], sign, high))))


def _with_names(tree: Node) -> Node:
    """Return the tree with a name for the value of a function at a number, such as f(2), in its relations."""
    if tree.op in COLLECTIONS:
        return with_children(tree, _with_names)
    if tree.op != "rel":
        return tree
    return Node("rel", tuple(sym(str(m)) if isinstance(m, Node) and m.op == "call" else m for m in tree.args))


class _Line:
    """The real line cut at the ends of regions: cell 2i is the gap before end i, cell 2i + 1 the end itself.

    Until it is cut, it has one cell, and takes in the ends and names of the regions that it is asked for.
    """

    def __init__(self) -> None:
        self.ends: list[Node] = []
        self.names: set[str] = set()
        self.is_cut = False
        self.all: Cells = frozenset({0})

    def names_in(self, tree: Node) -> set[str]:
        """Take in the ends of a region, and return the variables of its inequalities."""
        self.names = set()
        self.cells(tree)
        return self.names

    def cut(self) -> None:
        keyed = [(where, end) for end in self.ends if (where := approximate(end)) is not None]
        if len(keyed) < len(self.ends):
            raise NotRegion
        # Floats only order the ends. Neighbours are then compared exactly, so that 1/2 and 0.5 are one end.
        keyed.sort(key=lambda pair: pair[0])
        self.ends, self.is_cut = [], True
        for _, end in keyed:
            if not self.ends or not same(self.ends[-1], end):
                self.ends.append(end)
        self.all = frozenset(range(2 * len(self.ends) + 1))

    def place(self, end: Node) -> int:
        """Return the cell of an end."""
        if not self.is_cut:
            if not is_constant(end) or len(self.ends) > MAX_ENDS:
                raise NotRegion
            self.ends.append(end)
            return 0
        for i, known in enumerate(self.ends):
            if known == end or same(known, end):
                return 2 * i + 1
        raise NotRegion

    def between(self, low: Node, low_closed: bool, high: Node, high_closed: bool) -> Cells:
        """Return the cells of an interval; a closed end belongs to it, an infinite end is never closed."""
        first = 0 if low == NEG_INF else self.place(low) + (not low_closed)
        last = max(self.all) if high == INF else self.place(high) - (not high_closed)
        if (low == NEG_INF and low_closed) or (high == INF and high_closed) or low == INF or high == NEG_INF:
            raise NotRegion
        return frozenset(range(first, last + 1))

    def cells(self, tree: Node) -> Cells:
        """Return the cells of any region."""
        op = tree.op
        if op == "tuple" and len(tree.args) == 4:
            return self.between(tree.args[2], tree.args[0] == "[", tree.args[3], tree.args[1] == "]")
        if op == "set":
            return frozenset(self.place(a) for a in tree.args)
        if tree == REALS:
            return self.all
        if tree == EMPTY:
            return frozenset()
        if op == "rel":
            return self.relation(tree)
        if op == "builder":
            what, condition = tree.args
            names = set(self.names)  # that of the builder is bound inside, so that it does not matter
            within = self.relation(what) if what.op == "rel" else self.all  # {x in (0, 5) | x > 2}
            inside = self.cells(condition) & within
            if not self.names <= names | variables(what):
                raise NotRegion  # {x | q > 0}
            self.names = names
            return inside
        if op in {"union", "inter", "minus"}:
            left, right = self.cells(tree.args[0]), self.cells(tree.args[1])
            return left | right if op == "union" else left & right if op == "inter" else left - right
        if op == "add" and len(tree.args) == 2 and tree.args[1].op == "neg":
            return self.cells(tree.args[0]) - self.cells(tree.args[1].args[0])  # R - {0}, with a minus sign
        if op in COLLECTIONS:
            return self.joined(tree)
        raise NotRegion

    def joined(self, tree: Node) -> Cells:
        """Return the cells of statements joined by or, and, or commas."""
        parts = [self.cells(a) for a in tree.args]
        if any(part < other < self.all for part in parts for other in parts):
            raise NotRegion  # x > 2 or x >= 2: a part repeats the other, or is a second answer
        union: Cells = frozenset().union(*parts)
        if tree.op == "either" or any(p.op == "tuple" for p in tree.args):
            return union
        # x > 1, x < 3 means both. x < 1, x > 3 have nothing in common, so that they can only mean either.
        common = parts[0].intersection(*parts[1:])
        return common if tree.op == "both" else common or union

    def relation(self, tree: Node) -> Cells:
        """Return the cells in which every part of a chain such as 1 < x <= 3 is true."""
        cells = self.all
        for left, sign, right in zip(tree.args[:-2:2], tree.args[1::2], tree.args[2::2], strict=True):
            cells &= self.compared(left, sign, right)
        return cells

    def compared(self, left: Node, sign: str, right: Node) -> Cells:
        """Return the cells of a variable that is compared with an end or a region."""
        if sign in {"in", "notin"} and left.op == "sym":
            self.names.add(left.args[0])
            inside = self.cells(right)
            return inside if sign == "in" else self.all - inside
        if left.op != "sym":
            if right.op != "sym" or sign not in FLIPPED:
                raise NotRegion
            left, sign, right = right, FLIPPED[sign], left
        elif right.op == "sym":
            raise NotRegion
        self.names.add(left.args[0])
        if sign == "!=":
            return self.all - {self.place(right)}
        if sign == "=":
            return frozenset({self.place(right)})
        if sign in {"<", "<="}:
            return self.all if right == INF else self.between(NEG_INF, False, right, sign == "<=")
        if sign in {">", ">="}:
            return self.all if right == NEG_INF else self.between(right, sign == ">=", INF, False)
        raise NotRegion
