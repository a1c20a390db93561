"""Whether an answer's tree means what the gold's does. The gold decides the type: a set, a tuple, a curve, a number."""

from __future__ import annotations

import re

from verifiers.mathematics.decide.canonical import (
    bare_point,
    in_the_case_of,
    is_scaled,
    spread,
    with_all_items,
    without_quantifiers,
)
from verifiers.mathematics.decide.curves import numerator, proportional, same_inequality
from verifiers.mathematics.decide.equality import same
from verifiers.mathematics.decide.equation_chains import INVERSES, Contradiction, Value, last, name_of, value_of
from verifiers.mathematics.decide.formulas import expressions_equal
from verifiers.mathematics.decide.matrices import same_matrix
from verifiers.mathematics.decide.quantities import explicitly_rounded, quantity
from verifiers.mathematics.decide.regions import COLLECTIONS, FLIPPED, NotRegion, looks_like_region, same_region
from verifiers.mathematics.decide.residues import classes, congruent, same_ratio
from verifiers.mathematics.policy import MathParams
from verifiers.mathematics.read.syntax_tree import (
    EMPTY,
    INF,
    REALS,
    Node,
    expand_signs,
    has,
    is_constant,
    is_vector_sum,
    neg,
    nodes,
    substitute,
    variables,
)

MAX_SOLUTIONS = 60
PLANE = frozenset("xy")
NUMBER_SETS = frozenset({"Z", "N", "Q", "R", "C"})


def match(gold: Node, said: Node, params: MathParams) -> bool | None:
    """Whether `said` answers `gold`; None if that could not be decided."""
    if gold == said:
        return True
    gold, said = (with_all_items(without_quantifiers(t)) for t in (gold, said))
    if has(said, "undone") or has(gold, "undone"):
        return (
            gold == last(said) or last(gold) == last(said) if has(gold, "undone") else _undone_chain(gold, said, params)
        )
    if params.lone_name_ignores_case:
        said = in_the_case_of(gold, said)
    gold, said = bare_point(gold), bare_point(said)
    if gold.op in {"tuple", *COLLECTIONS}:
        said = spread(said)
    try:
        return _match(gold, said, params)
    except Contradiction:
        return False


def _undone_chain(gold: Node, said: Node, params: MathParams) -> bool | None:
    """An integral, sum or limit answers nothing by itself; `integral = value` answers with the value."""
    if said.op != "rel" or set(said.args[1::2]) - {"=", "≈"} or has(said.args[-1], "undone"):
        return False
    kept = [(a, s) for a, s in zip(said.args[::2], ("=", *said.args[1::2]), strict=True) if not has(a, "undone")]
    if len(kept) == 1:
        return match(gold, kept[0][0], params) if kept[0][1] == "=" else False
    chain: list[Node | str] = [kept[0][0]]
    for member, sign in kept[1:]:
        chain += [sign, member]
    return match(gold, Node("rel", tuple(chain)), params)


def _match(gold: Node, said: Node, params: MathParams) -> bool | None:
    if gold.op == "mod" or said.op == "mod" or (gold.op in COLLECTIONS and gold.args[0].op == "mod"):
        one, two = classes(gold), classes(said)
        return congruent(gold, said) if len(one) == len(two) == 1 else _unordered(one, two, params)
    if looks_like_region(gold) or (looks_like_region(said) and gold.op in {"tuple", "set", "const"}):
        return _regions(gold, said, params)
    if gold.op == "rel" and set(gold.args[1::2]) <= {"=", "≈", "≡"}:
        return _equation(gold, said, params)
    if gold.op == "ratio" or said.op == "ratio":
        return same_ratio(gold, said, params)
    if (
        gold.op in {"matrix", "transpose"}
        or said.op in {"matrix", "transpose"}
        or is_vector_sum(gold)
        or is_scaled(gold)
        or is_scaled(said)
    ):
        return same_matrix(gold, said, params)
    if gold.op in COLLECTIONS or gold.op == "set" or has(gold, "pm", "mp"):
        return _collections(gold, said, params)
    if gold.op == "tuple":
        return _tuples(gold, said, params)
    return _single(gold, said, params)


def _single(gold: Node, said: Node, params: MathParams) -> bool | None:
    """A number, quantity or expression as gold."""
    if said.op == "both" and all((q := quantity(a)) is not None and q.dimension for a in said.args):
        said = Node("add", said.args)
    if gold == EMPTY:
        return gold == said
    if said.op in COLLECTIONS or said.op == "set" or has(said, "pm", "mp"):
        solutions = _solutions(said, params)
        if solutions is None or len(solutions) != 1:
            return False
        said = solutions[0].tree
    value = value_of(said) if params.value_of_equation or said.op != "rel" else None
    if value is None:
        return False
    if value.approximate and not any(n.op == "dec" for n in nodes(gold)):
        return False
    said = value.tree
    if gold == said:
        return True
    if said in (EMPTY, REALS):
        return False
    if gold.op == said.op == "const":
        return gold == said
    if gold == INF or said == INF or gold == neg(INF) or said == neg(INF):
        return gold == said
    if said.op in {"tuple", "union", "builder"}:
        return gold == said
    return expressions_equal(gold, said, params)


def _solutions(tree: Node, params: MathParams) -> list[Value] | None:
    """The values that a list, set, plus-minus or chain of alternatives stands for, each once; None if it is none."""
    if tree.op in COLLECTIONS or tree.op == "set":
        parts = [_solutions(a, params) for a in tree.args]
        if any(p is None for p in parts) or sum(len(p or ()) for p in parts) > MAX_SOLUTIONS:
            return None
        found = [v for p in parts for v in p or ()]
    elif tree.op == "rel" and tree.args[1] == "in" and len(tree.args) == 3 and tree.args[2].op == "set":
        if name_of(tree.args[0]) is None:
            return None
        inner = _solutions(tree.args[2], params)
        found = [Value(v.tree, name_of(tree.args[0])) for v in inner or ()]
    else:
        found = []
        for choice in expand_signs(tree):
            value = value_of(choice)
            if value is None:
                return None
            if value.tree.op == "set" and value.tree is not tree:
                found += [Value(v.tree, value.name) for v in _solutions(value.tree, params) or ()]
            else:
                found.append(value)
    once: list[Value] = []
    for value in found:
        if not any(value.name == o.name and (value.tree == o.tree or same(value.tree, o.tree)) for o in once):
            once.append(value)
    return once


def _collections(gold: Node, said: Node, params: MathParams) -> bool | None:
    """Sets and lists of solutions, unordered; or named values, x = 1 and y = 2, by their names."""
    if any(a.op == "set" for t in (gold, said) if t.op == "set" for a in t.args):
        nested = gold.op == said.op and sorted(a.op for a in gold.args) == sorted(a.op for a in said.args)
        return nested and _unordered(list(gold.args), list(said.args), params)
    wanted, given = _solutions(gold, params), _solutions(said, params)
    if wanted is None or given is None:
        if gold.op in COLLECTIONS and said.op in COLLECTIONS:
            return _unordered(list(gold.args), list(said.args), params)
        return False
    if len(wanted) > 1 and len(given) == 1 and given[0].tree.op == "tuple":
        inside = given[0].tree
        if gold.op == "set" or (len(inside.args) == 4 and "[" in inside.args[:2]):
            return False
        given = [Value(a) for a in inside.args[2:]]
        return _in_order([w.tree for w in wanted], [v.tree for v in given], params)
    if (
        _names_differ(given)
        and not _names_differ(wanted)
        and len({re.sub(r"_\d+$", "", v.name or "") for v in given}) == 1
    ):
        given = [Value(v.tree) for v in given]
    if _names_differ(wanted):
        if not _names_differ(given):
            bare = not any(v.name for v in given) and said.op != "set"
            return bare and _in_order([w.tree for w in wanted], [v.tree for v in given], params)
        pairs = {v.name: v.tree for v in given}
        if len(pairs) != len(given) or set(pairs) != {w.name for w in wanted}:
            return False
        return all(_match(w.tree, pairs[w.name], params) for w in wanted)
    if gold.op in COLLECTIONS and said.op in COLLECTIONS and len(wanted) < len(gold.args):  # 1, 1, 2 says one twice
        return _unordered(list(gold.args), list(said.args), params)
    if _names_differ(given) and not any(v.name for v in wanted) and gold.op in COLLECTIONS:
        return _in_order([w.tree for w in wanted], [v.tree for v in given], params)
    names = {v.name for v in (*wanted, *given) if v.name}
    if len(names) > 1 or len(wanted) != len(given) or any(v.approximate for v in given):
        return False
    return _unordered([w.tree for w in wanted], [v.tree for v in given], params)


def _names_differ(values: list[Value]) -> bool:
    named = [v.name for v in values if v.name is not None]
    return len(named) == len(values) > 1 and len(set(named)) > 1


def _unordered(gold: list[Node], said: list[Node], params: MathParams) -> bool:
    if len(gold) != len(said):
        return False
    if not params.sets_unordered:
        return _in_order(gold, said, params)
    left = list(said)
    for wanted in gold:
        found = next((i for i, s in enumerate(left) if match(wanted, s, params)), None)
        if found is None:
            return False
        left.pop(found)
    return True


def _in_order(gold: list[Node], said: list[Node], params: MathParams) -> bool:
    return len(gold) == len(said) and all(match(g, s, params) for g, s in zip(gold, said, strict=True))


def _tuples(gold: Node, said: Node, params: MathParams) -> bool | None:
    """Points and other tuples, in order; brackets of intervals must agree."""
    if said.op == "rel":
        value = value_of(said)
        if value is None:
            return False
        said = value.tree
    items = list(gold.args[2:])
    if said.op == "tuple":
        pair = len(items) == 2 and gold.args[:2] != said.args[:2]
        return not pair and _in_order(items, list(said.args[2:]), params)
    if said.op in COLLECTIONS:
        values = _solutions(said, params) if has(said, "rel") else [Value(a) for a in said.args]
        if values is None or len(values) != len(items):
            return False
        if _names_differ(values):
            values = sorted(values, key=lambda v: v.name or "")
        elif any(v.name for v in values):
            return False
        return gold.args[:2] == ("(", ")") and _in_order(items, [v.tree for v in values], params)
    if is_vector_sum(said):
        return same_matrix(gold, said, params)
    return False


def _regions(gold: Node, said: Node, params: MathParams) -> bool | None:
    if not params.inequality_is_interval and looks_like_region(gold) != looks_like_region(said):
        return False
    for tree in (gold, said):
        if tree.op == "rel" and tree.args[1] in {"=", "≈"}:
            gold, said = (tree.args[-1], said) if tree is gold else (gold, tree.args[-1])
    chains = gold.op == said.op == "rel" and len(gold.args) == len(said.args)
    try:
        if not chains or len(variables(gold)) < 2:
            return same_region(gold, said)
    except NotRegion:
        pass
    if chains:
        return same_inequality(gold, said) if len(gold.args) == 3 else _same_order(gold, said)
    if gold.op == said.op and gold.op in COLLECTIONS | {"union", "inter"}:
        return _unordered(list(gold.args), list(said.args), params)
    if gold.op == said.op and gold.op in {"minus", "builder"}:
        return _in_order(list(gold.args), list(said.args), params)
    if gold.op == "rel" and gold.args[1] == "in" and said.op != "rel":
        return match(gold.args[2], said, params)
    if said.op == "rel" and said.args[1] == "in" and len(said.args) == 3 and gold.op != "rel":
        belongs = said.args[2] != REALS and name_of(said.args[0]) is not None
        return match(gold, said.args[2], params) if belongs else False
    return False


def _same_order(gold: Node, said: Node) -> bool:
    """Whether two chains such as a < b <= c have the same members and signs, in this or the reverse direction."""
    signs, members = said.args[1::2], said.args[::2]
    turned = tuple(FLIPPED.get(sign, sign) for sign in reversed(signs))
    return any(
        gold.args[1::2] == order and all(same(g, m) for g, m in zip(gold.args[::2], given, strict=True))
        for order, given in ((signs, members), (turned, members[::-1]))
    )


def _equation(gold: Node, said: Node, params: MathParams) -> bool | None:
    """An equation as gold: its value if it is solved for a name, else its curve."""
    value = value_of(gold)
    solved = value is not None and (len(gold.args) > 3 or value.name is not None)
    if solved and value is not None and value.name is not None and "_" in value.name and _is_recurrence(gold):
        solved = False
    if solved and value is not None:
        if "≈" in gold.args and _approximate_gold(gold, said, params):
            return True
        named = value_of(said) if said.op == "rel" else None
        if named is not None and named.name is None and value.name is not None and variables(said.args[0]):
            return False if is_constant(value.tree) else _same_curve(gold, said, params)
        if (
            named is not None
            and named.name is not None
            and value.name is not None
            and not _names_agree(value.name, named.name)
        ):
            return _same_curve(gold, said, params) if variables(gold) == PLANE == variables(said) else False
        if (
            is_constant(value.tree)
            or value.tree.op in {"tuple", "set", "matrix"}
            or has(value.tree, "pm", "word", "money")
        ):
            return match(value.tree, said, params) if params.value_of_equation or said.op == "rel" else False
        renamed = _renamed(gold, said)
        if named is not None or said.op != "rel":
            answer = match(value.tree, named.tree if named is not None else said, params)
            if answer is not False:
                return answer
            if renamed is not None and match(value.tree, renamed, params):
                return True
    return _same_curve(gold, said, params)


def _is_recurrence(gold: Node) -> bool:
    """Whether the name on the left stands on the right too, with the same or another subscript: x_n+1 = 2 x_n."""
    letter = str(gold.args[0].args[0]).split("_")[0]
    return any(str(n).split("_")[0] == letter and "_" in str(n) for n in variables(gold.args[-1]))


def _same_curve(gold: Node, said: Node, params: MathParams) -> bool | None:
    """Whether two equations of one sign each have the same solutions."""
    if (
        said.op != "rel"
        or len(said.args) != 3
        or len(gold.args) != 3
        or said.args[1] != "="
        or gold.args[0].op == "call"
    ):
        return False
    if not params.same_curve:
        return same(gold.args[0], said.args[0]) and same(gold.args[2], said.args[2])
    one = Node("add", (gold.args[0], neg(gold.args[2])))
    two = Node("add", (said.args[0], neg(said.args[2])))
    return proportional(numerator(one), numerator(two), positive=False)


def _approximate_gold(gold: Node, said: Node, params: MathParams) -> bool:
    """A gold such as x ≈ 3.1: what rounds to it is right, whatever its digits."""
    given = value_of(said)
    return given is not None and is_constant(given.tree) and explicitly_rounded(gold.args[-1], given.tree)


def _names_agree(one: str, two: str) -> bool:
    functions = {"y", "f", "g", "h", "F"} | INVERSES
    if one.endswith("'") and two.endswith("'"):
        return _names_agree(one[:-1], two[:-1])
    if ("_" in one and "_" in two) or ("^" in one and "^" in two):
        return one == two
    if one == two or any(len(n) > 3 and "^" not in n for n in (one, two)):
        return True
    return "y" in {one, two} and {one, two} <= functions


def _renamed(gold: Node, said: Node) -> Node | None:
    """The right side of `said` with the argument of its function called as in the gold: f(n) = n^2 for f(x) = x^2."""
    if (
        said.op == "rel"
        and said.args[0].op == gold.args[0].op == "call"
        and len(said.args[0].args) == len(gold.args[0].args)
    ):
        names = zip(said.args[0].args[1:], gold.args[0].args[1:], strict=True)
        return substitute(said.args[-1], {old: Node("sym", (new,)) for old, new in names})
    return None
