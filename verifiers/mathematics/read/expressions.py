"""The grammar below relations and collections: sums, products, powers, names and single values."""

from __future__ import annotations

from verizero.verifiers.mathematics.read.cursor import (
    SEPARATING_WORDS,
    Cursor,
    as_name,
    corners,
    double_factorial,
    is_corner,
    is_whole,
    may_stand_before_number,
    quotient,
    starts_factor,
    subscript,
)
from verizero.verifiers.mathematics.read.lexer import Unreadable
from verizero.verifiers.mathematics.read.syntax_tree import (
    DOTS,
    IMAGINARY,
    E,
    Node,
    collected,
    has_vectors,
    neg,
    num,
    sym,
)
from verizero.verifiers.mathematics.words.vocabulary import ENGLISH, SCALES, SQUARED, UNITS, words_of

CURRENCIES = {"$": "dollar", "£": "£", "€": "euro", "¥": "yen", "₹": "rupee", "¢": "¢"}
CODES = words_of("USD EUR GBP JPY CNY INR Rs")
ORDINALS = words_of("st nd rd th")
STATING = words_of("< <= > >= = !=")
DERIVED = words_of("f g h y u v F")
MAX_SIGNS = 3


def sum_of(cursor: Cursor) -> Node:
    """Read a sum of products with their signs; a single product is returned as it is."""
    cursor.enter()
    terms = [_signed(cursor)]
    while (sign := cursor.take_op("+", "-", "±", "∓")) is not None:
        term = product(cursor) if not cursor.is_op("+", "-", "±") else _signed(cursor)
        terms.append(_with_sign(sign, term))
    cursor.leave()
    total = collected("add", terms)
    return over(cursor, total) if cursor.is_cmd("over", "choose") else total


def _signed(cursor: Cursor) -> Node:
    signs = []
    while (sign := cursor.take_op("+", "-", "±", "∓") or _sign_in_words(cursor)) is not None:
        signs.append(sign)
        if len(signs) > MAX_SIGNS:
            raise Unreadable("too_many_signs")
    term = product(cursor)
    for sign in reversed(signs):
        term = _with_sign(sign, term)
    return term


def _sign_in_words(cursor: Cursor) -> str | None:
    """Pass the word of "negative 3" and "minus 3" and return its sign; None for anything else."""
    token = cursor.peek()
    if token.kind == "word" and token.value.lower() in {"negative", "minus"} and cursor.peek(1).kind == "num":
        cursor.at += 1
        return "-"
    return None


def _with_sign(sign: str, term: Node) -> Node:
    return term if sign == "+" else neg(term) if sign == "-" else Node("pm" if sign == "±" else "mp", (term,))


def product(cursor: Cursor) -> Node:
    """Read factors with explicit or implied multiplication, and division, from the left."""
    whole = cursor.peek().whole
    left = power(cursor)
    first = True
    while True:
        if cursor.is_op("{") and cursor.peek(1).value == "}" and cursor.peek(1).kind == "op":
            cursor.at += 2  # an empty group, as in 5{}cm
        elif (sign := cursor.take_op("*", "×")) is not None:
            factor = _factor(cursor)
            is_cross = sign == "×" and has_vectors(left) and has_vectors(factor)
            left = Node("cross", (left, factor)) if is_cross else times(left, factor)
        elif cursor.take_op("/"):
            left = quotient(left, _below_slash(cursor))
        elif whole and first and (fraction := _mixed(cursor)) is not None:
            left = postfixed(cursor, Node("add", (left, fraction)))
        elif starts_factor(cursor):
            left = _juxtaposed(cursor, left)
        elif cursor.peek().kind == "num" and left.op == "mul" and _is_unit(left.args[-1]):
            return Node("add", (left, product(cursor)))  # 5 ft 3 in is a sum
        elif cursor.peek().kind == "num" and may_stand_before_number(cursor):
            left = times(left, power(cursor))
        else:
            return left
        first = False


def _is_unit(tree: Node) -> bool:
    return tree.op == "word" and tree.args[0] in UNITS


def times(left: Node, right: Node) -> Node:
    """Return the product; a product on the left takes the factor in."""
    return Node("mul", (*left.args, right)) if left.op == "mul" else Node("mul", (left, right))


def _factor(cursor: Cursor) -> Node:
    sign = cursor.take_op("+", "-", "±")
    factor = power(cursor)
    return factor if sign is None else _with_sign(sign, factor)


def _below_slash(cursor: Cursor) -> Node:
    """Read a divisor; letters without space between them are one: t/RC is t/(RC)."""
    below = _factor(cursor)
    if below == sym("partial"):
        below = times(below, _factor(cursor))
    while below.op in {"sym", "mul"} and cursor.peek().kind == "sym" and not cursor.peek().spaced:
        below = times(below, _factor(cursor))
    return below


def _mixed(cursor: Cursor) -> Node | None:
    """Pass the proper fraction of a mixed number and return it; None if what follows is no such fraction."""
    above, bar, below = cursor.peek(), cursor.peek(1), cursor.peek(2)
    if above.kind == "num" and above.whole and above.spaced and bar.kind == "op" and bar.value == "/" and below.whole:
        cursor.at += 3
        # 3 5/2 is neither a mixed number nor a product that anybody writes.
        if not 0 < above.value.args[0] < below.value.args[0]:
            raise Unreadable("improper_mixed_number")
        return Node("div", (above.value, below.value))
    if above.kind == "cmd" and above.value in {"frac", "dfrac", "tfrac", "cfrac"}:
        start = cursor.at
        fraction = primary(cursor)
        plain = fraction.op == "div" and all(a.op == "num" and isinstance(a.args[0], int) for a in fraction.args)
        if plain and 0 < fraction.args[0].args[0] < fraction.args[1].args[0]:
            return fraction
        cursor.at = start
    return None


def _juxtaposed(cursor: Cursor, left: Node) -> Node:
    """Read what follows `left` without a sign: percent, a scale such as million, an ordinal, or a factor."""
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
    """Read a value with the marks behind it: exponents, factorials, percent, degrees, primes."""
    cursor.enter()
    value = postfixed(cursor, primary(cursor))
    cursor.leave()
    return value


def postfixed(cursor: Cursor, base: Node) -> Node:
    """Read the marks that follow `base` and return `base` with them."""
    while True:
        if cursor.take_op("^"):
            base = _raised(cursor, base)
        elif cursor.take_op("!"):
            base = double_factorial(base) if cursor.take_op("!") else Node("fact", (base,))
        elif base.op == "pow" and base.args[0].op == "sym" and "_" not in base.args[0].args[0] and cursor.take_op("_"):
            base = Node("pow", (sym(f"{base.args[0].args[0]}_{subscript(cursor)}"), base.args[1]))  # x^2_1
        elif base.op != "percent" and cursor.take_op("%"):
            base = Node("percent", (base,))
        elif cursor.take_op("degree"):
            base = _degrees(cursor, base)
        elif cursor.is_op("¢", "$", "€", "£") and cursor.peek(1).kind in {"end", "word"}:
            base = Node("money", (CURRENCIES[cursor.take().value], base))
        elif cursor.is_op("'") and base.op in {"num", "dec"} and (length := _feet_and_inches(cursor, base)) is not None:
            base = length
        elif base.op == "sym" and cursor.take_op("'"):
            base = sym(f"{base.args[0]}'")
        else:
            return base


def _feet_and_inches(cursor: Cursor, value: Node) -> Node | None:
    """Return the length 5'10'' and pass it; None if the quote is something else."""
    inches = cursor.peek(1)
    if inches.kind != "num" or not cursor.peek(2).value == cursor.peek(3).value == "'":
        return None
    cursor.at += 4
    feet = times(value, Node("word", ("feet",)))
    return Node("add", (feet, times(inches.value, Node("word", ("inches",)))))


def _raised(cursor: Cursor, base: Node) -> Node:
    """Read what is raised behind `base`: degrees, an ordinal, a prime, a transpose, or an exponent."""
    bracketed = cursor.is_op("{")
    around = [cursor.peek(k).value for k in (0, 1, 3, 4)] if base.op == "sym" and base.args[0] in DERIVED else []
    if around == ["{", "(", ")", "}"]:
        order = cursor.peek(2)
        cursor.at += 5
        return sym(f"{base.args[0]}^({as_name(order)})")  # the n-th derivative f^{(n)}
    mark = cursor.peek(1 if bracketed else 0)
    raised: Node | None = None
    if not bracketed or cursor.peek(2).value == "}":
        length = 3 if bracketed else 1
        is_degree = mark.value == "o" and mark.kind in {"word", "sym"} and base.op in {"num", "dec"}
        if mark.value in {"circ", "degree"} or is_degree:
            cursor.at += length
            return _degrees(cursor, base)
        if mark.kind == "word" and mark.value in ORDINALS and base.op == "num":
            raised = base
        elif mark.value == "'" and base.op == "sym":
            raised = sym(f"{base.args[0]}'")
        elif mark.value == "T" and base.op in {"matrix", "tuple"}:
            raised = Node("transpose", (base,))
        if raised is not None:
            cursor.at += length
            return raised
    sign = cursor.take_op("+", "-")
    is_letter = cursor.peek().kind == "sym" and cursor.peek(1).value == "("  # of e^x(x + 1) the exponent is x
    exponent = sym(cursor.take().value) if is_letter else power(cursor)
    return Node("pow", (base, exponent if sign != "-" else neg(exponent)))


def _degrees(cursor: Cursor, value: Node) -> Node:
    """Return `value` in degrees, with minutes and seconds of arc if they follow."""
    terms = [value]
    for mark, parts in (("'", 60), ("''", 3600)):
        quotes = cursor.peek(1).value == "'" and (mark == "'" or cursor.peek(2).value == "'")
        if cursor.peek().kind == "num" and quotes:
            terms.append(Node("div", (cursor.peek().value, num(parts))))
            cursor.at += 1 + len(mark)
    return Node("deg", (collected("add", terms),))


def primary(cursor: Cursor) -> Node:
    """Read a single value: a number, name, function, group or collection. Raises: Unreadable if none comes next."""
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
    if token.kind == "op" and token.value == "dots":
        cursor.at += 1
        return DOTS
    bracket = cursor.bracketed(cursor)
    if bracket is None:
        raise Unreadable(f"a value was expected, found {token.value!r}")
    return bracket


def _symbol(cursor: Cursor) -> Node:
    """Read a letter with its subscript and primes: a constant, a binomial, a function of arguments, or a symbol."""
    name = str(cursor.take().value)
    if name in {"angle", "measuredangle", "triangle"} and is_corner(cursor.peek()):
        return corners(cursor, name)
    index = "_" + subscript(cursor) if cursor.take_op("_") else ""
    while cursor.is_op("'") and cursor.peek(1).value in {"(", "'"}:
        cursor.at += 1
        name += "'"
    if not index and name in {"e", "i"}:
        return E if name == "e" else IMAGINARY
    if name in {"C", "P"} and not index and cursor.is_op("("):
        # C(n, k) and P(5, 2) count; C(x, y) may be a point, and P(A, B) a probability.
        _, above, comma, below, closing = (cursor.peek(k) for k in range(5))
        if comma.value == "," and closing.value == ")":
            in_letters = name == "C" and above.value in {"n", "m", "N"} and below.kind in {"num", "sym"}
            if in_letters or above.kind == below.kind == "num":
                cursor.at += 5
                pair = tuple(t.value if t.kind == "num" else sym(t.value) for t in (above, below))
                return Node("binom" if name == "C" else "perm", pair)
    call = _call(cursor, name + index) if cursor.is_op("(") or (name == "E" and cursor.is_op("[")) else None
    return sym(name + index) if call is None else call


def _call(cursor: Cursor, name: str) -> Node | None:
    """Read f(0) and f(x + h), the value of an unknown function; None where the bracket is the factor of a product.

    Nobody writes the product of a letter with a lone letter or number in this way.
    """
    end = cursor.closing()
    inside = cursor.tokens[cursor.at + 1 : end]
    letters = [t for t in inside if t.kind in {"sym", "word"}]
    is_function = name.split("_")[0].rstrip("'") in cursor.functions or "'" in name or cursor.is_op("[")  # E[X]
    is_list = any(t.value in {",", ";"} for t in inside)
    is_left = cursor.tokens[end + 1].value in {"=", ":="} and all(
        t.kind in {"sym", "num"} or t.value == "," for t in inside
    )
    is_lone = not is_list and (not letters or len([t for t in inside if t.value != "-"]) == 1)
    is_statement = any(t.kind == "op" and t.value in STATING for t in inside)  # P(X > 2)
    if not (is_function or is_left or is_lone or is_statement):
        return None
    inner = primary(cursor)
    if name == "Gamma" and is_whole(inner):
        return Node("fact", (Node("add", (inner, num(-1))),))
    is_plain = inner.op != "tuple" or inner.args[:2] == ("(", ")")
    if not is_plain:
        return times(sym(name), inner)
    return Node("call", (name, *(inner.args[2:] if inner.op == "tuple" else (inner,))))


def _words(cursor: Cursor) -> Node:
    """Read a phrase: words up to a word that separates, or to one with an exponent of its own."""
    words = [str(cursor.take().value)]
    if words[0] in CODES and cursor.peek().kind == "num":
        return Node("money", (words[0], power(cursor)))
    is_name = cursor.at < 2 or cursor.tokens[cursor.at - 2].kind != "num"
    if is_name and cursor.take_op("_"):
        words[0] += "_" + subscript(cursor)
        if not cursor.is_op("("):
            return sym(words[0])
    if is_name and cursor.is_op("(") and words[0] not in UNITS and words[0].lower() not in ENGLISH:
        inner = primary(cursor)  # Poisson(3)
        is_list = inner.op == "tuple" and inner.args[:2] == ("(", ")")
        return Node("call", (words[0], *(inner.args[2:] if is_list else (inner,))))
    while cursor.peek().kind == "word" and cursor.peek(1).value != "^":
        is_square_inch = words[-1] in SQUARED and cursor.peek().value == "in"
        if str(cursor.peek().value).lower() in SEPARATING_WORDS and not is_square_inch:
            break
        words.append(str(cursor.take().value))
    return Node("word", (" ".join(words),))


def group(cursor: Cursor) -> Node:
    """Read the argument of a command: a group in braces, brackets of its own or a single token."""
    if cursor.take_op("{"):
        inner = sum_of(cursor)
        cursor.expect("}")
        return inner
    return primary(cursor)


def over(cursor: Cursor, above: Node) -> Node:
    r"""Return `above` divided by (\over) or choose (\choose) the sum that follows in the same group."""
    name = cursor.take().value
    return Node("div" if name == "over" else "binom", (above, sum_of(cursor)))
