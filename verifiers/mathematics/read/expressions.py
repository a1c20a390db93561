"""Sums, products, powers, functions and single values: the part of the grammar below relations and collections."""

from __future__ import annotations

from verifiers.mathematics.read.cursor import Cursor
from verifiers.mathematics.read.lexer import Token, Unreadable
from verifiers.mathematics.read.syntax_tree import DOTS, IMAGINARY, E, Node, neg, num
from verifiers.mathematics.words.units import SCALES, SQUARED, UNITS

SEPARATING_WORDS = frozenset({"or", "and", "oder", "und", "is", "are", "in", "to", "mod"})
FACTOR_OPS = frozenset({"(", "[", "{", "lvert", "lfloor", "lceil", "$", "£", "€", "¥", "langle"})
STOPPING = frozenset({"pmod", "mod", "bmod", "pod", "over", "choose"})
CURRENCIES = {"$": "dollar", "£": "£", "€": "euro", "¥": "yen", "₹": "rupee", "¢": "¢"}
CODES = frozenset({"USD", "EUR", "GBP", "JPY", "CNY", "INR", "Rs"})
ORDINALS = frozenset({"st", "nd", "rd", "th"})


def sum_of(cursor: Cursor) -> Node:
    """A sum of products with their signs; one product alone is itself."""
    cursor.enter()
    terms = [_signed(cursor)]
    while (sign := cursor.take_op("+", "-", "±", "∓")) is not None:
        term = product(cursor) if not cursor.is_op("+", "-", "±") else _signed(cursor)
        terms.append(_with_sign(sign, term))
    cursor.leave()
    total = terms[0] if len(terms) == 1 else Node("add", tuple(terms))
    return over(cursor, total) if cursor.is_cmd("over", "choose") else total


def _signed(cursor: Cursor) -> Node:
    signs = []
    while (sign := cursor.take_op("+", "-", "±", "∓") or _sign_in_words(cursor)) is not None:
        signs.append(sign)
        if len(signs) > 3:
            raise Unreadable("too_many_signs")
    term = product(cursor)
    for sign in reversed(signs):
        term = _with_sign(sign, term)
    return term


def _sign_in_words(cursor: Cursor) -> str | None:
    """The sign that "negative 3" and "minus 3" start with, passed."""
    token = cursor.peek()
    if token.kind == "word" and token.value.lower() in {"negative", "minus"} and cursor.peek(1).kind == "num":
        cursor.at += 1
        return "-"
    return None


def _with_sign(sign: str, term: Node) -> Node:
    return term if sign == "+" else neg(term) if sign == "-" else Node("pm" if sign == "±" else "mp", (term,))


def product(cursor: Cursor) -> Node:
    """Factors with explicit or implied multiplication, and division, from the left."""
    whole = cursor.peek().whole
    left = power(cursor)
    first = True
    while True:
        if cursor.is_op("{") and cursor.peek(1).value == "}" and cursor.peek(1).kind == "op":
            cursor.at += 2
        elif cursor.take_op("*"):
            left = times(left, _factor(cursor))
        elif cursor.take_op("/"):
            left = Node("div", (left, _factor(cursor)))
        elif whole and first and (fraction := _mixed(cursor)) is not None:
            left = postfixed(cursor, Node("add", (left, fraction)))
        elif starts_factor(cursor):
            left = _juxtaposed(cursor, left)
        elif cursor.peek().kind == "num" and left.op == "mul" and _is_unit(left.args[-1]):
            return Node("add", (left, product(cursor)))
        elif cursor.peek().kind == "num" and _may_precede_number(cursor.tokens[cursor.at - 1]):
            left = times(left, power(cursor))
        else:
            return left
        first = False


def _may_precede_number(token: Token) -> bool:
    """Whether a number may follow without a sign: 50!50! and i4, but not x2."""
    return (token.kind == "op" and token.value == "!") or (token.kind == "sym" and token.value == "i")


def _is_unit(tree: Node) -> bool:
    return tree.op == "word" and tree.args[0] in UNITS


def times(left: Node, right: Node) -> Node:
    """The product; a product on the left takes the factor in."""
    return Node("mul", (*left.args, right)) if left.op == "mul" else Node("mul", (left, right))


def _factor(cursor: Cursor) -> Node:
    sign = cursor.take_op("+", "-", "±")
    factor = power(cursor)
    return factor if sign is None else _with_sign(sign, factor)


def _mixed(cursor: Cursor) -> Node | None:
    """The proper fraction of a mixed number, passed; None if what follows is not one."""
    one, two, three = cursor.peek(), cursor.peek(1), cursor.peek(2)
    if one.kind == "num" and one.whole and one.spaced and two.kind == "op" and two.value == "/" and three.whole:
        cursor.at += 3
        return _proper(one.value, three.value)
    if one.kind == "cmd" and one.value in {"frac", "dfrac", "tfrac", "cfrac"}:
        start = cursor.at
        fraction = primary(cursor)
        plain = fraction.op == "div" and all(a.op == "num" and isinstance(a.args[0], int) for a in fraction.args)
        if plain and 0 < fraction.args[0].args[0] < fraction.args[1].args[0]:
            return fraction
        cursor.at = start
    return None


def _proper(above: Node, below: Node) -> Node:
    if not 0 < above.args[0] < below.args[0]:
        raise Unreadable("improper_mixed_number")
    return Node("div", (above, below))


def starts_factor(cursor: Cursor) -> bool:
    """Whether the next token starts a factor that is multiplied without a sign."""
    token = cursor.peek()
    if token.kind == "word":
        return token.value.lower() not in SEPARATING_WORDS or _is_inches(cursor)
    if token.kind == "sym":
        before = cursor.tokens[cursor.at - 1].value
        return not (token.value == "U" and before in {")", "]"} and cursor.peek(1).value in {"(", "["})
    if token.kind == "cmd":
        return token.value not in STOPPING and not token.value.startswith("end ")
    if token.kind == "op":
        following = cursor.peek(1)
        if token.value == "(" and following.value in STOPPING:
            return False
        if token.value == "[" and (following.kind == "end" or following.value in {"cup", "cap", ",", ")", "]"}):
            return False
        return token.value in FACTOR_OPS or (token.value == "|" and not cursor.bars and not cursor.building)
    return False


def _is_inches(cursor: Cursor) -> bool:
    """Whether the word "in" that comes next is the unit, not "element of"."""
    following = cursor.peek(1)
    ends = following.kind == "end" or following.value in {"^", "}"}
    before = cursor.tokens[cursor.at - 1]
    is_value = before.kind in {"num", "cmd"} or before.value in {")", "}"}
    return ends and cursor.peek().value == "in" and is_value


def _juxtaposed(cursor: Cursor, left: Node) -> Node:
    token = cursor.peek()
    if token.kind == "word":
        word = token.value.lower()
        if word in {"percent", "pct"} or (word == "per" and cursor.peek(1).value in {"cent", "cents"}):
            cursor.at += 2 if word == "per" else 1
            return Node("percent", (left,))
        if word in SCALES:
            cursor.at += 1
            return times(left, num(SCALES[word]))
        if word in ORDINALS and left.op == "num":
            cursor.at += 1
            return left
    return times(left, power(cursor))


def power(cursor: Cursor) -> Node:
    """A value with what is written behind it: exponents, factorials, percent, degrees, primes."""
    cursor.enter()
    value = postfixed(cursor, primary(cursor))
    cursor.leave()
    return value


def postfixed(cursor: Cursor, base: Node) -> Node:
    """`base` with the marks that follow it."""
    while True:
        if cursor.take_op("^"):
            base = _raised(cursor, base)
        elif cursor.is_op("!") and cursor.peek(1).value != "!":
            cursor.at += 1
            base = Node("fact", (base,))
        elif base.op != "percent" and cursor.take_op("%"):
            base = Node("percent", (base,))
        elif cursor.take_op("degree"):
            base = _degrees(cursor, base)
        elif cursor.is_op("¢", "$", "€", "£") and cursor.peek(1).kind in {"end", "word"}:
            base = Node("money", (CURRENCIES[str(cursor.peek().value)], base))
            cursor.at += 1
        elif cursor.is_op("'") and base.op in {"num", "dec"} and (length := _feet_and_inches(cursor, base)) is not None:
            base = length
        elif cursor.is_op("'") and base.op == "sym":
            cursor.at += 1
            base = Node("sym", (f"{base.args[0]}'",))
        else:
            return base


def _feet_and_inches(cursor: Cursor, value: Node) -> Node | None:
    """The length 5'10''; None if the quote is something else."""
    following = cursor.peek(1)
    if following.kind != "num" or cursor.peek(2).value not in {"'", '"'}:
        return None
    cursor.at += 4 if cursor.peek(3).value == "'" else 3
    feet = times(value, Node("word", ("feet",)))
    return Node("add", (feet, times(following.value, Node("word", ("inches",)))))


def _raised(cursor: Cursor, base: Node) -> Node:
    bracketed = cursor.is_op("{")
    inner = cursor.peek(1 if bracketed else 0)
    closed = not bracketed or cursor.peek(2).value == "}"
    if inner.value in {"circ", "degree"} and closed:
        cursor.at += 3 if bracketed else 1
        return _degrees(cursor, base)
    if inner.kind in {"word", "sym"} and inner.value == "o" and closed and base.op in {"num", "dec"}:
        cursor.at += 3 if bracketed else 1
        return _degrees(cursor, base)
    if inner.kind == "word" and inner.value in ORDINALS and closed and base.op == "num":
        cursor.at += 3 if bracketed else 1
        return base
    if inner.value == "'" and closed and base.op == "sym":
        cursor.at += 3 if bracketed else 1
        return Node("sym", (f"{base.args[0]}'",))
    if inner.value in {"T", "top"} and closed and base.op in {"matrix", "tuple"}:
        cursor.at += 3 if bracketed else 1
        return Node("transpose", (base,))
    sign = cursor.take_op("+", "-")
    exponent = power(cursor)
    return Node("pow", (base, exponent if sign != "-" else neg(exponent)))


def _degrees(cursor: Cursor, value: Node) -> Node:
    """Degrees, with minutes and seconds of arc if they follow."""
    total: tuple[Node, ...] = (value,)
    for mark, parts in (("'", 60), ("''", 3600)):
        quotes = cursor.peek(1).value == "'" and (mark == "'" or cursor.peek(2).value == "'")
        if cursor.peek().kind == "num" and quotes:
            total = (*total, Node("div", (cursor.peek().value, num(parts))))
            cursor.at += 1 + len(mark)
    return Node("deg", (total[0] if len(total) == 1 else Node("add", total),))


def primary(cursor: Cursor) -> Node:
    """One value: a number, name, function, group or collection.

    Raises: Unreadable if nothing of the kind stands here.
    """
    token = cursor.peek()
    if token.kind == "num":
        cursor.at += 1
        value: Node = token.value
        return value
    if token.kind == "sym":
        return _symbol(cursor)
    if token.kind == "word":
        return _words(cursor)
    if token.kind == "op" and token.value in CURRENCIES:
        cursor.at += 1
        whole = cursor.peek().whole
        amount = power(cursor)
        fraction = _mixed(cursor) if whole else None
        return Node("money", (CURRENCIES[token.value], Node("add", (amount, fraction)) if fraction else amount))
    elif token.kind == "op" and token.value == "dots":
        cursor.at += 1
        return DOTS
    else:
        found = cursor.bracketed(cursor)
    if found is None:
        raise Unreadable(f"a value was expected, found {token.value!r}")
    return found


def _symbol(cursor: Cursor) -> Node:
    name = str(cursor.peek().value)
    cursor.at += 1
    subscript = ""
    if cursor.is_op("_"):
        cursor.at += 1
        subscript = "_" + _subscript(cursor)
    while cursor.is_op("'") and cursor.peek(1).value in {"(", "'"}:
        cursor.at += 1
        name += "'"
    if not subscript and name in {"e", "i"}:
        return E if name == "e" else IMAGINARY
    if name in {"C", "P"} and not subscript and cursor.is_op("("):
        two = [cursor.peek(k) for k in range(5)]
        chosen = name == "C" and two[1].value in {"n", "m", "N"} and two[3].kind in {"num", "sym"}
        if chosen and two[2].value == "," and two[4].value == ")":
            cursor.at += 5
            return Node("binom", tuple(t.value if t.kind == "num" else Node("sym", (t.value,)) for t in two[1:4:2]))
        if two[1].kind == "num" and two[2].value == "," and two[3].kind == "num" and two[4].value == ")":
            cursor.at += 5
            return Node("binom" if name == "C" else "perm", (two[1].value, two[3].value))
    if cursor.is_op("("):
        called = _call(cursor, name + subscript)
        if called is not None:
            return called
    return Node("sym", (name + subscript,))


def _subscript(cursor: Cursor) -> str:
    if not cursor.take_op("{"):
        token = cursor.peek()
        cursor.at += 1
        if token.kind not in {"num", "sym", "word"}:
            raise Unreadable("odd_subscript")
        return str(token.value.args[0] if token.kind == "num" else token.value)
    parts: list[str] = []
    while not cursor.take_op("}"):
        token = cursor.peek()
        cursor.at += 1
        if token.kind == "end" or len(parts) > 12:
            raise Unreadable("odd_subscript")
        parts.append(str(token.value.args[0] if token.kind == "num" else token.value))
    return "".join(parts)


def _call(cursor: Cursor, name: str) -> Node | None:
    """f(x) or f(x, y) where an equals sign follows: a name with its arguments, not a product."""
    ahead, names = 1, []
    while cursor.peek(ahead).kind in {"sym", "num"}:
        names.append(str(cursor.peek(ahead).value))
        ahead += 1
        if cursor.peek(ahead).value != ",":
            break
        ahead += 1
    if not names or cursor.peek(ahead).value != ")" or cursor.peek(ahead + 1).value not in {"=", ":="}:
        return None
    cursor.at += ahead + 1
    return Node("call", (name, *names))


def _words(cursor: Cursor) -> Node:
    words = [str(cursor.peek().value)]
    cursor.at += 1
    if words[0] in CODES and cursor.peek().kind == "num":
        return Node("money", (words[0], power(cursor)))
    while cursor.peek().kind == "word" and (
        str(cursor.peek().value).lower() not in SEPARATING_WORDS
        or (words[-1] in SQUARED and cursor.peek().value == "in")
    ):
        if cursor.peek(1).value == "^":
            break
        words.append(str(cursor.peek().value))
        cursor.at += 1
    return Node("word", (" ".join(words),))


def group(cursor: Cursor) -> Node:
    """The argument of a command: a group in braces, brackets of its own or one token."""
    if cursor.take_op("{"):
        inner = sum_of(cursor)
        cursor.expect("}")
        return inner
    return primary(cursor)


def over(cursor: Cursor, above: Node) -> Node:
    r"""`above` divided by (\over) or choose (\choose) what follows in the same group."""
    name = cursor.peek().value
    cursor.at += 1
    below = sum_of(cursor)
    return Node("div" if name == "over" else "binom", (above, below))
