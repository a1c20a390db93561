"""Text in any script as plain LaTeX in ASCII: digits, signs, superscripts, fractions, Greek, full-width forms."""

from __future__ import annotations

import re
import unicodedata

from verifiers.mathematics.words.tables import in_order

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
CJK_RUN = re.compile(f"[{''.join(CJK_DIGITS)}{''.join(CJK_UNITS)}{''.join(CJK_GROUPS)}]+")
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
    return CJK_RUN.sub(_cjk_number, unicodedata.normalize("NFKC", text).translate(TABLE))


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


def _cjk_number(run: re.Match[str]) -> str:
    """Return a Chinese numeral in digits, as written positionally (四二) or with units (四十二)."""
    text = run[0]
    if all(c in CJK_DIGITS for c in text):
        return "".join(str(CJK_DIGITS[c]) for c in text)
    total = section = digit = 0
    for c in text:
        if c in CJK_DIGITS:
            digit = CJK_DIGITS[c]
        elif c in CJK_UNITS:
            section += (digit or 1) * CJK_UNITS[c]  # 十 alone is ten
            digit = 0
        else:
            total += ((section + digit) or 1) * CJK_GROUPS[c]
            section = digit = 0
    return str(total + section + digit)
