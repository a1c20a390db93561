"""Nouns: behind numbers, those that only tell what is counted; and labels with a name, which name a value."""

from __future__ import annotations

import re

from verizero.verifiers.mathematics.words.vocabulary import meanings, words_of

NOUN_PHRASE = re.compile(r"[^\W\d_](?:[^\W\d_]|[' -]){0,60}")
# Words in many languages that multiply, deny or qualify a number, so that "42 million" is not 42 of something.
NOT_NOUNS = words_of("""
    not or and nor no maybe perhaps ish approximately approx about roughly around almost nearly plus minus times over
    less more fewer greater than is are was if unless except but wrong incorrect false true squared cubed factorial
    hundred thousand million billion trillion lakh crore dozen dozens score pairs pair percent half halves third thirds
    quarter quarters tens hundreds thousands millions billions tenths hundredths modulo mod base root square cube cubic
    power radians degrees to through between guess either sometimes exactly yes something else anything probably
    possibly likely versus vs equals equal divided by multiplied added unknown undefined infinity pi e i x y z negative
    positive inverse reciprocal opposite another other others of тысяч тысячи тысяча миллион миллиона миллионов млн тыс
    процентов процента процент milhões milhão 千 万 億 亿 百万 千万 万人
    प्रतिशत हज़ार लाख करोड़ ألف مليون بالمئة بالمائة
""")
COUNTED = words_of("""
    people men women children mice feet geese fish sheep deer dice person student apple orange way day hour minute
    second year month week mile meter metre unit inch foot point game book marble coin car dollar cent euro ticket egg
    cookie boy girl child man woman page member ball cup bag box card piece slice time trip step stamp flower tree cow
    dog cat chicken bird candy pizza pie integer solution value number digit side edge face vertex vertices factor
    divisor triangle rectangle permutation combination outcome path element degree term prime pencil pen toy team sweet
    bottle gallon liter litre pound ounce gram kilogram total altogether left remaining each
""")
LABELS = words_of("""
    answer ans total result solution area perimeter volume value sum product probability distance time cost price number
    length width height speed radius diameter angle average mean median mode difference remainder quotient ratio count
    minimum maximum there circumference profit age weight amount percentage range variance degree slope rate expression
    equation function polynomial formula measure coordinates answers solutions values roots fraction decimal inverse
    derivative integral limit interval set domain vertex center centre midpoint intersection determinant matrix vector
    magnitude norm eigenvalues discriminant intercept temperature mass force energy velocity acceleration pressure
    voltage current resistance power frequency wavelength density population score change discount tax balance salary
    income digit date sides side diagonal hypotenuse base exponent coefficient constant term terms factor factors
    quantity final
""")
"""Nouns that "The ... is" may name before a value."""
IRREGULAR = meanings("""
    person people
    man    men
    woman  women
    child  children
    foot   feet
    vertex vertices
    mouse  mice
""")


def stem(word: str) -> str:
    """Return a noun in the singular, roughly."""
    word = word.lower()
    if word in IRREGULAR:
        return IRREGULAR[word]
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "xes", "sses")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 3 else word


def only_counts(phrase: str) -> bool:
    """True if words behind a number only tell what is counted ("red marbles") and change nothing about the number."""
    phrase = phrase.lower().strip()
    of_what = phrase.partition(" of ")[2]
    if of_what and not NOT_NOUNS.intersection(of_what.split()) and len(of_what.split()) < 4:
        phrase = phrase.partition(" of ")[0]
    words = phrase.split()
    if not words or len(words) > 5 or NOUN_PHRASE.fullmatch(phrase) is None or NOT_NOUNS.intersection(words):
        return False
    # The counted noun is the last, but for "ways in total" and the like. Unknown nouns count in the plural only, as
    # "42 less" or "42 wrong" must not pass for a thing.
    head = words[-1] if "in" not in words[1:] else words[words.index("in", 1) - 1]
    return (
        head in COUNTED
        or not head.isascii()
        or (len(head) > 3 and head.endswith("s") and not head.endswith(("ss", "ous", "less")))
    )


SPACE = r"(?:\s|~|\\[,;:! ])*"
WORDS = (
    r"rank|rk|trace|[Tt]r|nullity|null|Var|Cov|Corr|SD|Res|ord|sgn|sign|dim|deg|det|Re|Im|[Aa]rea|[Vv]ol|[Vv]olume"
    r"|char|ind|index|arg|[Mm]ean|[Mm]edian|[Mm]ode|[Pp]rob"
)
OPERATOR = (
    rf"(?:\\(?:deg|det|dim|ker|arg|sup|inf|Re|Im|Pr|nabla)(?![A-Za-z])"
    rf"|\\(?:operatorname\*?|mathrm|text|mathbf|mathsf|rm)\s?\{{{SPACE}(?:{WORDS}){SPACE}\}}|\b(?:{WORDS})\b"
    rf"|(?:\\(?:mathbb|mathrm|text|operatorname)\s?\{{\s?[PEV]\s?\}}|\b[PEV])(?={SPACE}(?:\\left)?[(\[]))"
    r"(?:_\{[^{}]{1,15}\}|_[A-Za-z0-9])?"
)
ARGUMENT = (
    rf"{SPACE}(?:(?:\\left)?\((?:[^()]|\([^()]{{0,20}}\)){{1,40}}\)|(?:\\left)?\[[^\[\]]{{1,40}}\]"
    r"|[^=<>,;()\[\]&0-9]{0,25})"
)
# Every repetition is bounded, because a label is looked for in every answer with an equals sign.
LABEL = re.compile(
    rf"{SPACE}(?:{OPERATOR}{ARGUMENT}"
    r"|\\?(?:max|min)(?:_\{?[a-z]\}?)?\s[A-Za-z](?:\([a-z,]{1,9}\))?"
    r"|\\(?:sigma|chi)(?:_\{?[A-Za-z]\}?)?\^\{?2\}?"
    r"|(?:\\\||\\[lr]?Vert|\|\|)[^=|]{1,30}?(?:\\\||\\[lr]?Vert|\|\|)"
    r"|[^=<>,;]{1,30}?\\b?mod(?![A-Za-z])\s?\{?\d{1,6}\}?"
    r"|[fgh]\(\s?[fgh]\([^()=]{1,15}\)\s?\)"
    r"|\(\s?[fgh]\s?\\circ\s?[fgh]\s?\)\s?\([^()=]{1,15}\)"
    r"|[fgh]\^\{\s?-1\s?\}\(\s?-?\d[^()=]{0,10}\)"
    r"|\\[dt]?frac\{d\^\{?\d\}?\s?[a-z]\}\{d\s?[a-z]\^\{?\d\}?\}"
    r"|[A-Za-z]\^\{?(?:\*|\\ast|\\star)\}?"
    rf"){SPACE}=(?!=)"
)


ITEM = re.compile(r"[,;&]|\\\\|\\q?quad(?![A-Za-z])|\b(?:and|or)\b\s*\}?|\\begin\{[a-z]+\*?\}")
"""The labels that precede the items of a list."""
LOOKS = re.compile(r"\\(?:left|right|text|mathrm|mathbf|mathsf|mathbb|rm|operatorname)(?![A-Za-z])\*?|[\s\\{}()~]")


WORD = re.compile(r"[A-Za-z][a-z]{2,}")


def with_named_labels(text: str) -> str:
    r"""Return the text with the label of each item as a single name: `\named{PX=4} =` for `P(X = 4) =`."""
    parts, start = [], 0
    for begin in (0, *(m.end() for m in ITEM.finditer(text))):
        label = LABEL.match(text, begin) if begin >= start else None
        if label is not None and text[label.end() :].strip():
            name = LOOKS.sub("", label[0])[:-1]
            parts += [text[start:begin], rf" \text{{{name}}}=" if WORD.fullmatch(name) else rf" \named{{{name}}}="]
            start = label.end()
    return "".join([*parts, text[start:]])
