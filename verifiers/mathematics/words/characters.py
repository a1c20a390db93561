"""The text of answers in one spelling: characters of Unicode as LaTeX, and chemical formulas."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

from verizero.verifiers.mathematics.words.vocabulary import in_order, meanings

COMMANDS = """
    times ×✕✖⨯  cdot ·⋅∙•  div ÷➗  pm ±  mp ∓  sqrt √  cbrt ∛  fourthroot ∜  infty ∞  le ≤⩽≦  ge ≥⩾≧  ne ≠
    approx ≈≃  cong ≅  equiv ≡  sim ∼  cup ∪⋃  cap ∩⋂  setminus ∖  in ∈  notin ∉  emptyset ∅⌀Ø  subset ⊂
    subseteq ⊆  land ∧  lor ∨  neg ¬  to →  implies ⇒⟹  iff ⇔⟺  therefore ∴  forall ∀  exists ∃  sum ∑  prod ∏
    int ∫  partial ∂  nabla ∇  lfloor ⌊  rfloor ⌋  lceil ⌈  rceil ⌉  langle ⟨〈  rangle ⟩〉  ldots …  cdots ⋯
    mid ∣  imath ı  ell ℓ  phi ϕ  epsilon ϵ  theta ϑ  mu µ  angle ∡∠  triangle △  perp ⊥  Omega Ω
    mathbb{R} ℝ  mathbb{Z} ℤ  mathbb{N} ℕ  mathbb{Q} ℚ  mathbb{C} ℂ
    Gamma Γ  Delta Δ  Theta Θ  Lambda Λ  Xi Ξ  Pi Π  Sigma Σ  Phi Φ  Psi Ψ
"""
"""Names of commands, each followed by the characters that it replaces."""
SIGNS = r"""
    - −‐‑‒–—﹣➖－  * ∗＊  / ∕⁄／  ' ′’‘  '' ″  " “”„«»「」  : ∶：  ; ；؛  , ，٬  . 。．｡٫۔।  ( （  ) ）  [ ［【  ] ］】
    \{ ｛  \} ｝  | ｜  \| ‖  \% ٪％﹪  ? ؟？  + ＋  = ＝  < ＜  > ＞  ^ ＾  \$ ＄  _ ＿  ! ！
    i ⅈ  e ⅇℯ  A Å  ¥ ￥  £ ￡
"""
"""Signs, each followed by the characters that it replaces."""
WITH_SPACE = dict.fromkeys("°º˚", r"^\circ ") | {"℃": r"^\circ C", "℉": r"^\circ F", "、": ", ", "،": ", "}
INVISIBLE = dict.fromkeys("▯\ufeff\u200b\u200c\u200d\u2060\u2061\u200e\u200f\u202a\u202b\u202c\u2066\u2067\u2069", "")
INVISIBLE |= {"\u2062": "*", "\u2063": ","} | dict.fromkeys("\u00a0\u202f\u2009\u2007\u2008\u200a", "~")
GREEK = in_order("""
    alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho varsigma sigma tau upsilon
    phi chi psi omega
""")
"""The letters from α to ω in the order of their code points, in which a final sigma precedes the other."""
SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱˣʸᵏᵐ", "0123456789+-=()nixykm", strict=True))
SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₙₓₖₘᵢⱼₐₑ", "0123456789+-=()nxkmijae", strict=True))
CJK_DIGITS = {c: i for i, c in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2, "兩": 2, "○": 0}
CJK_UNITS = {"十": 10, "百": 100, "千": 1_000}
CJK_GROUPS = {"万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}


def _by_character(table: str, form: str) -> dict[str, str]:
    words = in_order(table)
    return {c: form.format(by) for by, chars in zip(words[::2], words[1::2], strict=True) for c in chars}


# The space behind a command keeps it apart from a letter that follows: 2×y is 2\times y.
TABLE = str.maketrans(_by_character(SIGNS, "{}") | _by_character(COMMANDS, "\\{} ") | WITH_SPACE | INVISIBLE)
TABLE |= {ord("α") + i: rf"\{name} " for i, name in enumerate(GREEK)}
SUPER_RUN = re.compile(f"[{''.join(SUPERSCRIPTS)}]+")
SUB_RUN = re.compile(f"[{''.join(SUBSCRIPTS)}]+")
CJK_WORDS = meanings("""
    <=   小于或等于 小于等于 不大于 不超过
    >=   大于或等于 大于等于 不小于
    !=   不等于
    <    小于
    >    大于
    =    等于
    or   或者 或
    and  以及 并且 而且 且 和 与 及
""")
"""Signs and joining words of Chinese; the longer spelling comes first."""
CJK_WORD = re.compile("|".join(CJK_WORDS))
CJK = "".join([*CJK_DIGITS, *CJK_UNITS, *CJK_GROUPS])
PLAIN_DIGITS = r"\d+(?:(?:,|\{,\}|\\,)\d{3})*(?:\.\d+)?"
CJK_RUN = re.compile(rf"(?:(?<![\d.,])({PLAIN_DIGITS})\s?)?([{CJK}](?:\d|\.\d|[{CJK}])*)")
"""A Chinese numeral, with digits before its characters or among them: 三万, 3万, 3.1万, 1亿2000万."""
CJK_PART = re.compile(rf"[{CJK}]|{PLAIN_DIGITS}")
CJK_IN_TEXT = re.compile(rf"(?<=\d)\s*\\(?:text|mathrm)\s?\{{\s*([{''.join([*CJK_UNITS, *CJK_GROUPS])}]+)")
"""The characters behind digits that a style sets apart: 3\\text{万元}."""
CJK_FRACTION = re.compile(rf"([{CJK}]+|\d+)分之([{CJK}]+|\d+(?:\.\d+)?)")
ROOT_OVER_NUMBER = re.compile(r"([√∛∜])\s?(\d+(?:\.\d+)?|[A-Za-zα-ω](?![A-Za-z]))")
COMBINED_OVERLINE = re.compile("((?:\\d[\u0304\u0305])+)")
COMBINED_DOT = re.compile("(\\d)\u0307")
SLASHED = re.compile("[=∈]\u0338|<\u0338|>\u0338")


def ascii_latex(text: str) -> str:
    r"""Return `text` with characters outside ASCII replaced: `√2` -> `\sqrt{2}`, `x²` -> `x^{2}`, `½` -> `\frac{1}{2}`.

    Letters of other scripts are kept. Digits of every script become ASCII digits; so do full-width and styled letters.
    """
    if text.isascii():
        return text
    # Combining marks, roots and runs of small digits belong to their neighbours, so they precede the single characters.
    text = SLASHED.sub(r"\\ne ", text)
    text = COMBINED_OVERLINE.sub(lambda m: rf"\overline{{{re.sub('[^0-9]', '', m[1])}}}", text)
    text = COMBINED_DOT.sub(r"\\dot{\1}", text)
    text = ROOT_OVER_NUMBER.sub(r"\1{\2}", text)
    text = SUPER_RUN.sub(lambda m: f"^{{{''.join(SUPERSCRIPTS[c] for c in m[0])}}}", text)
    text = SUB_RUN.sub(lambda m: f"_{{{''.join(SUBSCRIPTS[c] for c in m[0])}}}", text)
    text = text.translate(TABLE)
    if text.isascii():
        return text
    text = "".join(_character(c) for c in text)
    text = CJK_FRACTION.sub(_cjk_fraction, unicodedata.normalize("NFKC", text).translate(TABLE))
    text = CJK_WORD.sub(lambda m: f" {CJK_WORDS[m[0]]} ", text)
    return CJK_RUN.sub(_cjk_number, CJK_IN_TEXT.sub(r"\1\\text{", text))


def _character(c: str) -> str:
    if c.isascii():
        return c
    digit = unicodedata.decimal(c, None)
    if digit is not None:
        return str(digit)
    expanded = unicodedata.normalize("NFKC", c)
    if "\u2044" in expanded:
        above, _, below = expanded.partition("\u2044")
        return rf"\frac{{{above}}}{{{below}}}" if below else c
    return c


def _cjk_fraction(fraction: re.Match[str]) -> str:
    """Return 三分之二 as two thirds, and 百分之二十 as twenty percent."""
    below, above = fraction[1], fraction[2]
    return rf"{above}\% " if below == "百" else rf"\frac{{{above}}}{{{below}}}"


def _cjk_number(run: re.Match[str]) -> str:
    """Return a Chinese numeral in digits, as written positionally (四二) or with units (四十二, 3万); else as it is."""
    before, text = run.string[: run.start()].rstrip()[-1:], run[2]
    if run[1] is None and all(c in CJK_DIGITS for c in text):
        return "".join(str(CJK_DIGITS[c]) for c in text)
    value = _cjk_value(CJK_PART.findall(run[0]))
    if value is None or (run[1] is None and (before.isdigit() or before in {".", ","})):
        return run[0]
    number = str(value) if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    # Behind a formula, \frac{1}{2}万, the unit multiplies.
    return rf"\times {number} " if run[1] is None and before and before in ")}" else number


def _cjk_value(parts: list[str]) -> Fraction | None:
    """Return the value of a numeral with units; None if its parts make no number, as in 三五万 or 3万5."""
    total = section = Fraction(0)
    digit: Fraction | None = None
    unit = smallest = 10**12
    for part in parts:
        if part in CJK_UNITS:
            if CJK_UNITS[part] >= unit:
                return None
            unit = smallest = CJK_UNITS[part]
            section += (1 if digit is None else digit) * unit  # 十 alone is ten
            digit = None
        elif part in CJK_GROUPS:
            smallest, section = CJK_GROUPS[part], section + (digit or 0) or Fraction(not total)
            total = (total + section) * smallest if 0 < total < smallest else total + section * smallest
            unit, section, digit = 10**12, Fraction(0), None
        elif digit:
            return None
        else:
            digit = Fraction(CJK_DIGITS[part]) if part in CJK_DIGITS else Fraction(re.sub(r"[^\d.]", "", part))
    # Of 3万5 nobody knows whether it is 35,000 or 30,005; 三万五 is no better.
    is_cut = digit is not None and (0 < digit < 10 < smallest < 10**12 or digit >= smallest) and parts[-2] not in "零〇"
    return None if is_cut else total + section + (digit or 0)


STYLE = re.compile(r"\\(?:ce|text|mathrm|textrm|mathsf|mbox|rm|left|right)(?![A-Za-z])|[{}\s~_$]|\\[,;:! ]")
ARROW = re.compile(r"\\(?:long|x)?(?:to|rightarrow)(?![a-z])|-+>")
BALANCE = re.compile(r"\\(?:rightleftharpoons|leftrightarrow|rightleftarrows)|<-*=?-*>")
CHARGE = re.compile(r"\^([+-])(\d)")
ELEMENT = r"(?:[A-Z][a-z]?|\((?:[A-Z][a-z]?\d*)+\)|\[(?:[A-Z][a-z]?\d*|\((?:[A-Z][a-z]?\d*)+\)\d*)+\])\d*"
SPECIES = rf"(?:\d{{0,3}}(?:\^\d+)?(?:{ELEMENT}){{1,20}}(?:\^\d?[+-])?(?:\((?:s|l|g|aq)\))?)"
SIDE = rf"{SPECIES}(?:\+{SPECIES}){{0,8}}"
REACTION = re.compile(rf"{SIDE}(?:[>=]{SIDE})?")
CERTAIN = re.compile(r"\\ce(?![A-Za-z])|\\(?:text|mathrm|textrm|rm)\b.*[_^]")
"""The marks of chemistry, where letters of elements are not names that are multiplied."""


def formula_of(text: str) -> str | None:
    """Return the formula without styles, braces and the marks of subscripts; None if the text is none."""
    if len(text) > 200 or not any(c.isupper() for c in text[:12]):
        return None
    bare = ARROW.sub(">", BALANCE.sub("=", STYLE.sub("", text)))
    bare = CHARGE.sub(r"^\2\1", bare)
    return bare if REACTION.fullmatch(bare) else None


def is_certain(text: str) -> bool:
    """True if a text that may be a formula of chemistry can be nothing else."""
    return CERTAIN.search(text) is not None and re.search(r"\d", text) is not None
