"""Find answers in prose: after words such as "the answer is", or in the concluding sentence."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

from verizero.verifiers.answer import hedges
from verizero.verifiers.answer.parts import MAX_TAIL, Answer, is_other_language
from verizero.verifiers.answer.sentences import asserts, is_code, sentence_ends
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

MAX_CLOSING = 1_500
"""Characters at the end in which a concluding sentence is looked for."""
MAX_CUES = 3
"""Announcements of which all that follows is kept."""
BETWEEN = " \t:：是为"
"""Maximum of characters between an announcement and the answer."""
JSON_ANSWER = re.compile(r"\"(?:final_)?answer\"\s?:\s?(\"?)([^\"{}\n]{1,300})\1\s{0,9}[,}]", re.IGNORECASE)
FORMULA = re.compile(
    r"\$\$(.{1,1500}?)\$\$|\\\[(.{1,1500}?)\\\]|\\\((.{1,1500}?)\\\)|(?<!\\)\$([^$]{1,1500})(?<!\\)\$(?!\d)", re.DOTALL
)
"""Text between delimiters. A dollar sign before a digit closes nothing: it is the next price, $5 or $6."""
STATEMENT = re.compile(r"(?:[^A-Za-z]|\\[A-Za-z]+|\b[A-Za-z]{1,2}\b|\b(?:or|and)\b)*")
JOINS = re.compile(r"\s*(?:,|,?\s*\b(?:or|and)\b)\s*", re.IGNORECASE)
CHOICE_FIRST = re.compile(r"\*{0,2}\(?[A-F]\)?\*{0,2}[.)]\*{0,2}\s+[^\n]{1,150}")
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
    cues = [cue for cue in every if not hedges.is_of_another(text, cue)]
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
    sentence = tail[start:].strip()
    if GIVING_UP.search(tail) or ENDS_OPEN.search(tail[-40:]):
        return Answer(None, "no_conclusion")
    if text.startswith("```") and text.endswith("```") and text.count("```") == 2:
        return Answer(_until_sentence_end(text), "whole")
    if CHOICE_FIRST.fullmatch(text) and not NO_CONCLUSION.search(text):
        return Answer(text.replace("*", ""), "whole")
    if NAME.fullmatch(text):
        return Answer(text, "whole")
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
