"""Words of many languages that announce, deny or conclude an answer, as the patterns that the reader searches for.

A new language is a line in CUES; `tests/verifiers/test_answer.py` proves that every verifier reads it alike.
"""

from __future__ import annotations

import re

ENGLISH_CUE = (
    r"\b(?<!step )(?<!detailed )(?<!worked )(?:final\s+|correct\s+|right\s+)?(?:answer|ans|solution)\b"
    r"(?:\s+to\s+(?:the|this)\s+(?:problem|question)"
    r"|\s+choice)?"
    r"\**\s{0,3}(?:\bis\b|[:=]|\bwould be\b|\bshould be\b)"
    r"|\bfinal\s+(?:answer|result)\b\**(?=\s*\n)"
    r"|^#{1,4}\s*\**(?:final\s+)?(?:answer|result)\**:?\**\s*\n"
    r"|\b(?:correct|right|best)\s+(?:option|choice|alternative)\s*(?:\bis\b|:)"
)
CUES = {
    "Spanish": r"(?:la\s+)?(?:respuesta(?:\s+(?:final|correcta))?|opción\s+correcta)\s*(?:es|:)",
    "French": r"(?:la\s+)?(?:réponse(?:\s+(?:finale|correcte))?|bonne\s+option)\s*(?:est|:)",
    "German": r"(?:die\s+)?(?:antwort|lösung)(?:\s+(?:ist|lautet)|\s*:)|\b(?:ist|lautet)\s+die\s+(?:antwort|lösung)",
    "Portuguese": r"(?:a\s+)?(?:resposta(?:\s+(?:final|correta|certa))?|opção\s+correta)\s*(?:é|:)",
    "Italian": r"(?:la\s+)?(?:risposta(?:\s+(?:finale|corretta|giusta))?|opzione\s+corretta)\s*(?:è|:)",
    "Russian": r"ответ\w*\s*(?::|—|–|-|равен|это|будет)",
    "Ukrainian": r"відповідь\s*(?::|—|–|-)",
    "Chinese": r"(?:答案|正确选项)\s*(?:是|为|為|选|選|:|：)+|[故应應][选選](?=\s?[A-J])",
    "Japanese": r"(?:答え|正解|解答)\s*(?:は|:|：)",
    "Korean": r"(?:정답|답)\s*(?:은|는|:|：)",
    "Arabic": r"(?:ال)?(?:جواب|إجابة)(?:\s+النهائي\w*)?\s*(?:هو|هي|:)",
    "Hindi": r"उत्तर\s*(?:है|:)|जवाब\s*(?:है|:)?",
    "Polish": r"odpowiedź\s*(?:to|:)",
    "Dutch": r"(?:het\s+)?antwoord\s*(?:is|:)|\bis\s+het\s+antwoord",
    "Indonesian": r"\bjawaban(?:nya)?\s*(?:adalah|:)",
    "Malay": r"\bjawapan(?:nya)?\s*(?:ialah|:)",
    "Danish and Norwegian": r"\bsvaret\s+er",
    "Czech": r"\bodpověď\s*(?:je|:)",
    "Finnish": r"\bvastaus\s*(?:on|:)",
    "Romanian": r"\brăspunsul\s*(?:este|:)",
    "Croatian": r"\bodgovor\s*(?:je|:)",
    "Greek": r"απάντηση\s*(?:είναι|:)",
    "Hebrew": r"התשובה\s*(?:היא|:)",
    "Thai": r"คำตอบ\s*(?:คือ|:)",
    "Swahili": r"\bjibu\s*(?:ni|:)",
    "Filipino": r"\bang\s+sagot\s+ay",
    "Bulgarian": r"отговор\w*\s*(?:е|:)",
    "Serbian": r"одговор\s*(?:је|:)",
    "Turkish": r"cevap\s*:?|yanıt\s*:?",
    "Swedish": r"svaret\s+är",
    "Vietnamese": r"(?:đáp án|đáp số)\s*(?:là|:)",
    "Persian": r"پاسخ\s*(?:برابر|:)?",
    "Bengali": r"উত্তর\s*(?:হল|:)?",
}
"""Language -> the words that announce an answer in it."""
CUE = re.compile(
    rf"(?P<hash>####)|(?P<english>{ENGLISH_CUE})|(?P<other>{'|'.join(CUES.values())})", re.IGNORECASE | re.MULTILINE
)
OTHER_PROSE = re.compile(
    r"\b(?:réponse|donc|ainsi|alors|respuesta|entonces|luego|por lo tanto|antwort|also|daher|lautet|beträgt|somit"
    r"|resposta|portanto"
    r"|logo|risposta|quindi|dunque|ergibt)\b|[Ѐ-ӿ]{3}",
    re.IGNORECASE,
)
"""Prose that is not English, in which a comma may be the decimal point."""
VERB_ENDING = re.compile(r"\s?(?:です|である|だ|となります|になります|입니다|이다|이에요|예요|है)[。.]?$")
DENIES = re.compile(
    r"不(?:是|为|為|等于|等於|可能|会|會)|[并並]非|(?:では|じゃ|で)(?:な[いく]|ありません)|아(?:닙니다|니다|니에요|니야|님)"
    r"|\bnon\s+(?:è|sono|vale)\b|\bnão\s+(?:é|são|vale)\b|\bno\s+(?:es|son|vale)\b|\bn'est pas\b|\bnicht\b"
    r"|\bне\b(?!\s+(?:существ|определ|имеет))|ليس",
    re.IGNORECASE,
)
"""Another language's words for "is not". "Does not exist" is an answer, and so is left out."""
NO_CONCLUSION = re.compile(
    r"\b(?:not|cannot|can't|don't|doesn't|isn't|aren't|won't|unknown|unsure|uncertain|maybe|perhaps|might"
    r"|(?<!of )may(?!,?\s\d)|could|would|should"
    r"|if|suppose|assume|assuming|asks?|asked|find|compute|calculate|determine|evaluate|problem|question|prompt|given"
    r"|need|want|wants"
    r"|guess|try|trying|let|let's|check|checking|prove|show|whether|either|unless|probably|possibly|wait|hmm|recall"
    r"|consider"
    r"|given|says?|states?|no(?!\.\s?\d)|never|neither|first|next|step"
    r"|stuck|unable|instead|but|however|example)\b|\?|\.\.\.|…",
    re.IGNORECASE,
)
"""Words of a sentence that asks, supposes, denies or plans, and so concludes nothing."""
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
STATES = re.compile(
    r".*(?:\b(?:is|are|was|were|equal to|equals?|gets?|got|obtains?|have|has|gives|yields|becomes|costs?|makes"
    r"|takes|be|exactly)\b"
    r"|\b(?:es|est|ist|sind|sont|sono|son|hay|il y a(?: donc)?|gibt es|beträgt|vale|valent|vaut|tiene|hat|haben)\b"
    r"|\s[éè]\s|\b(?:равн[аоы]|равен|составляет|является|будет)\b|[是为有]|等于"
    r"|(?<![\d\s]):(?=\s)|⇒|→|\\implies|\\Rightarrow)\s*",
    re.IGNORECASE | re.DOTALL,
)
"""A sentence up to its last verb or arrow; the value follows."""
FILLER = re.compile(
    r"(?:(?:a|the)\s+(?:grand\s+)?total\s+of"
    r"|donc|ainsi|por tanto|quindi|portanto|exactly|therefore|thus|equal\s+to|simply|just)\s+",
    re.IGNORECASE,
)
OPENING = re.compile(
    r"(?:(?:so|thus|therefore|hence|then|finally|and|in total|we get|we have)\b[\s,]*)+", re.IGNORECASE
)
REASON = re.compile(r"\s\(?(?:because|since|whereas|so that|due to|as required|as desired)\b", re.IGNORECASE)
CLAUSE = re.compile(rf"{REASON.pattern}|\s\(?(?:which|where|when|for which|by the)\b", re.IGNORECASE)
"""The start of a clause that explains a value. A phrase may hold such a word itself: the house by the sea."""
ENDS_OPEN = re.compile(
    r"\b(?:and|then|so|we|which|that|the|an|is|are|of|to|by|for|with|but|or|as|because|since|now|next|must|equals?|plus"
    r"|minus|times|therefore|thus|hence)\s*,?$",
    re.IGNORECASE,
)
"""The end of a sentence that is cut in the middle."""
UNFINISHED = re.compile(
    r"\b(?:and|then|so|we|which|that|the|a|an|is|are|of|to|by|in|for|with|but|or|as|because|since|now|next)\b",
    re.IGNORECASE,
)
CORRECT_CHOICE = re.compile(r"\b(?i:option|choice|answer)\s+\(?([A-J])\)?\s+is\s+(?:the\s+)?(?:correct|right)\b")
