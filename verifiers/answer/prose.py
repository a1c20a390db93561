"""Where the final answer stands in a response, and why not if it is nowhere.

The order: thinking is cut, then the last closed box, then `<answer>` tags, then an explicit cue, then the formula of
the concluding sentence. There is no fallback to any number in the text. Every scan is linear in the length of the tail.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from verifiers.mathematics import hedges

MAX_TAIL = 20_000
"""Characters looked at, from the end."""
MAX_CLOSING = 1_500
"""Characters of the tail in which a concluding sentence is looked for."""

OPENING_TAGS, CLOSING_TAGS = ("<think>", "<thinking>"), ("</think>", "</thinking>")
BOX_PARTS = re.compile(r"\\(?:boxed|fbox)\s{0,3}(\{)?|\\.|[{}]", re.DOTALL)
BARE_BOX = re.compile(r"[+-]?[A-Za-z0-9.]{1,40}")
BETWEEN = re.compile(
    r"(?:[\s,;$&]|\\[()\[\],;! ]|\\q?quad|(?:\\(?:text|mathrm|textrm)\s?\{)?\s{0,3}\b(?:or|and)\b\s{0,3}\}?){0,30}"
    r"(?:(?<=[\s$,])[A-Za-z](?:_\{?\d\}?)?\s?=\s?\$?\s?)?",
    re.IGNORECASE,
)
ENGLISH_CUE = (
    r"\b(?:final\s+|correct\s+|right\s+)?(?:answer|ans|solution)\b(?:\s+to\s+(?:the|this)\s+(?:problem|question)"
    r"|\s+choice)?"
    r"\**\s{0,3}(?:\bis\b|[:=]|\bwould be\b|\bshould be\b)"
    r"|\bfinal\s+(?:answer|result)\b\**(?=\s*\n)"
    r"|^#{1,4}\s*\**(?:final\s+)?(?:answer|result)\**:?\**\s*\n"
    r"|\b(?:correct|right|best)\s+(?:option|choice|alternative)\s*(?:\bis\b|:)"
)
OTHER_CUE = (
    r"(?:la\s+)?respuesta(?:\s+(?:final|correcta))?\s*(?:es|:)|(?:la\s+)?réponse(?:\s+finale)?\s*(?:est|:)"
    r"|(?:die\s+)?(?:antwort|lösung)(?:\s+(?:ist|lautet)|\s*:)|(?:a\s+)?resposta(?:\s+final)?\s*(?:é|:)"
    r"|(?:la\s+)?risposta(?:\s+(?:finale|corretta))?\s*(?:è|:)|ответ\w*\s*(?::|—|–|-|равен|это|будет)"
    r"|відповідь\s*(?::|—|–|-)"
    r"|答案\s*(?:是|为|為|:|：)+|最终答案\s*(?:是|为|:|：)|(?:答え|正解|解答)\s*(?:は|:|：)|(?:정답|답)\s*(?:은|는|:|：)"
    r"|(?:ال)?(?:جواب|إجابة)(?:\s+النهائي\w*)?\s*(?:هو|هي|:)|उत्तर\s*(?:है|:)|odpowiedź\s*(?:to|:)"
    r"|(?:het\s+)?antwoord\s*(?:is|:)|\bis\s+het\s+antwoord|\b(?:ist|lautet)\s+die\s+(?:antwort|lösung)"
    r"|\bjawaban(?:nya)?\s*(?:adalah|:)|\bjawapan(?:nya)?\s*(?:ialah|:)|\bsvaret\s+er|\bodpověď\s*(?:je|:)"
    r"|\bvastaus\s*(?:on|:)|\brăspunsul\s*(?:este|:)|\bodgovor\s*(?:je|:)|απάντηση\s*(?:είναι|:)|התשובה\s*(?:היא|:)"
    r"|คำตอบ\s*(?:คือ|:)|\bjibu\s*(?:ni|:)|\bang\s+sagot\s+ay|отговор\w*\s*(?:е|:)|одговор\s*(?:је|:)"
    r"|cevap\s*:?|yanıt\s*:?|svaret\s+är|(?:đáp án|đáp số)\s*(?:là|:)|پاسخ\s*(?:برابر|:)?|जवाब\s*(?:है|:)?"
    r"|উত্তর\s*(?:হল|:)?"
)
CUE = re.compile(rf"(?P<hash>####)|(?P<english>{ENGLISH_CUE})|(?P<other>{OTHER_CUE})", re.IGNORECASE | re.MULTILINE)
JSON_ANSWER = re.compile(r"\"(?:final_)?answer\"\s?:\s?(\"?)([^\"{}\n]{1,300})\1\s{0,9}[,}]", re.IGNORECASE)
OTHER_PROSE = re.compile(
    r"\b(?:réponse|donc|ainsi|alors|respuesta|entonces|luego|por lo tanto|antwort|also|daher|lautet|beträgt|somit"
    r"|resposta|portanto"
    r"|logo|risposta|quindi|dunque|ergibt)\b|[Ѐ-ӿ]{3}",
    re.IGNORECASE,
)
VERB_ENDING = re.compile(r"\s?(?:です|である|だ|となります|になります|입니다|이다|이에요|예요|है)[。.]?$")
DENIES = re.compile(
    r"不(?:是|为|為|等于|等於|可能|会|會)|[并並]非|(?:では|じゃ|で)(?:な[いく]|ありません)|아(?:닙니다|니다|니에요|니야|님)"
    r"|\bnon\s+(?:è|sono|vale)\b|\bnão\s+(?:é|são|vale)\b|\bno\s+(?:es|son|vale)\b|\bn'est pas\b|\bnicht\b"
    r"|\bне\b(?!\s+(?:существ|определ|имеет))|ليس",
    re.IGNORECASE,
)
"""A cue of another language that says what the answer is not. That it does not exist is an answer."""
FORMULA = re.compile(
    r"\$\$(.{1,1500}?)\$\$|\\\[(.{1,1500}?)\\\]|\\\((.{1,1500}?)\\\)|(?<!\\)\$([^$]{1,1500})(?<!\\)\$", re.DOTALL
)
CLAUSE = re.compile(
    r"\s\(?(?:because|since|which|where|when|whereas|for which|so that|due to|as required|by the|as desired)\b",
    re.IGNORECASE,
)
SENTENCE_END = re.compile(r"(?<=[^\d\s])[.!?]\**(?=\s)|(?<=\d)[.!?]\**(?=\s+[A-Z\\$*]|\s*\n)|[。！？؟।](?=.)|\n\s*\n")
NO_CONCLUSION = re.compile(
    r"\b(?:not|cannot|can't|don't|doesn't|isn't|aren't|won't|unknown|unsure|uncertain|maybe|perhaps|might|may|could"
    r"|would|should"
    r"|if|suppose|assume|assuming|asks?|asked|find|compute|calculate|determine|evaluate|problem|question|prompt|given"
    r"|need|want|wants"
    r"|guess|try|trying|let|let's|check|checking|prove|show|whether|either|unless|probably|possibly|wait|hmm|recall"
    r"|consider"
    r"|given|says?|states?|no|never|neither|first|next|step|stuck|unable|instead|but|however|example)\b|\?|\.\.\.|…",
    re.IGNORECASE,
)
GIVING_UP = re.compile(
    r"\b(?:don't know|do not know|cannot (?:solve|determine|answer|be determined)|can't (?:solve|determine|answer"
    r"|help)|not sure|no idea|sorry"
    r"|give up|unable to|am stuck)\b",
    re.IGNORECASE,
)
CONCLUDES = re.compile(
    r"\b(?:so|thus|therefore|hence|consequently|finally|altogether|overall|in total|conclude|donc|ainsi"
    r"|luego|entonces|portanto|logo|quindi|dunque|somit|daher)\b"
    r"|∴|[所因]以|因此|故|итак|следовательно|значит|\\therefore",
    re.IGNORECASE,
)
SAYS = re.compile(
    r".*(?:\b(?:is|are|was|were|equals?|equal to|gets?|got|obtains?|have|has|gives|yields|becomes|costs?|makes"
    r"|takes|be|exactly)\b"
    r"|\b(?:es|est|ist|sind|sont|sono|son|hay|il y a(?: donc)?|gibt es|beträgt|vale|valent|vaut|tiene|hat|haben)\b"
    r"|\s[éè]\s|\b(?:равн[аоы]|равен|составляет|является|будет)\b|[是为有]|等于"
    r"|:|⇒|→|\\implies|\\Rightarrow)\s*",
    re.IGNORECASE | re.DOTALL,
)
FILLER = re.compile(
    r"(?:(?:a|the)\s+(?:grand\s+)?total\s+of"
    r"|donc|ainsi|por tanto|quindi|portanto|exactly|therefore|thus|equal\s+to|simply|just)\s+",
    re.IGNORECASE,
)
OPENING = re.compile(
    r"(?:(?:so|thus|therefore|hence|then|finally|and|in total|we get|we have)\b[\s,]*)+", re.IGNORECASE
)
STATEMENT = re.compile(r"(?:[^A-Za-z]|\\[A-Za-z]+|\b[A-Za-z]{1,2}\b|\b(?:or|and)\b)*")
JOINS = re.compile(r"\s*(?:,|,?\s*\b(?:or|and)\b)\s*", re.IGNORECASE)
CORRECT_CHOICE = re.compile(r"\b(?i:option|choice|answer)\s+\(?([A-J])\)?\s+is\s+(?:the\s+)?(?:correct|right)\b")
ENDS_OPEN = re.compile(
    r"\b(?:and|then|so|we|which|that|the|an|is|are|of|to|by|for|with|but|or|as|because|since|now|next|must|equals?|plus"
    r"|minus|times|therefore|thus|hence)\s*,?$",
    re.IGNORECASE,
)
"""Where a sentence is cut."""
CHOICE_FIRST = re.compile(r"\*{0,2}\(?[A-F]\)?\*{0,2}[.)]\*{0,2}\s+[^\n]{1,150}")
UNFINISHED = re.compile(
    r"\b(?:and|then|so|we|which|that|the|a|an|is|are|of|to|by|in|for|with|but|or|as|because|since|now|next)\b",
    re.IGNORECASE,
)
NUMBER = re.compile(r"[$€£]?\s?-?\d[\d,]*(?:\.\d+)?(?:/\d+)?%?")
FORMULA_ONLY = re.compile(r"[^A-Za-z]*(?:[A-Za-z]{1,2}(?:\([a-z]\))?\s*=)?[^A-Za-z]*(?:\b[a-z]{1,4}\b[^A-Za-z]*)?")


@dataclass(frozen=True, slots=True)
class Extraction:
    """The answer's text (None if there is none), a reason code, and how it is to be read.

    reason: boxed, answer_tag, cue, conclusion, whole; or unclosed_thinking, empty_answer, empty_box, unclosed_box,
    unclosed_answer_tag, empty_cue, truncated, no_cue, no_conclusion. `other_language` says that the prose around the
    answer is not English, so that a comma may be the decimal point. `several` says that adjacent boxes were joined to
    a list.
    """

    text: str | None
    reason: str
    other_language: bool = False
    several: bool = False
    alternative: str | None = None
    """What a hedge beside the box offers as well: `\\boxed{4} or 5`."""


def extract(
    response: str, prompt: str = "", truncated: bool = False, join_boxes: bool = True, concluding_sentence: bool = True
) -> Extraction:
    """The final answer of `response` by the policy; `truncated` says that it was cut at its length limit."""
    text = after_thinking(response, prompt)
    if text is None:
        return Extraction(None, "unclosed_thinking")
    text = text[-MAX_TAIL:].strip()
    if not text:
        return Extraction(None, "empty_answer")
    found = boxed(text, join_boxes) if "\\boxed" in text or "\\fbox" in text else None
    if found is None:
        found = _tagged(text)
    if found is None and truncated:
        return Extraction(None, "truncated")
    found = found or _cued(text)
    if found is None and not concluding_sentence:
        return Extraction(None, "no_cue")
    return found or _concluded(text)


def after_thinking(response: str, prompt: str = "") -> str | None:
    """What follows the last closing thinking tag; None if thinking was opened and never closed."""
    opens = prompt.rstrip().endswith("<think>")
    if "think" not in response:
        return None if opens else response
    closed = max(response.rfind(tag) for tag in CLOSING_TAGS)
    if max(response.rfind(tag) for tag in OPENING_TAGS) > closed or (opens and closed < 0):
        return None
    return response[response.index(">", closed) + 1 :] if closed >= 0 else response


def boxed(text: str, join: bool = True) -> Extraction | None:
    """The last closed box, if `join` with the boxes joined to it by "or", "and" or commas; None if there is no box."""
    boxes, unclosed = _boxes(text)
    if unclosed is not None and not any(b[0] > unclosed and "\n\n" in text[unclosed : b[0]] for b in boxes):
        return Extraction(None, "unclosed_box")
    if not boxes:
        return None
    contents = [text[boxes[-1][1] : boxes[-1][2]].strip()]
    end, joiner = boxes[-1][0], ", "
    for start, inner, closed in reversed(boxes[-20:-1] if join else []):
        if BETWEEN.fullmatch(text, closed + 1, end) is None:
            break
        joiner = " \\text{ or } " if re.search(r"\bor\b", text[closed + 1 : end], re.IGNORECASE) else joiner
        contents.append(text[inner:closed].strip())
        end = start
    contents = list(dict.fromkeys(reversed(contents)))
    if not any(contents):
        return Extraction(None, "empty_box")
    other = _other_language(text)
    return Extraction(
        joiner.join(contents), "boxed", other, len(contents) > 1, hedges.beside(text, end, boxes[-1][2] + 1)
    )


def _boxes(text: str) -> tuple[list[tuple[int, int, int]], int | None]:
    """(start, inner start, inner end) of outermost closed boxes in order, and where the last unclosed one starts."""
    boxes: list[tuple[int, int, int]] = []
    stack: list[tuple[int, int] | None] = []
    for part in BOX_PARTS.finditer(text, max(0, min(text.find("\\boxed") % MAX_TAIL, text.find("\\fbox") % MAX_TAIL))):
        said = part.group()
        if said == "{":
            stack.append(None)
        elif said == "}":
            opened = stack.pop() if stack else None
            if opened is not None:
                while boxes and boxes[-1][0] > opened[0]:
                    boxes.pop()
                boxes.append((opened[0], opened[1], part.start()))
        elif len(said) > 2 and part[1]:
            stack.append((part.start(), part.end()))
        elif said.startswith(("\\boxed", "\\fbox")):
            bare = BARE_BOX.match(text, part.end())
            if bare is not None and not any(stack):
                boxes.append((part.start(), bare.start(), bare.end()))
    unclosed = [entry[0] for entry in stack if entry is not None]
    return boxes, unclosed[-1] if unclosed else None


def _tagged(text: str) -> Extraction | None:
    opened = text.rfind("<answer>")
    if opened < 0:
        return None
    closed = text.find("</answer>", opened)
    if closed < 0:
        return Extraction(None, "unclosed_answer_tag")
    content = text[opened + len("<answer>") : closed].strip()
    if not content:
        return Extraction(None, "empty_answer")
    inner = _cued(content)
    if inner is not None and inner.text is not None:
        return inner
    return Extraction(content, "answer_tag", _other_language(text))


def _cued(text: str) -> Extraction | None:
    if text.endswith("}") and (keyed := list(JSON_ANSWER.finditer(text))):
        return Extraction(keyed[-1][2].strip(), "cue")
    every = list(CUE.finditer(text))
    if not every:
        return None
    cues = [cue for cue in every if not hedges.is_of_another(text, cue)]
    if not cues or hedges.is_supposed(text, cues[-1]):
        return Extraction(None, "no_conclusion")
    cue = cues[-1]
    rest = text[cue.end() :].lstrip(" \t:*_：是为")
    if rest.startswith("\n"):
        rest = rest.lstrip()
    if not rest.strip("* .`\n"):
        return Extraction(None, "empty_cue")
    content = _until_sentence_end(rest.lstrip())
    if rest.lstrip()[len(content) : len(content) + 1] == "?":
        return Extraction(None, "no_conclusion")
    content = _without_exclamation(FILLER.sub("", content, count=1) if FILLER.match(content) else content)
    if ENDS_OPEN.search(content) or (ENDS_OPEN.search(text[-40:]) and not SENTENCE_END.search(rest)):
        return Extraction(None, "no_conclusion")
    other = cue["other"] is not None
    if other and DENIES.search(f"{cue.group()} {content}"[:MAX_CLOSING]):
        return Extraction(None, "no_conclusion")
    content = VERB_ENDING.sub("", content) if other else content
    return Extraction(content, "cue", other) if content else Extraction(None, "empty_cue")


def _until_sentence_end(text: str) -> str:
    """`text` up to the end of its first sentence or line, but never ending inside a formula."""
    if text.startswith("```"):
        closed = text.find("```", 3)
        return re.sub(r"^```\w*\n", "", text[: closed if closed > 0 else None]).strip()
    spans = [m.span() for m in FORMULA.finditer(text[:MAX_CLOSING])]
    limit = text.find("\n")
    for stop in [*(m.start() for m in SENTENCE_END.finditer(text[:MAX_CLOSING])), limit, min(len(text), MAX_CLOSING)]:
        if (
            stop > 0
            and not any(a < stop < b for a, b in spans)
            and (limit < 0 or stop <= limit or any(a < limit < b for a, b in spans))
        ):
            text = text[:stop]
            break
    clause = CLAUSE.search(text)
    return (text[: clause.start()] if clause else text).strip()


def _concluded(text: str) -> Extraction:
    """The formula of the last sentence, or the whole text if it is nothing but an answer."""
    tail = text[-MAX_CLOSING:]
    spans = [m.span() for m in FORMULA.finditer(tail)]
    ends = [m.end() for m in SENTENCE_END.finditer(tail) if not any(a < m.start() < b for a, b in spans)]
    start = next((e for e in reversed(ends) if tail[e:].strip("* \n`")), 0)
    sentence = tail[start:].strip()
    earlier = tail[:start]
    if GIVING_UP.search(tail) or ENDS_OPEN.search(tail[-40:]):
        return Extraction(None, "no_conclusion")
    if text.startswith("```") and text.endswith("```") and text.count("```") == 2:
        return Extraction(_until_sentence_end(text), "whole")
    if CHOICE_FIRST.fullmatch(text) and not NO_CONCLUSION.search(text):
        return Extraction(text.replace("*", ""), "whole")
    alone = start == 0 and len(text) <= MAX_CLOSING and "\n" not in sentence
    if alone and (len(sentence) < 40 or FORMULA_ONLY.fullmatch(sentence)) and not _is_open(sentence):
        return _from_sentence(sentence, True) or Extraction(sentence, "whole")
    if "\n" in sentence and not spans:
        sentence = sentence[sentence.rfind("\n") + 1 :].strip()
    prose = FORMULA.sub(" ", sentence)
    if NO_CONCLUSION.search(prose) or DENIES.search(prose):
        return Extraction(None, "no_conclusion")
    return _from_sentence(sentence, not earlier) or Extraction(None, "no_conclusion")


def _is_open(sentence: str) -> bool:
    """Whether a short text with a number in it does not state it: a question, a guess, a denial."""
    said = NO_CONCLUSION.search(sentence) or DENIES.search(sentence)
    return said is not None and re.search(r"\d|\$|\banswer\b", sentence, re.IGNORECASE) is not None


def _stated(sentence: str) -> str | None:
    """What a sentence without math delimiters says: a bare statement, or what follows its last verb or equals sign."""
    opening = OPENING.match(sentence)
    bare = sentence[opening.end() :] if opening else sentence
    if "=" in bare and STATEMENT.fullmatch(bare):
        return bare.strip()
    said = SAYS.match(sentence)
    if said is None:
        before, sign, after = sentence.rpartition("=")
        return CLAUSE.split(after, maxsplit=1)[0].strip() if sign and before else None
    content = CLAUSE.split(sentence[said.end() :], maxsplit=1)[0].strip()
    filler = FILLER.match(content)
    return content[filler.end() :] if filler else content


def _without_exclamation(content: str) -> str:
    """Prose without its final exclamation mark, which is no factorial there."""
    return content[:-1] if content.endswith("!") and "$" not in content and "\\" not in content else content


def _joined_formulas(sentence: str, formulas: list[re.Match[str]]) -> str:
    """The last formula, with those joined to it by "or", "and" or a comma."""
    start = len(formulas) - 1
    while start > 0 and JOINS.fullmatch(sentence, formulas[start - 1].end(), formulas[start].start()):
        start -= 1
    return ", ".join(next(g for g in f.groups() if g is not None).strip() for f in formulas[start:])


def _from_sentence(sentence: str, whole: bool) -> Extraction | None:
    choice = CORRECT_CHOICE.search(sentence)
    if choice is not None:
        return Extraction(choice[1], "conclusion")
    formulas = list(FORMULA.finditer(sentence))
    reason, other = "conclusion", _other_language(sentence)
    if formulas:
        last = formulas[-1]
        if hedges.BOUNDED.search(sentence, 0, last.start()):
            return None
        after = sentence[last.end() :].strip()
        finished = not after.strip(" .*") or after.endswith((".", "!", "*", "。"))
        if not finished and (len(after.split()) > 2 or UNFINISHED.search(after)):
            return None
        content = _joined_formulas(sentence, formulas)
        if len(after.split()) <= 2 and re.fullmatch(r"[A-Za-z ]{1,20}\.?", after):
            content = f"{content} \\text{{{after.rstrip('.')}}}"
        return Extraction(content, reason, other)
    said = _stated(sentence)
    if said is not None:
        closed = sentence.endswith((".", "!", "*", "。")) or re.search(r"[\d)}\]]$|\d\s?\S{1,12}$", sentence)
        stated = said and closed and re.search(r"\d|\\|√|π|∞", said)
        return Extraction(_without_exclamation(said), reason, other) if stated else None
    numbers = NUMBER.findall(sentence)
    if len(numbers) == 1 and CONCLUDES.search(sentence) and sentence.endswith((".", "!")):
        return Extraction(numbers[0], reason, other)
    if not whole and re.fullmatch(r"\**[-+$€£]?\s?[\d.,/]*\d%?\.?\**", sentence):
        return Extraction(sentence, reason, other)
    return None


def _other_language(text: str) -> bool:
    return OTHER_PROSE.search(text[-2_000:]) is not None
