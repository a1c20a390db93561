"""Text in any script as plain LaTeX in ASCII: digits, signs, superscripts, fractions, Greek, full-width forms."""

from __future__ import annotations

import re
import unicodedata

from verifiers.mathematics.words.tables import in_order

SIGNS = {
    "−": "-", "‐": "-", "‑": "-", "‒": "-", "–": "-", "—": "-", "﹣": "-", "➖": "-",
    "×": r"\times ", "✕": r"\times ", "✖": r"\times ", "⨯": r"\times ", "·": r"\cdot ",
    "⋅": r"\cdot ", "∙": r"\cdot ",
    "•": r"\cdot ", "∗": "*", "÷": r"\div ", "∕": "/", "⁄": "/", "➗": r"\div ",
    "±": r"\pm ", "∓": r"\mp ", "√": r"\sqrt ", "∛": r"\cbrt ", "∜": r"\fourthroot ",
    "∞": r"\infty ", "≤": r"\le ", "⩽": r"\le ", "≦": r"\le ", "≥": r"\ge ", "⩾": r"\ge ",
    "≧": r"\ge ", "≠": r"\ne ",
    "≈": r"\approx ", "≃": r"\approx ", "≅": r"\cong ", "≡": r"\equiv ", "∼": r"\sim ",
    "∪": r"\cup ", "⋃": r"\cup ", "∩": r"\cap ", "⋂": r"\cap ", "∖": r"\setminus ", "∈": r"\in ",
    "∉": r"\notin ",
    "∅": r"\emptyset ", "⌀": r"\emptyset ", "Ø": r"\emptyset ", "⊂": r"\subset ",
    "⊆": r"\subseteq ", "∧": r"\land ",
    "∨": r"\lor ", "¬": r"\neg ", "→": r"\to ", "⇒": r"\implies ", "⟹": r"\implies ",
    "⇔": r"\iff ", "⟺": r"\iff ",
    "∴": r"\therefore ", "∀": r"\forall ", "∃": r"\exists ", "∑": r"\sum ", "∏": r"\prod ", "∫": r"\int ",
    "∂": r"\partial ",
    "∇": r"\nabla ", "ℝ": r"\mathbb{R} ", "ℤ": r"\mathbb{Z} ", "ℕ": r"\mathbb{N} ", "ℚ": r"\mathbb{Q} ",
    "ℂ": r"\mathbb{C} ",
    "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "⟨": r"\langle ", "⟩": r"\rangle ",
    "〈": r"\langle ", "〉": r"\rangle ", "°": r"^\circ ", "º": r"^\circ ", "˚": r"^\circ ", "℃": r"^\circ C",
    "℉": r"^\circ F",
    "′": "'", "″": "''", "’": "'", "‘": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"',
    "「": '"', "」": '"',
    "…": r"\ldots ", "⋯": r"\cdots ", "∶": ":", "：": ":", "；": ";", "，": ",", "、": ", ", "。": ".",
    "．": ".", "｡": ".",
    "（": "(", "）": ")", "［": "[", "］": "]",
    "｛": r"\{", "｝": r"\}", "【": "[", "】": "]", "｜": "|", "∣": r"\mid ",
    "‖": r"\|",
    "٫": ".", "٬": ",", "،": ", ", "؛": ";", "٪": r"\%", "％": r"\%", "﹪": r"\%", "۔": ".",
    "।": ".", "؟": "?", "？": "?",
    "＋": "+", "－": "-", "＝": "=", "＜": "<", "＞": ">", "＾": "^", "＊": "*", "／": "/", "＄": r"\$",
    "＿": "_", "！": "!",
    "ı": r"\imath ", "ⅈ": "i", "ⅇ": "e", "ℯ": "e", "ℓ": r"\ell ", "ϕ": r"\phi ",
    "ϵ": r"\epsilon ", "ϑ": r"\theta ",
    "Ω": r"\Omega ", "µ": r"\mu ", "Å": "A", "∡": r"\angle ", "∠": r"\angle ", "△": r"\triangle ",
    "⊥": r"\perp ",
    "￥": "¥", "￡": "£", "▯": "", "\ufeff": "", "\u200b": "", "\u200c": "", "\u200d": "",
    "\u2060": "", "\u2061": "",
    "\u2062": "*", "\u2063": ",", "\u200e": "", "\u200f": "", "\u202a": "", "\u202b": "",
    "\u202c": "", "\u2066": "",
    "\u2067": "", "\u2069": "", "\u00a0": "~", "\u202f": "~", "\u2009": "~", "\u2007": "~", "\u2008": "~",
    "\u200a": "~",
}  # fmt: skip
GREEK = in_order("""
    alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho varsigma sigma tau upsilon
    phi chi psi omega
""")
"""The letters from α to ω in the order of their code points, in which a final sigma precedes the other."""
CAPITALS = dict(zip("ΓΔΘΛΞΠΣΦΨ", in_order("Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi"), strict=True))
SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱˣʸᵏᵐ", "0123456789+-=()nixykm", strict=True))
SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₙₓₖₘᵢⱼₐₑ", "0123456789+-=()nxkmijae", strict=True))
CJK_DIGITS = {c: i for i, c in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2, "兩": 2, "○": 0}
CJK_UNITS = {"十": 10, "百": 100, "千": 1_000}
CJK_GROUPS = {"万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}

TABLE = {ord(k): v for k, v in SIGNS.items()}
TABLE |= {ord("α") + i: rf"\{name} " for i, name in enumerate(GREEK)}
TABLE |= {ord(k): rf"\{v} " for k, v in CAPITALS.items()}
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
