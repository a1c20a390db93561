"""Tell the language of a text by its script, and within a script by its most frequent small words.

Made for "answer in Spanish", where a whole answer is in one language; not for single words or mixed texts.
"""

from __future__ import annotations

import re
import unicodedata

SCRIPTS: dict[str, tuple[tuple[int, int], ...]] = {
    "latin": ((0x41, 0x24F), (0x1E00, 0x1EFF)),
    "cyrillic": ((0x400, 0x52F),),
    "greek": ((0x370, 0x3FF), (0x1F00, 0x1FFF)),
    "arabic": ((0x600, 0x6FF), (0x750, 0x77F)),
    "hebrew": ((0x590, 0x5FF),),
    "devanagari": ((0x900, 0x97F),),
    "bengali": ((0x980, 0x9FF),),
    "gurmukhi": ((0xA00, 0xA7F),),
    "gujarati": ((0xA80, 0xAFF),),
    "tamil": ((0xB80, 0xBFF),),
    "telugu": ((0xC00, 0xC7F),),
    "kannada": ((0xC80, 0xCFF),),
    "malayalam": ((0xD00, 0xD7F),),
    "thai": ((0xE00, 0xE7F),),
    "hangul": ((0x1100, 0x11FF), (0xAC00, 0xD7AF)),
    "kana": ((0x3040, 0x30FF),),
    "han": ((0x3400, 0x4DBF), (0x4E00, 0x9FFF)),
}
ALONE = {
    "el": "greek", "he": "hebrew", "bn": "bengali", "pa": "gurmukhi", "gu": "gujarati", "ta": "tamil", "te": "telugu",
    "kn": "kannada", "ml": "malayalam", "th": "thai", "ko": "hangul", "ja": "kana", "zh": "han",
}  # fmt: skip
"""Languages that have a script of their own."""

SMALL_WORDS: dict[str, dict[str, str]] = {
    "latin": {
        "en": "the of and to in is that it for was with as on be at by this are from have not you which or an they we",
        "de": "der die das und ist nicht ein eine zu den mit von sich auf für dem es im auch als wie ich sie wir aus",
        "fr": "le la les de des et est un une dans que qui pour pas sur au du il elle nous vous ce cette avec plus",
        "es": "el la los las de que y en un una es por con para no se del al lo su como más pero muy está son este",
        "it": "il lo la gli le di che e è un una per non con del della sono nel come anche più ma si questo alla i",
        "pt": "o a os as de que e em um uma é não para com por do da no na se mais como dos das ao são foi muito",
        "nl": "de het een en van is dat niet in op te voor met zijn er aan ook als maar om door bij naar wordt ik wij",
        "sv": "och att det är en ett som på av för med inte den till har jag vi de om så men från kan var",
        "da": "og at det er en et som på af for med ikke den til har jeg vi de om så men fra kan var",
        "no": "og at det er en et som på av for med ikke den til har jeg vi de om så men fra kan var",
        "fi": "ja on ei se että hän oli ovat mutta joka kun niin myös kuin tai ne mitä minä sen",
        "pl": "i w na z się że nie do to jest jak o co za po od przez dla jego są być ale czy tak oraz",
        "cs": "a je v na se že to s z do jsou jako pro ale by tak který jeho není po při nebo také",
        "ro": "și de la în a este cu nu că pe un o din care pentru mai sunt se al ale au prin",
        "hu": "a az és hogy nem is egy van volt meg de ez mint csak már még ha vagy amely",
        "tr": "ve bir bu da de için ile çok olarak daha ne gibi olan kadar var değil ama ben sonra en",
        "vi": "và là của có không được cho trong một những người các với này đã để khi như từ",
        "id": "yang dan di ini itu dengan untuk dari tidak pada adalah dalam ke akan juga ada saya oleh",
        "sw": "na ya wa kwa ni katika za la kuwa hii cha hiyo pia kama lakini watu",
    },
    "cyrillic": {
        "ru": "и в не на что я с он как это по но они мы все у за из от его так же было для ты вы был то она",
        "uk": "і в не на що я з він як це до та але вони ми все у за із від його так же було для є який",
        "bg": "и в не на че се да е от за по той като но са това със аз ни те ще има си",
        "sr": "и у да је се на не за од су са као али што који из то ја би",
    },
    "arabic": {
        "ar": "في من على أن إلى هذا التي الذي ما لا كان هو مع عن هذه وهو كل بعد",
        "fa": "و در به از که این را با است برای آن یک می بر تا هم شد های",
        "ur": "اور کے میں کی ہے سے کا کو اس نے پر یہ ہیں کہ بھی ایک",
    },
    "devanagari": {
        "hi": "है के में की और को से का एक पर यह हैं कि नहीं भी इस हो था",
        "mr": "आहे आणि या हे ते आहेत की मध्ये नाही एक होते त्या होता ने",
        "ne": "छ र को मा यो हो छन् पनि गर्न एक भएको ले तर हरु",
    },
}
WORDS = {
    script: {code: frozenset(words.split()) for code, words in table.items()} for script, table in SMALL_WORDS.items()
}
KNOWN = frozenset(ALONE) | {code for table in WORDS.values() for code in table}
MIN_SCRIPT_SHARE, MIN_WORD_SHARE = 0.8, 0.08


def is_written_in(text: str, code: str) -> bool:
    """True if nearly all of `text` is in the language `code`, one of `KNOWN`."""
    return language_of(text) == code


def language_of(text: str) -> str | None:
    """Return the ISO 639-1 code of the text's language, None if it cannot be told."""
    text = unicodedata.normalize("NFC", text[:50_000]).casefold()
    letters = [script for c in text if c.isalpha() and (script := _script(c))]
    if not letters:
        return None
    share = {script: letters.count(script) / len(letters) for script in set(letters)}
    if share.get("kana", 0) > 0.1 and share.get("kana", 0) + share.get("han", 0) >= MIN_SCRIPT_SHARE:
        return "ja"
    main = max(share, key=lambda s: share[s])
    if share[main] < MIN_SCRIPT_SHARE:
        return None
    if main not in WORDS:
        return next((code for code, script in ALONE.items() if script == main), None)
    words = re.findall(r"[^\W\d_]+(?:[\u0900-\u097f]+)*", text)
    hits = {code: sum(w in small for w in words) for code, small in WORDS[main].items()}
    best = max(hits, key=lambda c: hits[c])
    tied = sum(n == hits[best] for n in hits.values()) > 1
    return None if tied or hits[best] < MIN_WORD_SHARE * len(words) else best


def _script(letter: str) -> str | None:
    point = ord(letter)
    return next((s for s, ranges in SCRIPTS.items() if any(low <= point <= high for low, high in ranges)), None)
