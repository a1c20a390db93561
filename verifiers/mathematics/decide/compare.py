"""Compare two trees. The gold decides the type: a set, a tuple, a curve, a number."""

from __future__ import annotations

import re
from collections.abc import Callable

from verizero.verifiers.mathematics.decide.curves import (
    is_linear,
    numerator,
    proportional,
    same_inequality,
    same_linear,
)
from verizero.verifiers.mathematics.decide.equality import same
from verizero.verifiers.mathematics.decide.equation_chains import (
    Contradiction,
    Value,
    agree_in_names,
    end_of,
    has_known_members,
    in_argument_of,
    is_recurrence,
    last,
    name_of,
    names_agree,
    value_of,
    with_each_name,
    without_undone,
)
from verizero.verifiers.mathematics.decide.formulas import (
    bare_points,
    derived_values,
    expressions_equal,
    in_the_case_of,
    is_scaled,
    same_matrix,
    with_all_items,
    with_products,
    without_quantifiers,
)
from verizero.verifiers.mathematics.decide.quantities import explicitly_rounded, quantity
from verizero.verifiers.mathematics.decide.regions import (
    NEG_INF,
    NotRegion,
    looks_like_region,
    same_region,
)
from verizero.verifiers.mathematics.decide.relations import (
    DIRECTED,
    branches,
    classes,
    congruent,
    same_named_ratio,
    same_order,
    same_ratio,
    words_of_condition,
)
from verizero.verifiers.mathematics.read.syntax_tree import (
    COLLECTIONS,
    EMPTY,
    INF,
    PROPOSITIONAL,
    REALS,
    SIGNS,
    Node,
    difference,
    expand_signs,
    has,
    is_constant,
    is_vector_sum,
    nodes,
    sym,
    variables,
)

Items = list[Node] | tuple[Node, ...]
MAX_SOLUTIONS = 60
PLANE = frozenset("xy")
INDEX = re.compile(r"_\d+$")


def match(gold: Node, answer: Node) -> bool | None:
    """True if `answer` answers `gold`; None if that could not be decided."""
    if gold == answer:
        return True
    pair = without_quantifiers(gold, answer)
    if pair is None:
        return False
    gold, answer = map(with_all_items, pair)
    if has(gold, "undone"):
        if gold.op == answer.op == "rel" and _unlike_signs(gold) != _unlike_signs(answer):
            return False
        if gold.op == answer.op == "rel" and answer.args[0].op == "undone" != gold.args[0] != answer.args[0]:
            return False
        names = [name for t in (gold, answer) if t.op == "rel" and (name := name_of(t.args[0])) is not None]
        if len(names) == 2 and not names_agree(*names):
            term = min(names, key=len)
            if {gold.args[0], answer.args[0]} != {sym(f"{term}_n"), Node("call", (term, sym("n")))}:  # a_n or a(n)
                return False
        value = without_undone(gold)
        if value is None or last(gold) == last(answer):
            return last(gold) == last(answer) and has_known_members(gold, answer)
        gold = value
    if has(answer, "undone"):
        value = without_undone(answer)  # an integral, sum or limit alone answers nothing
        return value is not None and match(gold, value)
    if has(answer, "call"):
        answer = with_products(answer, gold)
    answer = in_the_case_of(gold, answer)
    pair = bare_points(gold, answer)
    if pair is None:
        return False
    gold, answer = pair
    if gold.op in {"tuple", *COLLECTIONS} or answer.op in {"list", "both"}:
        gold, answer = with_each_name(gold), with_each_name(answer)
    try:
        return _match(gold, answer)
    except Contradiction:
        return False


def _match(gold: Node, answer: Node) -> bool | None:
    """Choose the comparison by type. The order matters: each test takes what the tests before it left."""
    if gold.op == "mod" or answer.op == "mod" or (gold.op in COLLECTIONS and gold.args[0].op == "mod"):
        wanted, reached = classes(gold), classes(answer)
        if len(wanted) == len(reached) == 1:
            return congruent(gold, answer)
        return _unordered(wanted, reached)
    if gold.op == "piecewise":
        return _piecewise(gold, end_of(answer))
    if gold.op == "rel" and not DIRECTED.isdisjoint(gold.args[1::2]):
        if "sim" in gold.args[1::2] and answer.op != "rel":
            return gold.args[0].op == "sym" and match(gold.args[-1], answer)  # what X is like: N(0, 1)
        return same_order(gold, answer, match)
    # (1,2) is a point or an interval; the other side tells which.
    if looks_like_region(gold) or (looks_like_region(answer) and gold.op in {"tuple", "set", "const"}):
        return _regions(gold, answer)
    if gold.op == "rel" and len(gold.args) == 3 and gold.args[0].op == gold.args[2].op == "ratio":
        return same_named_ratio(gold, answer)
    if gold.op == "rel" and set(gold.args[1::2]) <= {"=", "≈", "≡"}:
        return _equation(gold, answer)
    if gold.op == "ratio" or answer.op == "ratio":
        return same_ratio(gold, answer)
    if {gold.op, answer.op} & {"matrix", "transpose"} or is_vector_sum(gold) or is_scaled(gold) or is_scaled(answer):
        return same_matrix(gold, answer)
    if gold.op in COLLECTIONS or gold.op == "set" or has(gold, "pm", "mp"):
        return _collections(gold, answer)
    if gold.op == "tuple":
        return _tuples(gold, answer)
    return _single(gold, answer)


def _unlike_signs(tree: Node) -> set[str]:
    """Return the signs of a chain of relations but for those that say equal."""
    return set(tree.args[1::2]) - {"=", "≈"}


def _single(gold: Node, answer: Node) -> bool | None:
    """Compare with a number, quantity or expression as gold."""
    if answer.op == "both" and all((q := quantity(a)) is not None and q.dimension for a in answer.args):
        answer = Node("add", answer.args)  # 1 hour and 30 minutes
    if gold == EMPTY:
        return gold == answer
    if answer.op in COLLECTIONS or answer.op == "set" or has(answer, "pm", "mp"):
        solutions = _solutions(answer)
        if solutions is None or len(solutions) != 1:
            return False
        answer = solutions[0].tree
    value = value_of(answer)
    if value is None:
        return False
    # "x ≈ 1.41" is not the exact gold, but may be one shown in decimals.
    if value.approximate and not has(gold, "dec"):
        return False
    answer = value.tree
    if gold == answer:
        return True
    # What has no value in numbers equals itself only, which was asked before.
    if answer in (EMPTY, REALS) or gold.op == answer.op == "const" or answer.op in {"tuple", "union", "builder"}:
        return False
    if any(t in (INF, NEG_INF) for t in (gold, answer)):
        return False
    if has(gold, "sym", "det") and (is_linear(gold) or is_linear(answer)):
        return same_linear(gold, answer)
    return expressions_equal(gold, answer)


def _solutions(tree: Node) -> list[Value] | None:
    """Return the distinct values of a list, set, plus-minus or chain of alternatives; None if a part has no value."""
    values: list[Value] = []
    if tree.op in COLLECTIONS or tree.op == "set":
        parts = [_solutions(a) for a in tree.args]
        values = [v for part in parts for v in part or ()]
        if None in parts or len(values) > MAX_SOLUTIONS:
            return None
    elif tree.op == "rel" and tree.args[1] == "in" and len(tree.args) == 3 and tree.args[2].op == "set":
        name = name_of(tree.args[0])
        if name is None:
            return None
        values = [Value(v.tree, name) for v in _solutions(tree.args[2]) or ()]
    else:
        for choice in expand_signs(tree):
            value = value_of(choice)
            if value is None:
                return None
            if value.tree.op == "set" and value.tree is not tree:
                values += [Value(v.tree, value.name) for v in _solutions(value.tree) or ()]
            else:
                values.append(value)
    once: list[Value] = []
    for value in values:
        if not any(value.name == o.name and (value.tree == o.tree or same(value.tree, o.tree)) for o in once):
            once.append(value)
    return once


def _collections(gold: Node, answer: Node) -> bool | None:
    """Compare sets and lists of solutions without order, and named values, x = 1 and y = 2, by their names."""
    if any(a.op == "set" or a == EMPTY for t in (gold, answer) if t.op == "set" for a in t.args):
        nested = gold.op == answer.op and sorted(a.op for a in gold.args) == sorted(a.op for a in answer.args)
        return nested and _unordered(gold.args, answer.args)
    both_lists = gold.op in COLLECTIONS and answer.op in COLLECTIONS
    if both_lists and not has_known_members(gold, answer):
        return False
    if {gold.op, answer.op} == {"either", "both"} and all(n.op in PROPOSITIONAL for n in nodes(gold)):
        return False  # p and q is not p or q, though x = 1 and x = 2 are the same two values as x = 1 or x = 2
    wanted, reached = _solutions(gold), _solutions(answer)
    if wanted is None or reached is None:
        return _unordered(gold.args, answer.args) if both_lists else False
    trees = [w.tree for w in wanted]
    if both_lists and any(w.of for w in wanted) and any(r.label for r in reached):
        return _unordered(gold.args, answer.args)
    if len(wanted) > 1 and len(reached) == 1 and reached[0].tree.op == "tuple":
        # The point (1, 2) answers x = 1, y = 2 or the list 1, 2, but no set and no alternatives; an interval neither.
        inside = reached[0].tree
        is_point = gold.op in {"list", "both"} and (_names_differ(wanted) or not any(w.label for w in wanted))
        if not is_point or (len(inside.args) == 4 and "[" in inside.args[:2]):
            return False
        return _in_order(trees, inside.args[2:])
    same_letter = len({INDEX.sub("", v.name or "") for v in (*wanted, *reached) if v.name}) == 1
    indices = [v for v in (*wanted, *reached) if v.name is None or not INDEX.search(v.name)]
    if _names_differ(reached) != _names_differ(wanted) and same_letter and indices:
        reached = [Value(v.tree) for v in reached]  # x_1 = 1, x_2 = 2 are two values of x
    answers = [v.tree for v in reached]
    if _names_differ(wanted):
        if not _names_differ(reached):
            bare = not any(v.name for v in reached) and answer.op != "set"
            return bare and _in_order(trees, answers)
        by_name = {v.name: v.tree for v in reached}
        if len(by_name) != len(reached) or set(by_name) != {w.name for w in wanted}:
            return False
        return all(_match(w.tree, by_name[w.name]) for w in wanted)
    if both_lists and len(wanted) < len(gold.args):
        return _unordered(gold.args, answer.args)  # 1, 1, 2 repeats a value
    if _names_differ(reached) and not any(v.name for v in wanted) and gold.op in COLLECTIONS:
        return _in_order(trees, answers)
    names = {v.name for v in (*wanted, *reached) if v.name}
    if len(names) > 1 or any(v.approximate for v in reached):
        return False
    return _unordered(trees, answers)


def _names_differ(values: list[Value]) -> bool:
    labels = [v.label for v in values if v.label is not None]
    return len(labels) == len(values) > 1 and len(set(labels)) > 1


def _unordered(gold: Items, answer: Items, alike: Callable[[Node, Node], bool | None] = match) -> bool:
    if len(gold) != len(answer):
        return False
    left = list(answer)
    for wanted in gold:
        at = next((i for i, a in enumerate(left) if alike(wanted, a)), None)
        if at is None:
            return False
        left.pop(at)
    return True


def _in_order(gold: Items, answer: Items) -> bool:
    return len(gold) == len(answer) and all(match(g, a) for g, a in zip(gold, answer, strict=True))


def _tuples(gold: Node, answer: Node) -> bool | None:
    """Compare points and other tuples in order; brackets of intervals must agree."""
    value = value_of(answer)
    if value is None:
        return False
    answer, items = value.tree, gold.args[2:]
    if answer.op == "tuple":
        # Of two items the brackets matter, as the pair may be an interval.
        differs = len(items) == 2 and gold.args[:2] != answer.args[:2]
        return not differs and _in_order(items, answer.args[2:])
    if answer.op in {"list", "both"}:
        values = _solutions(answer) if has(answer, "rel") else [Value(a) for a in answer.args]
        if values is None or len(values) != len(items):
            return False
        if _names_differ(values):
            values = sorted(values, key=lambda v: v.name or "")  # y = 2, x = 1 is the point (1, 2)
        elif any(v.name for v in values):
            return False
        return gold.args[:2] == ("(", ")") and _in_order(items, [v.tree for v in values])
    return same_matrix(gold, answer) if is_vector_sum(answer) else False


def _piecewise(gold: Node, answer: Node) -> bool:
    """Compare functions given by branches: each value under its own condition, in any order."""
    if answer.op != "piecewise" or len(answer.args) != len(gold.args):
        return False
    left = branches(answer)
    for value, condition in branches(gold):
        at = next((i for i, (_, other) in enumerate(left) if _same_condition(condition, other)), None)
        if at is None or not match(value, left.pop(at)[0]):
            return False
    return True


def _same_condition(gold: Node, answer: Node) -> bool:
    words, others = words_of_condition(gold), words_of_condition(answer)
    return words == others if words or others else match(gold, answer) is True


def _regions(gold: Node, answer: Node) -> bool | None:
    """Compare subsets of the real line, or inequalities of several names."""
    gold, answer = (t.args[-1] if t.op == "rel" and t.args[1] in {"=", "≈"} else t for t in (gold, answer))
    chains = gold.op == answer.op == "rel" and len(gold.args) == len(answer.args)
    try:
        if not chains or len(variables(gold)) < 2:
            return same_region(gold, answer)
    except NotRegion:
        pass  # compared by their parts below
    if chains:
        return same_inequality(gold, answer) if len(gold.args) == 3 else same_order(gold, answer, same)
    if {gold.op, answer.op} == {"list", "both"} or gold.op == answer.op in COLLECTIONS | {"union", "inter"}:
        return _unordered(gold.args, answer.args)
    if gold.op == answer.op and gold.op in {"minus", "builder"}:
        return _in_order(gold.args, answer.args)
    if gold.op == "rel" and gold.args[1] == "in" and answer.op != "rel":
        return match(gold.args[2], answer)
    if answer.op == "rel" and answer.args[1] == "in" and len(answer.args) == 3 and gold.op != "rel":
        belongs = answer.args[2] != REALS and name_of(answer.args[0]) is not None
        return match(gold, answer.args[2]) if belongs else False
    return False


def _equation(gold: Node, answer: Node) -> bool | None:
    """Compare with an equation as gold: by its value if it is solved for a name, else by its curve."""
    derived = derived_values(gold)
    if derived is not None:
        stated, reached = (quantity(last(tree)) for tree in (gold, answer))
        if stated and reached and stated.dimension and reached.has_unit:
            if stated.dimension != reached.dimension:
                return False
            if not same(stated.scale, reached.scale):
                return all(match(last(gold), a) for a in (answer, last(answer)))
            answer = answer if answer.op == "rel" else reached.raw
        return any(match(v, answer) for v in derived[:1]) or _rounded_to(derived[1:], answer)
    is_chain = answer.op == "rel" and len(gold.args) == len(answer.args) > 3 and set(answer.args[1::2]) == {"="}
    if is_chain and _unordered(gold.args[::2], answer.args[::2]):
        return True  # x = y/2 = z/3 in another order
    if len(gold.args) > 3 and all(m.op != "word" and name_of(m) is not None for m in gold.args[::2]):
        return False  # AB = BC = CA is no value by itself
    value = value_of(gold)
    if value is None or not (len(gold.args) > 3 or value.name is not None):
        return _same_curve(gold, answer)
    if value.name is not None and "_" in value.name and is_recurrence(gold):
        return _same_curve(gold, answer)
    named = value_of(answer) if answer.op == "rel" else None
    if named is not None and not (agree_in_names(gold, answer) and has_known_members(gold, answer)):
        return False
    if named is not None and value.name is not None:
        if named.name is None and variables(answer.args[0]):
            return False if is_constant(value.tree) else _same_curve(gold, answer)
        if named.name is not None and not names_agree(value.name, named.name):
            # x = 2y and y = x/2 are one line; elsewhere another name is another thing.
            return _same_curve(gold, answer) if variables(gold) == PLANE == variables(answer) else False
    is_value = is_constant(value.tree) or value.tree.op in {"tuple", "set", "matrix"}
    if "≈" in gold.args and _rounded_to(gold.args[-1:], answer):
        return True
    if has(value.tree, *SIGNS) and _curves_of_signs(gold, answer):
        return True
    if is_value or has(value.tree, "pm", "word", "money"):
        return match(value.tree, answer)
    if named is not None or answer.op != "rel":
        equal = match(value.tree, named.tree if named is not None else answer)
        if equal is not False:
            return equal
        renamed = in_argument_of(gold, answer)
        if renamed is not None and match(value.tree, renamed):
            return True
    return _same_curve(gold, answer)


def _same_curve(gold: Node, answer: Node) -> bool | None:
    """True if two equations of one sign each have the same solutions."""
    are_equations = answer.op == "rel" and len(answer.args) == len(gold.args) == 3 and answer.args[1] == "="
    if not are_equations or gold.args[0].op == "call":
        return False
    gold_side, answer_side = (numerator(difference(t.args[0], t.args[2])) for t in (gold, answer))
    return proportional(gold_side, answer_side, positive=False)


def _curves_of_signs(gold: Node, answer: Node) -> bool:
    """True if the equations that the signs ± stand for have the same curves: 3y = ±6x for y = ±2x."""
    if answer.op != "rel" or not has(answer, *SIGNS):
        return False
    return _unordered(expand_signs(gold), expand_signs(answer), _same_curve)


def _rounded_to(golds: Items, answer: Node) -> bool:
    """True if the answer rounds to one of the golds, such as 3.1 of x ≈ 3.1, whatever the digits of both."""
    value = value_of(answer)
    if value is None or not is_constant(value.tree):
        return False
    return any(explicitly_rounded(gold, value.tree) for gold in golds)
