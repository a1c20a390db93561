"""Names on the left of an equals sign: which text is a name, and whether a value of one may answer for another."""

from __future__ import annotations

import re

from verizero.verifiers.mathematics.read.syntax_tree import Node, nodes, num, sym, variables
from verizero.verifiers.mathematics.words.nouns import stem
from verizero.verifiers.mathematics.words.tables import words_of

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
SEGMENT = re.compile(r"(?:overline|widebar|bar|overleftrightarrow|length) (?=[A-Z]{2})")
COMPOUND = re.compile(r"[ (^|=]|..")


def name_of(tree: Node) -> str | None:
    """Return the name that a left-hand side is: x, f(1), f^{-1}(x), (x, y), |AB|, dy/dx, words in quotes; else None."""
    if tree.op == "word":
        return f'"{tree.args[0].lower()}"'
    if tree.op == "sym":
        return _segment(SEGMENT.sub("", str(tree.args[0])))
    if tree.op == "call":
        inside = [_text(a) for a in tree.args[1:]]
        return str(tree.args[0]) if ARGUMENTS.issuperset(inside) else f"{tree.args[0]}({','.join(inside)})"
    if tree.op == "div":
        return _derivative(tree)
    if tree.op == "pow":
        name = _marked(tree)
        return name if name is not None and name[0].isupper() else None
    if tree.op == "abs" and all(n.op in {"sym", "mul"} for n in nodes(tree.args[0])):
        letters = "".join(sorted(variables(tree)))
        return letters if len(letters) == 2 and letters.isupper() else f"|{letters}|"
    if tree.op == "tuple" and all(a.op == "sym" for a in tree.args[2:]):
        return "(" + ",".join(a.args[0] for a in tree.args[2:]) + ")"
    if tree.op == "mul":
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
    if "angle" in letters[:2] and letters[0] in {"angle", "m"}:
        corner = "".join(letters[letters.index("angle") + 1 :])
        return f"angle {min(corner, corner[::-1])}"
    return _segment("".join(letters)) if "".join(letters).isupper() else None


def _marked(tree: Node) -> str | None:
    """Return the name of an inverse or a transpose, A^{-1} or A^T; None for another power."""
    base, mark = tree.args
    return f"{base.args[0]}^{mark.args[0]}" if base.op == "sym" and mark in (num(-1), sym("T")) else None


def _derivative(tree: Node) -> str | None:
    """Return the name y' of dy/dx; None if the quotient is no derivative."""
    if all(n.op == "mul" and len(n.args) == 2 and n.args[0] == sym("partial") for n in tree.args):
        return "_".join(str(n.args[1].args[0]) for n in tree.args)
    above, below = ("".join(a.args[0] for a in n.args if a.op == "sym") if n.op == "mul" else "" for n in tree.args)
    is_derivative = above[:1] == below[:1] == "d" and len(above) == len(below) == 2
    return f"{above[1]}'" if is_derivative else None


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
        return True
    if name.endswith("'") and other.endswith("'"):
        return names_agree(name[:-1], other[:-1])
    lone, longer = sorted((name, other), key=len)
    if len(lone) == 1 and COMPOUND.match(longer) and not _is_letter(longer):
        return lone.islower() or lone in longer
    return "y" in {name, other} and {name, other} <= FUNCTIONS


def _meaning(words: str) -> set[str]:
    return {stem(w) for w in re.findall(r"[^\W_]+", words)} - GENERAL


def _is_letter(name: str) -> bool:
    """True if the name is one letter, be it Greek, with a subscript, a prime or a mark."""
    return re.fullmatch(r"[A-Za-z]'*|[A-Za-z]+_.+|[a-z]+|\w+\^-?\w+", name, re.IGNORECASE) is not None
