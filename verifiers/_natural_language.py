"""Tell the language of a text by its script, and within a script by its most frequent small words.

Made for "answer in Spanish", where a whole answer is in one language; not for single words or mixed texts.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

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
        "en": "the of and to in is that it for was with as on be at by this are from have not you which or"
        " an they we i do does he she my your our what where who how very much there will can all one"
        " has had if but so me good everyone life like",
        "de": "der die das und ist nicht ein eine zu den mit von sich auf für dem es im auch als wie ich"
        " sie wir aus guten morgen tag vielen dank ja nein du er was wo heute mein dein sehr hat haben"
        " war wird aber oder wenn man",
        "fr": "le la les de des et est un une dans que qui pour pas sur au du il elle nous vous ce cette"
        " avec plus je ne sais où à mes ses mon son bonjour merci beaucoup bien fait faire très tous"
        " tout aujourd hui chat jour mais ou si elles ils on suis été y j",
        "es": "el la los las de que y en un una es por con para no se del al lo su como más pero muy está"
        " son este yo tú él ella hola cómo dónde me te mi tu muchas mucho gracias hoy hace tengo tiene"
        " vamos mañana buenos días todos gato sí qué cuando si ser hay a",
        "it": "il lo la gli le di che e è un una per non con del della sono nel come anche più ma si questo"
        " alla i a ho hai ha io tu lui lei noi voi mi ti ci vi sei siamo dove chi cosa perché molto"
        " molta tutti tutto ogni oggi domani ciao grazie buongiorno fa dell nell all sull dall al dal"
        " dalla nella nei degli delle dei alle ed mio tuo suo nostro quello questa sì gatto mare bene"
        " andiamo due",
        "pt": "o a os as de que e em um uma é não para com por do da no na se mais como dos das ao são foi"
        " muito eu você ele ela nós olá onde amanhã hoje obrigado está tenho dois gato gosto à vamos"
        " me meu minha seu sua isso este esta sim até já tem",
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
        "ru": "и в не на что я с он как это по но они мы все у за из от его так же было для ты вы был то"
        " она привет дела меня мне есть нет очень",
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
        "hi": "है के में की और को से का एक पर यह हैं कि नहीं भी इस हो था मैं हम तुम आप मुझे रहा रही रहे"
        " बहुत हूँ थी थे जो जिसे तो ने लिए कल अपने आपका क्या गया गई किया करने होता होती होते जा",
        "mr": "आहे आणि या हे ते आहेत की मध्ये नाही एक होते त्या होता ने मी तू तो ती आम्ही तुम्ही मला तुमचे"
        " काय खूप आज उद्या होती हा ही त्यांच्या",
        "ne": "छ र को मा यो हो छन् पनि गर्न एक भएको ले तर हरु म हामी तिमी तपाईं के धेरै थियो थिए हुन्छ हुन्"
        " छु उनले उसले मलाई यस त्यो गरे गरेको हरू",
    },
}
WORDS = {
    script: {code: frozenset(words.split()) for code, words in table.items()} for script, table in SMALL_WORDS.items()
}
ENDINGS = {
    "it": r"zion[ei]|ità|ett[oaie]|ezz[ae]|agg?i[oa]|iamo|issim[oaie]|ucci[oa]|ghi|chi",
    "es": r"ción|ciones|dad|dades|ando|iendo|amos|imos|ñ[oa]s?|illo|illa",
    "pt": r"ção|ções|dade|ão|ões|nh[oa]s?|lh[oa]s?",
    "fr": r"eux|eau|eaux|ement|aient|ière",
    "mr": r"च्या|चा|ची|चे|चं|ला|ून|ांना|ांनी|ासाठी|ावर|तात|ते|तो|ळा|ळे|ाचे",
    "ne": r"को|मा|ले|लाई|हरू|हरु|बाट|होस्|न्छ|न्छन्|न्छौं|दै|ेर|र्छ|ियो|्यो|एको",
}
"""Endings that are much more frequent in a language than in its neighbours, for texts with few small words."""
ENDS = {code: re.compile(rf"(?:{pattern})$") for code, pattern in ENDINGS.items()}
KNOWN = frozenset(ALONE) | {code for table in WORDS.values() for code in table}
MIN_SCRIPT_SHARE, MIN_LATIN_SHARE, MIN_WORD_SHARE = 0.45, 0.7, 0.08
SYLLABLES = {"hangul", "kana", "han"}
"""Scripts whose letters stand for syllables or words, and so count twice: names and terms next to them are in Latin."""
WORD = re.compile(r"(?:[^\W\d_]|[\u0900-\u0963\u0971-\u097f])+")


def language_of(text: str) -> str | None:
    """Return the ISO 639-1 code of the text's language, None if it cannot be told."""
    text = unicodedata.normalize("NFC", text[:50_000]).casefold()
    counts = Counter(script for c in text if (script := _script(c)))
    for script in SYLLABLES & counts.keys():
        counts[script] *= 2
    if counts["kana"] > 0.1 * (counts["kana"] + counts["han"]):
        counts["kana"] += counts.pop("han", 0)
    main = max(counts, key=lambda s: counts[s], default="")
    if not main or counts[main] < (MIN_LATIN_SHARE if main == "latin" else MIN_SCRIPT_SHARE) * counts.total():
        return None
    if main not in WORDS:
        return next((code for code, script in ALONE.items() if script == main), None)
    words = [w for w in WORD.findall(text) if _script(w[0]) == main]
    hits = {code: sum(w in small for w in words) for code, small in WORDS[main].items()}
    for code in ENDS.keys() & hits.keys():
        hits[code] += sum(ENDS[code].search(w) is not None and w not in WORDS[main][code] for w in words)
    best = max(hits, key=lambda c: hits[c])
    tied = sum(n == hits[best] for n in hits.values()) > 1
    return None if tied or hits[best] < MIN_WORD_SHARE * len(words) else best


def _script(letter: str) -> str | None:
    point = ord(letter)
    if not (letter.isalpha() or unicodedata.category(letter).startswith("M")):
        return None
    return next((s for s, ranges in SCRIPTS.items() if any(low <= point <= high for low, high in ranges)), None)
