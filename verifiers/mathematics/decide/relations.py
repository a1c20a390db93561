"""Relations with a direction, functions by branches, ratios and congruences."""

from __future__ import annotations

from collections.abc import Callable

from verizero.verifiers.mathematics.decide.equality import same
from verizero.verifiers.mathematics.decide.equation_chains import end_of, last, name_of
from verizero.verifiers.mathematics.decide.regions import FLIPPED
from verizero.verifiers.mathematics.read.syntax_tree import (
    COLLECTIONS,
    REALS,
    Node,
    collected,
    difference,
    expand_signs,
    has,
    nodes,
    num,
    substitute,
    variables,
    with_children,
)
from verizero.verifiers.mathematics.words.vocabulary import meanings, words_of

TURNED = FLIPPED | meanings("""
    subset           supset
    supset           subset
    subseteq         supseteq
    supseteq         subseteq
    ll               gg
    gg               ll
    trianglelefteq   trianglerighteq
    trianglerighteq  trianglelefteq
    perp             perp
    parallel         parallel
    cong             cong
    sim              sim
    iff              iff
""")
"""Each sign whose sides may change places, and the sign between them then."""
DIRECTED = words_of("implies -> propto") | TURNED.keys() - FLIPPED.keys()


def same_order(gold: Node, answer: Node, alike: Callable[[Node, Node], bool | None]) -> bool:
    """True if two chains such as a < b <= c have the same members and signs, in this or the reverse direction."""
    if answer.op != "rel" or len(answer.args) != len(gold.args):
        return False
    if (pairs := _corresponding(gold)) is not None:
        return gold.args[1] == answer.args[1] and pairs == _corresponding(answer)
    signs, members = answer.args[1::2], answer.args[::2]
    turned = tuple(TURNED.get(sign, "") for sign in reversed(signs))
    return any(
        gold.args[1::2] == order and all(alike(g, m) for g, m in zip(gold.args[::2], ordered, strict=True))
        for order, ordered in ((signs, members), (turned, members[::-1]))
    )


def _corresponding(tree: Node) -> set[frozenset[str]] | None:
    """Return the pairs of corners of two congruent or similar triangles; None for another statement."""
    names = [str(member.args[0]) for member in tree.args[::2]]
    if len(names) != 2 or tree.args[1] not in {"cong", "sim"} or any(n[:9] != "triangle " for n in names):
        return None
    return {frozenset((f"{a}1", f"{b}2")) for a, b in zip(names[0][9:], names[1][9:], strict=False)}


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


def same_named_ratio(gold: Node, answer: Node) -> bool | None:
    """True if the answer is the ratio at the end of a:b:c = 3:4:5, or gives each of these names the same share."""
    names, _, shares = gold.args
    if answer.op != "rel" or answer.args[0].op != "ratio" or answer.args[-1].op != "ratio":
        return same_ratio(shares, answer)
    share_of = dict(zip(answer.args[0].args, answer.args[-1].args, strict=False))
    if share_of.keys() != set(names.args) or len(answer.args[-1].args) != len(names.args):
        return False
    return same_ratio(shares, Node("ratio", tuple(share_of[name] for name in names.args)))


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
