"""The grammar of whole answers: lists, relations, unions, ratios and congruences; brackets, sets and matrices."""

from __future__ import annotations

import re
from collections.abc import Callable

from verizero.verifiers.mathematics.read.cursor import Cursor, bare, function_letters, quotient, starts_factor
from verizero.verifiers.mathematics.read.expressions import group, power, primary, sum_of, times
from verizero.verifiers.mathematics.read.lexer import Token, Unreadable, tokens
from verizero.verifiers.mathematics.read.syntax_tree import (
    EMPTY,
    IMAGINARY,
    PROPOSITIONAL,
    E,
    Node,
    collected,
    has,
    has_word,
    is_constant,
    neg,
    nodes,
    num,
    sym,
    variables,
)
from verizero.verifiers.mathematics.words.nouns import LABELS
from verizero.verifiers.mathematics.words.vocabulary import (
    CONSTANTS,
    HYPERBOLIC,
    INVERSE,
    NAMED,
    TRIGONOMETRIC,
    UNDONE,
    meanings,
    words_of,
)

ALIASES = INVERSE | meanings("""
    tan   tg
    cot   ctg
    csc   cosec
    asinh arcsinh arsinh
    acosh arccosh arcosh
    atanh arctanh artanh
""")
COMPLEX = words_of("Re Im arg")
OPENING, CLOSING = words_of("( [ { set{"), words_of(") ] } set}")
BOUND = re.compile(r"^\w+ _ \{ (\S+) (?:=|->|in|≡|<|<=|>|>=) ")
INTEGRALS = ("int ", "iint ", "oint ")
DIFFERENTIAL = re.compile(r" d (\S+)$")
UNDONE_ENDS = words_of("= , ; ≈ < >")


def _pair(joined: Callable[[Node, Node], Node]) -> Callable[[Cursor], Node]:
    """Return a reader of a command with two arguments, of which `joined` makes a node."""
    return lambda cursor: joined(group(cursor), group(cursor))


def _root(cursor: Cursor) -> Node:
    degree = num(2)
    if cursor.take_op("["):
        degree = sum_of(cursor)
        cursor.expect("]")
    return Node("root", (group(cursor), degree))


def _undone(cursor: Cursor, *before: str) -> Node:
    """Read an integral, sum, product or limit with all that belongs to it, as written: it is not evaluated.

    A name that it binds is renamed: the sum over i of a_i is the sum over k of a_k.
    """
    parts = [Token("cmd", name, False) for name in before]
    depth = 0
    while cursor.peek().kind != "end":
        value = cursor.peek().value
        closes = value in CLOSING
        if depth == 0 and (closes or value in UNDONE_ENDS):
            break
        depth += (value in OPENING) - closes
        parts.append(cursor.take())
    marks = bare(parts)
    bound = BOUND.search(marks)
    if bound is None and "_" in marks[:12] and marks.startswith(INTEGRALS):
        bound = DIFFERENTIAL.search(marks)
    if bound is not None:
        marks = re.sub(rf"(?<=\s){re.escape(bound[1])}(?=\s|$)", "#", marks)
    return Node("undone", (marks,))


def _function(cursor: Cursor, name: str) -> Node:
    """Read the base, exponent and argument of the function `name`."""
    base = exponent = None
    if name in {"max", "min"} and cursor.is_op("_"):
        return _undone(cursor, name)
    for _ in range(2):
        if cursor.take_op("_"):
            base = group(cursor)
        elif cursor.take_op("^"):
            exponent = neg(group(cursor)) if cursor.take_op("-") else group(cursor)
    kind = ALIASES.get(name, name)
    # sin^{-1} is the inverse function, while sin^2 is a power of the value.
    if exponent == num(-1) and (kind in TRIGONOMETRIC or kind in HYPERBOLIC):
        kind, exponent = f"a{kind}", None
    if kind in {"max", "min", "gcd", "lcm"}:
        inner = primary(cursor)
        if exponent is not None or inner.op not in {"tuple", "set"}:
            return Node("call", (kind, inner)) if exponent is None else Node("call", (kind, exponent, inner))
        return Node("fn", (kind, *(inner.args[2:] if inner.op == "tuple" else inner.args)))
    value = _applied(kind, _function_argument(cursor), base)
    return value if exponent is None else Node("pow", (value, exponent))


def _applied(kind: str, argument: Node, base: Node | None) -> Node:
    if kind == "exp":
        return Node("pow", (E, argument))
    if kind in COMPLEX and variables(argument):
        return Node("call", (kind, argument))  # at real values of z, Re(z) would be z
    if kind == "cis":
        return Node("add", (Node("fn", ("cos", argument)), Node("mul", (IMAGINARY, Node("fn", ("sin", argument))))))
    if base is not None and kind not in {"log", "lg"}:
        raise Unreadable(f"a subscript of {kind}")
    if kind in {"log", "lg"}:
        return Node("fn", ("log", argument, base if base is not None else num(10)))
    return Node("fn", (kind, argument))


def _function_argument(cursor: Cursor) -> Node:
    """Read an argument without brackets: sin 2x cos x is sin(2x) cos(x), and sin x (y + 1) is sin(x) (y + 1)."""
    if cursor.is_op("(", "[", "{", "|", "lvert"):
        return primary(cursor)
    sign = cursor.take_op("-", "+")
    argument = power(cursor)
    while starts_factor(cursor) and not cursor.is_op("(", "["):
        token = cursor.peek()
        if token.kind == "word" or (token.kind == "cmd" and (token.value in NAMED or token.value in UNDONE)):
            break
        argument = times(argument, power(cursor))
    return neg(argument) if sign == "-" else argument


def command(cursor: Cursor) -> Node:
    """Read the value that a command starts. Raises: Unreadable if the command starts no value."""
    name = str(cursor.peek().value)
    if name in UNDONE:
        return _undone(cursor)
    cursor.at += 1
    if name in CONSTANTS:
        return Node("const", (CONSTANTS[name],))
    if name.startswith("mathbb"):
        return Node("const", (name[6:7],)) if name[6:] in {"R", "Z", "N", "Q", "C"} else sym(name)
    # "5 sec" and "10 min 30" are times, "min = 3" is a name, and the rest are functions.
    if name in {"sec", "min"} and cursor.peek().kind in {"end", "num"} and cursor.at > 1:
        return Node("word", (name,))
    if name in {"min", "max"} and cursor.is_op("="):
        return Node("word", (name,))
    if name in NAMED:
        return _function(cursor, name)
    if name not in STRUCTURES:
        raise Unreadable(f"\\{name} starts no value")
    return STRUCTURES[name](cursor)


STRUCTURES: dict[str, Callable[[Cursor], Node]] = {
    **dict.fromkeys(words_of("frac dfrac tfrac cfrac nicefrac sfrac"), _pair(quotient)),
    **dict.fromkeys(words_of("binom dbinom tbinom"), _pair(lambda above, below: Node("binom", (above, below)))),
    "sqrt": _root,
    "cbrt": lambda cursor: Node("root", (group(cursor), num(3))),
    "fourthroot": lambda cursor: Node("root", (group(cursor), num(4))),
    "det": lambda cursor: Node("det", (group(cursor),)),
}


RELATIONS = {"==": "=", ":=": "=", "=>": ">="} | {
    sign: sign
    for sign in words_of("""
        = < <= > >= != ≈ ≡ in notin -> subset subseteq supset supseteq perp parallel cong sim ll gg propto
        trianglelefteq trianglerighteq
    """)
}
JOINERS = {"or": "or", "and": "and", "oder": "or", "und": "and"}
SET_OPERATIONS = {"cup": "union", "cap": "inter", "setminus": "minus"}
SAYING = words_of("is are equals")
AFTER_SAYING = words_of("at exactly just simply precisely")
NOT_LABELS = words_of("that which not if unless or")
NEGATIONS = words_of("not either neither never about between")
MODULUS = words_of("pmod mod bmod pod")
CELL_WORDS = dict.fromkeys(words_of("if for when where whenever 若 当"), "&") | {"and": ",", "or": "or"}
"""Words in the lines of an environment, as the signs that they stand for."""
MATRICES = words_of("""
    matrix pmatrix bmatrix Bmatrix vmatrix Vmatrix smallmatrix psmallmatrix bsmallmatrix array tabular
""")
CLOSES = {"(": (")", "]"), "[": ("]", ")", "["), "]": ("[", "]"), "langle": ("rangle",), "{": ("}",), "set{": ("set}",)}
MAX_ITEMS = 200
MAX_LABEL = 12


def parse(text: str) -> Node:
    """Return the tree of an answer in plain LaTeX. Raises: Unreadable if it is none, or too long or deep."""
    read = tokens(text)
    cursor = Cursor(read, bracketed, function_letters(read) if "(" in text else frozenset())
    if cursor.peek().kind == "end":
        raise Unreadable("empty")
    tree = _answer(cursor)
    if cursor.peek().kind != "end":
        raise Unreadable(f"unexpected {cursor.peek().value!r}")
    return tree


def _answer(cursor: Cursor) -> Node:
    items = [_statement(cursor)]
    joined_by = ","
    while (joiner := _joiner(cursor)) is not None:
        joined_by = joiner if joined_by == "," else joined_by
        if cursor.peek().kind == "end":
            break
        items.append(_statement(cursor))
        if len(items) > MAX_ITEMS:
            raise Unreadable("too_many_items")
    # In "1, 3 mod 8" the modulus belongs to every item.
    if len(items) > 1 and items[-1].op == "mod" and not any(i.op == "mod" for i in items[:-1]):
        items = [*(_congruent(i, items[-1].args[1]) for i in items[:-1]), items[-1]]
    return collected({"or": "either", "and": "both"}.get(joined_by, "list"), items)


def _joiner(cursor: Cursor) -> str | None:
    """Pass all that joins this item to the next and return a comma, or, and; None if nothing does."""
    joiner = None
    while True:
        token = cursor.peek()
        if token.kind == "op" and token.value in {",", ";", "\\\\", "or", "and", "&"}:
            joiner = str(token.value) if token.value in {"or", "and"} else joiner or ","
        elif token.kind == "word" and token.value.lower() in JOINERS:
            joiner = JOINERS[token.value.lower()]
        else:
            return joiner
        cursor.at += 1


def _items(cursor: Cursor) -> list[Node]:
    """Read the items of a bracket or set, separated by commas or semicolons."""
    items = [_statement(cursor)]
    while cursor.take_op(",", ";"):
        items.append(_statement(cursor))
        if len(items) > MAX_ITEMS:
            raise Unreadable("too_many_items")
    return items


def _statement(cursor: Cursor) -> Node:
    """Read a chain of relations, a ratio, a congruence or an expression; behind an arrow only the last of them."""
    label = _label(cursor)
    cursor.take_op("therefore")
    cursor.take_op("=", "->", "≡")
    # The sign of "≈ 3.1" says that the value is rounded, so that a chain with an empty left side keeps it.
    chain: list[Node | str] = [] if label is None else [label, "="]
    if cursor.take_op("≈"):
        chain += [Node("word", ("",)), "≈"]
    chain.append(_region(cursor))
    while (sign := _relation_sign(cursor)) is not None:
        chain += [sign, _region(cursor)]
    tree = collected("rel", chain)
    modulus = _modulus(cursor)
    if modulus is not None:
        tree = _congruent(tree, modulus)
    if (arrow := cursor.take_op("implies", "iff", "therefore")) and cursor.peek().kind != "end":
        reached = _statement(cursor)
        if arrow != "therefore" and all(n.op in PROPOSITIONAL for t in (tree, reached) for n in nodes(t)):
            return Node("rel", (tree, arrow, reached))  # elsewhere an arrow leads to the value behind it
        # Between two numbers an arrow is an equals sign, and 43 => 42 contradicts itself.
        return Node("rel", (tree, "=", reached)) if is_constant(tree) and is_constant(reached) else reached
    return tree


def _relation_sign(cursor: Cursor) -> str | None:
    token = cursor.peek()
    if token.kind == "op" and token.value in RELATIONS:
        cursor.at += 1
        if token.value in {"<", ">"} and cursor.take_op("="):
            return f"{token.value}="
        return RELATIONS[token.value]
    if token.kind == "word" and token.value == "in" and cursor.peek(1).kind != "end":
        cursor.at += 1
        return "in"
    return None


def _label(cursor: Cursor) -> Node | None:
    """Pass words before the value that only name it ("The area is", "Total:"); None if there are none."""
    at, words = 0, []
    while cursor.peek(at).kind in {"word", "sym"} and at < MAX_LABEL:
        word = str(cursor.peek(at).value)
        following = cursor.peek(at + 1)
        words.append(word)
        if word.lower() in NOT_LABELS:
            return None
        names = LABELS.intersection(w.lower() for w in words)
        says = word.lower() in SAYING and following.kind != "end"
        if says and names and str(following.value).lower() not in NEGATIONS:
            cursor.at += at + 2 if following.value == ":" else at + 1
            while cursor.peek().kind == "word" and str(cursor.peek().value).lower() in AFTER_SAYING:
                cursor.at += 1
            return Node("word", (" ".join(words),))
        if following.value == ":" and following.kind == "op" and names:
            cursor.at += at + 2
            return Node("word", (" ".join(words),))
        at += 1
    return None


def _region(cursor: Cursor) -> Node:
    """Read sets joined by union, intersection and difference, or a ratio, or an expression."""
    left = sum_of(cursor)
    while True:
        sign = cursor.take_op(*SET_OPERATIONS)
        token = cursor.peek()
        if sign is None and token.kind == "sym" and token.value == "U":
            cursor.at += 1
            sign = "cup"
        if sign is None:
            break
        left = Node(SET_OPERATIONS[sign], (left, sum_of(cursor)))
    if cursor.is_op(":") and not cursor.building:
        parts = [left]
        while cursor.take_op(":"):
            parts.append(sum_of(cursor))
        return Node("ratio", tuple(parts))
    return left


def _modulus(cursor: Cursor) -> Node | None:
    """Pass the modulus behind a congruence, in any of its spellings, and return it; None if there is none."""
    bracket = cursor.is_op("(") and cursor.peek(1).value in MODULUS
    token = cursor.peek(1) if bracket else cursor.peek()
    if token.kind not in {"cmd", "word"} or token.value not in MODULUS:
        return None
    cursor.at += 2 if bracket else 1
    modulus = sum_of(cursor)
    if bracket:
        cursor.expect(")")
    return modulus


def _congruent(tree: Node, modulus: Node) -> Node:
    """Return the congruence: its last member modulo `modulus`, with its left side unless that is only a name."""
    if tree.op != "rel":
        return Node("mod", (tree, modulus))
    if set(tree.args[1::2]) - {"=", "≡", "in"}:
        raise Unreadable("a modulus behind no congruence")
    left, value = tree.args[0], tree.args[-1]
    if has_word(left, NEGATIONS):
        raise Unreadable("a congruence denied")
    named = left.op in {"sym", "call"} or has(left, "word") or is_constant(left)
    return Node("mod", (value, modulus) if named else (value, modulus, left))


def bracketed(cursor: Cursor) -> Node | None:
    """Read the group, tuple, interval, set, matrix, absolute value or floor that comes next; None if none does."""
    token = cursor.peek()
    if token.kind == "cmd":
        return _environment(cursor) if token.value.startswith("begin ") else command(cursor)
    if token.kind != "op":
        return None
    opening = token.value
    if opening == "¬":
        cursor.at += 1
        return Node("call", ("not", power(cursor)))
    if opening in {"|", "lvert"}:
        return _absolute(cursor, opening)
    if opening in {"lfloor", "lceil"}:
        cursor.at += 1
        inner = sum_of(cursor)
        cursor.expect("rfloor" if opening == "lfloor" else "rceil")
        return Node("floor" if opening == "lfloor" else "ceil", (inner,))
    if opening == "<" and cursor.peek(1).kind in {"num", "sym", "op"}:
        cursor.at += 1
        items = [sum_of(cursor)]
        while cursor.take_op(","):
            items.append(sum_of(cursor))
        cursor.expect(">")
        return Node("tuple", ("(", ")", *items))
    if opening not in CLOSES:
        return None
    cursor.at += 1
    cursor.enter()
    # The bars and conditions of what is outside end at the bracket: |(|x|)| nests, and {x | f(a|b)} has one condition.
    bars, building = cursor.bars, cursor.building
    tree = _set(cursor, opening) if opening in {"{", "set{"} else _bracket(cursor, opening)
    cursor.bars, cursor.building = bars, building
    cursor.leave()
    return tree


def _absolute(cursor: Cursor, opening: str) -> Node:
    cursor.at += 1
    cursor.bars += opening == "|"
    cursor.enter()
    inner = sum_of(cursor)
    cursor.leave()
    cursor.bars -= opening == "|"
    cursor.expect("|" if opening == "|" else "rvert")
    return Node("det" if inner.op == "matrix" else "abs", (inner,))


def _bracket(cursor: Cursor, opening: str) -> Node:
    """Read a tuple or an interval behind its opening bracket, or the value in a plain bracket."""
    cursor.bars = cursor.building = 0
    items = _items(cursor)
    closing = cursor.expect(*CLOSES[opening])
    if len(items) == 1 and opening != "]":
        if {opening, closing} in ({"(", "]"}, {"[", ")"}):
            raise Unreadable(f"a bracket {opening} that {closing} closes")
        return items[0]
    # ]1,2[ is the open interval (1,2) in the notation of France and Germany.
    if opening == "]" or closing == "[":
        opening, closing = ("(" if opening == "]" else "["), (")" if closing == "[" else "]")
    if opening == "langle":
        opening, closing = "(", ")"
    if opening == "[" and closing == "]" and all(i.op == "tuple" and i.args[:2] == ("[", "]") for i in items):
        return _matrix([list(i.args[2:]) for i in items])  # [[1,2],[3,4]]
    return Node("tuple", (opening, closing, *items))


def _matrix(rows: list[list[Node]]) -> Node:
    return Node("matrix", tuple(Node("tuple", ("(", ")", *row)) for row in rows))


def _set(cursor: Cursor, opening: str) -> Node:
    """Read a set by its items or its condition; a plain group in braces is what it holds."""
    closing = CLOSES[opening][0]
    if cursor.take_op(closing):
        if opening == "{" and cursor.peek().kind != "end":
            raise Unreadable("empty_group")
        return EMPTY
    cursor.bars, cursor.building = 0, 1
    items = _items(cursor)
    if len(items) == 1 and cursor.take_op("|", ":"):
        cursor.building = 0
        conditions = [_statement(cursor)]
        while _joiner(cursor) is not None:
            conditions.append(_statement(cursor))
        cursor.expect(closing)
        return Node("builder", (items[0], collected("list", conditions)))
    cursor.expect(closing)
    return items[0] if opening == "{" and len(items) == 1 else Node("set", tuple(items))


def _environment(cursor: Cursor) -> Node:
    """Read what \\begin starts: a matrix, the lines of a list, system or derivation, or the branches of a function."""
    name = str(cursor.take().value).removeprefix("begin ")
    _part_conditions(cursor, name)
    rows: list[list[Node]] = [[]]
    cursor.enter()
    while not cursor.is_cmd(f"end {name}"):
        if cursor.take_op("\\\\"):
            rows.append([])
        elif cursor.take_op("or") and rows[-1]:
            rows[-1][-1] = Node("either", (rows[-1][-1], _cell(cursor)))
        elif cursor.take_op("&", ",", ";", "and") is None:
            rows[-1].append(_cell(cursor))
        if cursor.peek().kind == "end" or sum(map(len, rows)) > MAX_ITEMS:
            raise Unreadable("unclosed_environment")
    cursor.leave()
    cursor.at += 1
    rows = [row for row in rows if row]
    if not rows:
        raise Unreadable("empty_environment")
    if all(len(row) > 1 and row[0].op != "rel" and all(has(c, "rel", "word") for c in row[1:]) for row in rows):
        return Node("piecewise", tuple(Node("branch", (row[0], collected("both", row[1:]))) for row in rows))
    # Cells with relation signs are equations, whatever the environment is called.
    if name not in MATRICES or any(c.op == "rel" for row in rows for c in row):
        return collected("list", (c for row in rows for c in row))
    if name in {"array", "matrix", "tabular"} and len(rows) == len(rows[0]) == 1:
        return rows[0][0]
    return Node("det", (_matrix(rows),)) if name == "vmatrix" else _matrix(rows)


def _part_conditions(cursor: Cursor, name: str) -> None:
    """Put a mark between cells in the place of "if" up to the end of the environment, and leave "is" out."""
    start = end = cursor.at
    while cursor.tokens[end].kind != "end" and cursor.tokens[end].value != f"end {name}":
        end += 1
    row = [t._replace(value=t.value.lower()) if t.kind == "word" else t for t in cursor.tokens[start:end]]
    parted = [
        Token("op", CELL_WORDS[t.value], t.spaced) if t.kind == "word" and t.value in CELL_WORDS else t for t in row
    ]
    cursor.tokens[start:end] = [t for t in parted if t.kind != "word" or t.value not in SAYING]


def _cell(cursor: Cursor) -> Node:
    """Read a cell; an alignment mark before a relation sign is passed: `x &= 1`."""
    chain: list[Node | str] = [sum_of(cursor)]
    while True:
        if cursor.is_op("&") and cursor.peek(1).kind == "op" and cursor.peek(1).value in RELATIONS:
            cursor.at += 1
        sign = _relation_sign(cursor)
        if sign is None:
            modulus = _modulus(cursor)
            tree = collected("rel", chain)
            return tree if modulus is None else _congruent(tree, modulus)
        cursor.take_op("&")
        chain += [sign, sum_of(cursor)]
