"""Find answers in prose: after words such as "the answer is", or in the concluding sentence."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from verizero.verifiers.answer import hedges
from verizero.verifiers.answer.parts import MAX_TAIL, Answer, is_other_language
from verizero.verifiers.answer.words import (
    CLAUSE,
    CONCLUDES,
    CORRECT_CHOICE,
    CUE,
    DENIES,
    ENDS_OPEN,
    FILLER,
    GIVING_UP,
    NO_CONCLUSION,
    OPENING,
    REASON,
    STATES,
    UNFINISHED,
    VERB_ENDING,
)

SENTENCE_END = re.compile(r"(?<=[^\d\s])[.!?]\**(?=\s)|(?<=\d)[.!?]\**(?=\s+[A-Z\\$*]|\s*\n)|[。！？؟।](?=.)|\n\s*\n")
MONTHS = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
ABBREVIATED = re.compile(
    r"\b(?:Dr|Mr|Mrs|Ms|St|Prof|Sgt|Capt|Mt|Ft|Sr|Jr|Lt|Col|Gen|Rev|Hon|Gov|Sen|Rep|vs|et al|e\.g|i\.e)\.\s"
    r"|\b(?:No|Nos|[Vv]ol|[Vv]|pp?|[Ff]ig|[Ee]qs?|[Cc]h|[Ss]ec|[Aa]rt|[Oo]p|[Aa]pprox|ca?|[bd]|[Gg]en|Ex|Ps)\.\s+[\d§(]"
    rf"|\b{MONTHS}[a-z]{{0,2}}\.\s+\d|\b\d{{1,2}}\.\s+{MONTHS}|\b(?:[A-Za-z]\.)+[A-Za-z]\.\s+[a-z\d]|\betc\.\s+[a-z]"
)
"""A dot that ends no sentence, with what follows it: Dr. Who, No. 5, Oct. 21, 26. March, at 9 p.m. today."""
MAX_ABBREVIATION = 12
CODE = re.compile(
    r"^\W{0,3}(?:select|insert|update|delete|create|alter|with)\b.{0,300}?\b(?:from|into|set|table|as|\*)(?!\w)"
    r"|[;{}]\s*$|\s\?\s[^:]{1,80}\s:\s|^\s*[{\[<]|://|::|=>|->|[=!+*/%-]=|\w\(\)|^\s*(?:const|var|int|def|sudo|git)\s+\S",
    re.IGNORECASE,
)
ASSERTS = re.compile(
    r"\W{0,3}(?:the|we|it|there|that|this|these|those|in|i|you|he|she|they|each|all|all of|il|le|la|les|el|los|der|die"
    r"|das)\b"
    r"|(?:[A-Za-z'’]+\s){1,8}(?:is|are|was|were|equals?|has|have|had|gets?|costs?|makes?|takes?|gives?)\s[^:=]*\d",
    re.IGNORECASE,
)


def sentence_ends(text: str) -> list[re.Match[str]]:
    """Return the marks that end sentences of a text; dots of abbreviations are left out."""
    return [m for m in SENTENCE_END.finditer(text) if not _is_abbreviation(text, m)]


def _is_abbreviation(text: str, mark: re.Match[str]) -> bool:
    if mark[0][0] != ".":
        return False
    start, stop = max(0, mark.start() - MAX_ABBREVIATION), mark.end() + MAX_ABBREVIATION
    return any(m.start() < mark.end() - start <= m.end() for m in ABBREVIATED.finditer(text[start:stop]))


def is_code(line: str) -> bool:
    """True if a line is code, a query, an address or data, where words and signs announce no value."""
    return CODE.search(line) is not None


def asserts(line: str) -> bool:
    """True if a line is a sentence that tells something, not a name, a pair or an expression."""
    if is_code(line):
        return False
    return bool(
        line.endswith((".", "!", "*", "。")) or OPENING.match(line) or CONCLUDES.search(line) or ASSERTS.match(line)
    )


MAX_CHARS = 200
"""Maximum of characters in such a sentence; a longer one says more than a letter."""
LETTER_OPENING = r"(?i:(?:so|thus|therefore|hence|then|finally|consequently)\b,?\s+)?"
CHOICE_NAME = (
    r"(?i:(?:the|la|el|le|die|der|das|[ao](?=\s(?:letra|opção|[(A-J]))|correct|right|best|option|choice|answer|letter|lettre|letra"
    r"|lettera|opción|opção|opzione|réponse|respuesta|resposta|risposta|antwort|вариант(?:\s+ответа)?|选项|選項|选|選)"
    r"\s*)"
)
MARKS = r"[*(\[$\s]{0,4}", r"[*)\]$]{0,4}"
NOT = r"(?i:(?:and |und |y |e |et )?(?:not|rather than|instead of|nicht|а не|而不是))"
CONTRASTS = (
    ("not", "but(?: rather)?"), ("nicht", "sondern"), ("no es", "sino(?: que es)?"), ("pas", "mais"), ("не", "а"),
    ("不是", "而是"), ("não é", "mas(?: sim)?"), ("non è", "ma"),
)  # fmt: skip


def _letter(name: str = "") -> str:
    """Return the pattern of a letter in any decoration, with words that name it a choice."""
    opening, closing = MARKS
    return f"{CHOICE_NAME}{{0,4}}{opening}(?{f'P<{name}>' if name else ':'}[A-J]){closing}(?![\\w'’])"


END = r"[\s.。!*]*"
ALONE = rf"{_letter('letter')}(?:,?\s*\(?{NOT}\s*{_letter()}\)?)?{END}"
BUT = [rf"(?i:{no})\s*{_letter()},?\s*(?i:{but})\s*{_letter('letter')}{END}" for no, but in CONTRASTS]
BECAUSE = r"(?:,?\s+(?i:because|since|as)\b.*)?"
RIGHT = (
    rf"{_letter('letter')}\s+(?i:is|must be|has to be)\s+"
    rf"(?i:(?:the\s+)?(?:correct|right|best)(?:\s+(?:option|choice|answer|alternative|one))?|the answer){BECAUSE}{END}"
)
NAMED = re.compile(
    rf"{LETTER_OPENING}(?i:the\s+(?:(?:only|correct|right|best)\s+)*(?:option|choice|one|picture|figure|graph|diagram)"
    r"\s+(?:corresponding to|(?:that|which)\s+(?:(?:best|correctly|accurately)\s+)?(?:shows|matches|fits|represents"
    rf"|corresponds to|satisfies))\b(?:\s[^.!?\n]{{1,120}}?)?\sis)\s+{_letter('letter')}{END}"
)
DOUBTS = re.compile(
    r"\b(?:wrong|in(?:correct|accura)|false|err|mis|flaw|trap|distract|naive|opposite|contra|least|less|wors|poor"
    r"|bad|hard|bare|except|exclu|elimin|reject|rul(?:e|ing)|without|an?other|part|almost|near|seem|appear|tempt|common"
    r"|second|last|earl|previous|un|avoid|slip|fail|careless)|\bother\b|n['’]t\b|['’]s\b", re.IGNORECASE
)  # fmt: skip
"""Words of a sentence like `NAMED` (the graph that fits the data is (C)) that rejects a choice, or is of another."""
MUST = rf"[^.!?\n]{{1,100}}?\s(?i:must|has to|can only)\s+be\s+{_letter('letter')}{END}"
PICKED = (
    r"(?i:(?:I|we)(?:['’]ll|['’]d|\s+will|\s+would)?\s+(?:choose|chose|pick|picked|select|selected|go with|opt for)"
    r"|(?:my|our|the)\s+(?:final\s+|correct\s+|right\s+|best\s+)*(?:choice|option|answer|selection)\s*(?:is\b|:)"
    r"|it\s+is|it['’]s)\s*"
)
ANNOUNCED = [re.compile(pattern) for pattern in (ALONE, *BUT)]
SENTENCE = [
    re.compile(LETTER_OPENING + pattern, re.DOTALL)
    for pattern in (RIGHT, MUST, *(PICKED + p for p in (ALONE, *BUT)), *BUT, ALONE)
]


def letter_stated(sentence: str) -> str | None:
    """Return the letter that a whole sentence names the right one; None if it names none, or says more than that."""
    letter = _first(SENTENCE, sentence)
    if letter is None and not any(words.search(sentence) for words in (DOUBTS, NO_CONCLUSION, DENIES)):
        letter = _first([NAMED], sentence)
    return letter


def _first(patterns: list[re.Pattern[str]], text: str) -> str | None:
    if len(text) > MAX_CHARS:
        return None
    matches = (pattern.fullmatch(text.strip()) for pattern in patterns)
    return next((match["letter"] for match in matches if match), None)


MAX_CLOSING = 1_500
"""Characters at the end in which a concluding sentence is looked for."""
MAX_CUES = 3
"""Announcements of which all that follows is kept."""
BETWEEN = " \t:：是为"
"""Maximum of characters between an announcement and the answer."""
JSON_ANSWER = re.compile(r"\"(?:final_)?answer\"\s?:\s?(\"?)([^\"{}\n]{1,300})\1\s{0,9}[,}]", re.IGNORECASE)
FORMULA = re.compile(
    r"\$\$(.{1,1500}?)\$\$|\\\[(.{1,1500}?)\\\]|\\\((.{1,1500}?)\\\)|(?<!\\)\$([^$]{1,1500})(?<!\\)\$(?!\d|<<)",
    re.DOTALL,
)
"""Text between delimiters. A dollar sign before a digit closes nothing: it is the next price, $5 or $6."""
STATEMENT = re.compile(r"(?:[^A-Za-z]|\\[A-Za-z]+|\b[A-Za-z]{1,2}\b|\b(?:or|and)\b)*")
JOINS = re.compile(r"\s*(?:,|,?\s*\b(?:or|and)\b)\s*", re.IGNORECASE)
CHOICE_FIRST = re.compile(r"\*{0,2}\(?[A-F]\)?\*{0,2}[.)]\*{0,2}\s+[^\n]{1,150}")
EXPLAINED = re.compile(
    r"\**(\(?[A-J]\)?|-?\d[\d.,/]*?)[.)]?\**\s*\n\s*\**(?:explanation|justification|reason(?:ing)?)\b\**:", re.I
)
"""A value in the first line, above its explanation."""
NUMBER = re.compile(r"[$€£]?\s?-?\d[\d,]*(?:\.\d+)?(?:/\d+)?%?")
LABEL = re.compile(r"\W{0,3}(?:(?:final\s+)?result|total|sum|value|A)\**\s?:", re.IGNORECASE)
"""A word before a colon that tells that the value follows. Any other is a part of a pair or a title: name: Ann."""
NOTATION = re.compile(r"[\d$\\=<>]")
ONE_TOKEN = re.compile(r"[!-~]+")
NAME = re.compile(r"(?:\(?[A-Z][\w.'’)-]{0,30}[ ]){1,6}[A-Z][\w.'’-]{0,30}(?=\s*(?:\n|$))")
"""A line of capitalised words and initials, in which a dot ends no sentence: J. R. R. Tolkien, St. Lucia, B. Oslo."""
VALUE_OF = re.compile(r"(?:so |thus |hence |therefore,? )?the\s[^.\n]{1,120}?\s(?:is|are|equals)\s", re.IGNORECASE)
"""A sentence behind an announcement that says again what it is of: Final answer: The largest n is 34."""
VERB = re.compile(r"\b(?:is|are|equals|was|were)\b")
STATED = re.compile(
    r"(?:=|≈|(?:is|are|was|equals?|must be|has to be|have to be|can only be|comes? out (?:as|to be))\b)\s*"
    r"(?:(?:exactly|precisely|simply|just|therefore|thus|then|equal to)\s+){0,2}"
)
VALUE_ONLY = re.compile(
    r"([-−+]?[$€£]?\s?\d[\d.,]*(?<!,)(?<!\.)(?:/\d+)?\s?%?)((?:\s?[°A-Za-z²³/]{1,15}){0,3})[.!*\s]*"
)
ITEM = re.compile(r"^\d{1,2}[.)]\s+(?=[^\d\s])")
STATED_BEFORE = re.compile(r"(?:=|\b(?:is|are|equals?))\s*[-−]?\d")
SUBJECT = re.compile(r"[\s$\\()\[\]]*[A-Za-z]+(?:_\{?\w+\}?)?[\s$\\()\[\]]*")
"""A name in delimiters, which is no value itself."""
ENDINGS = (".", "!", "*", "。")
FORMULA_ONLY = re.compile(r"[^A-Za-z]*(?:[A-Za-z]{1,2}(?:\([a-z]\))?\s*=)?[^A-Za-z]*(?:\b[a-z]{1,4}\b[^A-Za-z]*)?")


@lru_cache(maxsize=64)  # the parts of a combined verifier read the same response
def announced_answer(text: str) -> Answer | None:
    """Return the text behind the last announcement: "the answer is", "####", JSON's key "answer". None without one.

    The content ends with its sentence. A cue at the end of its line announces the next line that is not empty.
    """
    if text.endswith("}") and (keyed := list(JSON_ANSWER.finditer(text))):
        return Answer(keyed[-1][2].strip(), "cue")
    every = list(CUE.finditer(text))
    if not every:
        return None
    cues = [c for c in every if not hedges.OF_ANOTHER.search(text[max(0, c.start() - 20) : c.start()])]
    if not cues or hedges.is_supposed(text, cues[-1]):
        return Answer(None, "no_conclusion")
    return replace(_behind(text, cues[-1]), uncut=tuple(text[c.end() :].lstrip(BETWEEN) for c in cues[-MAX_CUES:]))


def _behind(text: str, cue: re.Match[str]) -> Answer:
    """Return the answer that follows a cue."""
    rest = text[cue.end() :].lstrip(f"{BETWEEN}*_")
    below, rest = rest.startswith("\n"), rest.lstrip()
    if not rest.strip("* .`\n"):
        return Answer(None, "empty_cue")
    content = _until_sentence_end(rest)
    later = rest[len(content) :]
    alternative = (hedges.candidate_below(content, later) if below else None) or hedges.replacing_value(later)
    if rest[len(content) : len(content) + 1] == "?" or (content.endswith("?") and NOTATION.search(content)):
        return Answer(None, "no_conclusion")
    content = _without_exclamation(FILLER.sub("", content, count=1) if FILLER.match(content) else content)
    # A text that breaks off after the announcement may have been about to say more.
    if ENDS_OPEN.search(content) or (ENDS_OPEN.search(text[-40:]) and not sentence_ends(rest)):
        return Answer(None, "no_conclusion")
    other = cue["other"] is not None
    if (letter := _first(ANNOUNCED, content)) is not None:
        return Answer(letter, "cue", alternative=alternative, other_language=other)
    if other and DENIES.search(f"{cue.group()} {content}"[:MAX_CLOSING]):
        return Answer(None, "no_conclusion")
    content = VERB_ENDING.sub("", content) if other else content
    again = VALUE_OF.match(content)
    if again is not None and NOTATION.search(value := content[again.end() :]) and not VERB.search(value):
        content = value
    return (
        Answer(content, "cue", alternative=alternative, other_language=other) if content else Answer(None, "empty_cue")
    )


def _until_sentence_end(text: str) -> str:
    """Return `text` up to the end of its first sentence or line, but never ending inside a formula."""
    if text.startswith("```"):
        closed = text.find("```", 3)
        return re.sub(r"^```\w*\n", "", text[: closed if closed > 0 else None]).strip()
    spans = [m.span() for m in FORMULA.finditer(text[:MAX_CLOSING])]
    limit = text.find("\n")
    name = NAME.match(text)
    if name is not None:
        return name[0].strip()
    for stop in [*(m.start() for m in sentence_ends(text[:MAX_CLOSING])), limit, min(len(text), MAX_CLOSING)]:
        if (
            stop > 0
            and not any(a < stop < b for a, b in spans)
            and (limit < 0 or stop <= limit or any(a < limit < b for a, b in spans))
        ):
            text = text[:stop]
            break
    clause = CLAUSE.search(text)
    if clause is not None and is_code(text):
        return text.strip()
    if clause is not None and not NOTATION.search(text, 0, clause.start()):
        clause = REASON.search(text)
    return (text[: clause.start()] if clause else text).strip()


def concluding_answer(text: str) -> Answer:
    """Return the value in the last sentence, or the whole text if it is only an answer."""
    tail = text[-MAX_CLOSING:]
    spans = [m.span() for m in FORMULA.finditer(tail)]
    ends = [m.end() for m in sentence_ends(tail) if not any(a < m.start() < b for a, b in spans)]
    start = next((e for e in reversed(ends) if tail[e:].strip("* \n`")), 0)
    sentence = ITEM.sub("", tail[start:].strip()) if start else tail.strip()
    if GIVING_UP.search(tail) or ENDS_OPEN.search(tail[-40:]):
        return Answer(None, "no_conclusion")
    if text.startswith("```") and text.endswith("```") and text.count("```") == 2:
        return Answer(_until_sentence_end(text), "whole")
    if (explained := EXPLAINED.match(text)) is not None:
        return Answer(explained[1], "whole")
    if CHOICE_FIRST.fullmatch(text) and not NO_CONCLUSION.search(text):
        return Answer(text.replace("*", ""), "whole")
    if NAME.fullmatch(text):
        return Answer(text, "whole")
    if (letter := letter_stated(sentence)) is not None and len(sentence) > 4:
        return Answer(letter, "conclusion")
    alone = start == 0 and len(text) <= MAX_CLOSING and "\n" not in sentence
    if alone and not spans and not asserts(sentence) and not LABEL.match(sentence):
        # One line that is no sentence is the answer, whatever signs and words are in it: 17:05, x == 5, Catch: 22.
        open_end = _is_open(sentence) and not is_code(sentence)
        return Answer(None, "no_conclusion") if open_end else Answer(sentence, "whole")
    if alone and (len(sentence) < 40 or FORMULA_ONLY.fullmatch(sentence)) and not _is_open(sentence):
        return _from_sentence(sentence, True) or Answer(sentence, "whole")
    if "\n" in sentence and not spans:
        sentence = sentence[sentence.rfind("\n") + 1 :].strip()
    prose = FORMULA.sub(" ", sentence)
    if NO_CONCLUSION.search(prose) or DENIES.search(prose):
        return Answer(None, "no_conclusion")
    stated = _from_sentence(sentence, start == 0)
    if (
        stated is None and len(text) < MAX_TAIL and ONE_TOKEN.fullmatch(text)
    ):  # however long, so that a verifier can say that it is too long
        return Answer(text, "whole")
    if stated is None and alone and not NOTATION.search(sentence):  # a name or a phrase
        return Answer(sentence, "whole")
    return stated or Answer(None, "no_conclusion")


def _is_open(sentence: str) -> bool:
    """True if a short text with a number in it asks, guesses or denies, and so states no answer."""
    doubt = NO_CONCLUSION.search(sentence) or DENIES.search(sentence)
    return doubt is not None and re.search(r"\d|\$|\banswer\b", sentence, re.IGNORECASE) is not None


def _stated(sentence: str) -> str | None:
    """Return the value in a sentence without math delimiters: a bare statement, or the end after a verb or "="."""
    opening = OPENING.match(sentence)
    bare = sentence[opening.end() :] if opening else sentence
    if "=" in bare and STATEMENT.fullmatch(bare):
        return bare.strip()
    verb = STATES.match(sentence)
    if verb is None:
        before, sign, after = sentence.rpartition("=")
        return CLAUSE.split(after, maxsplit=1)[0].strip() if sign and before else None
    content = CLAUSE.split(sentence[verb.end() :], maxsplit=1)[0].strip()
    filler = FILLER.match(content)
    return content[filler.end() :] if filler else content


def _without_exclamation(content: str) -> str:
    """Return prose without its final exclamation mark, which is no factorial there."""
    return content[:-1] if content.endswith("!") and "$" not in content and "\\" not in content else content


def _joined_formulas(sentence: str, formulas: list[re.Match[str]]) -> str:
    """Return the last formula, with the formulas joined to it by "or", "and" or a comma."""
    start = len(formulas) - 1
    while start > 0 and JOINS.fullmatch(sentence, formulas[start - 1].end(), formulas[start].start()):
        start -= 1
    return ", ".join(next(g for g in f.groups() if g is not None).strip() for f in formulas[start:])


def _from_sentence(sentence: str, is_whole: bool) -> Answer | None:
    """Return the value that a sentence states, None if it states none; `is_whole`: no sentence precedes it."""
    choice = CORRECT_CHOICE.search(sentence)
    if choice is not None:
        return Answer(choice[1], "conclusion")
    formulas = list(FORMULA.finditer(sentence))
    other = is_other_language(sentence)
    if formulas:
        last = formulas[-1]
        if hedges.BOUNDED.search(sentence, 0, last.start()):
            return None
        after = sentence[last.end() :].strip()
        if (verb := STATED.match(after)) is not None:
            # The formula is the subject, as in: so $n$ is 8.
            value = VALUE_ONLY.fullmatch(after, verb.end())
            is_second = STATED_BEFORE.search(FORMULA.sub(" ", sentence[: last.start()]))
            if value is not None and not is_second and not UNFINISHED.search(value[2]):
                return Answer(f"{value[1]}{value[2]}", "conclusion", other_language=other)
            if SUBJECT.fullmatch(last[0]) and (value is not None or re.search(r"\d", after)):
                return None
        finished = not after.strip(" .*") or after.endswith(ENDINGS)
        # A unit or a noun may follow the formula; a longer rest says something else of it.
        if not finished and (len(after.split()) > 2 or UNFINISHED.search(after)):
            return None
        content = _joined_formulas(sentence, formulas)
        if len(after.split()) <= 2 and re.fullmatch(r"[A-Za-z ]{1,20}\.?", after):
            content = f"{content} \\text{{{after.rstrip('.')}}}"
        return Answer(content, "conclusion", other_language=other)
    stated = _stated(sentence)
    if stated is not None:
        closed = sentence.endswith(ENDINGS) or re.search(r"[\d)}\]]$|\d\s?\S{1,12}$", sentence)
        if not (stated and closed and re.search(r"\d|\\|√|π|∞", stated)):
            return None
        return Answer(_without_exclamation(stated), "conclusion", other_language=other)
    numbers = NUMBER.findall(sentence)
    if len(numbers) == 1 and CONCLUDES.search(sentence) and sentence.endswith((".", "!")):
        return Answer(numbers[0], "conclusion", other_language=other)
    if not is_whole and re.fullmatch(r"\**[-+$€£]?\s?[\d.,/]*\d%?\.?\**", sentence):
        return Answer(sentence, "conclusion", other_language=other)
    return None
