r"""A character tokenizer in the Hugging Face format, for models that are made here.

It is a byte-level BPE of the Qwen2 kind whose only merges put the bytes of one character together. That class is
chosen with care: next to a `config.json` of type qwen2, `AutoTokenizer` loads Qwen2Tokenizer whatever class the folder
names (transformers 5), so any other kind of tokenizer would come back as an empty one.
"""

from __future__ import annotations

import unicodedata
from typing import Any

from verizero.pipeline.errors import DataError

PAD, EOS = "<pad>", "<eos>"
CHARACTERS = "0123456789+-*=()<>/, .\nabcdefghijklmnopqrstuvwxyz\\{}:?"
"""The characters of the built-in domains, and a few more."""


def character_tokenizer(characters: str = CHARACTERS) -> Any:
    """Return a tokenizer with the tokens <pad> (0), <eos> (1), and one for each of `characters`.

    Encoding and decoding give back the same text; "<eos>" in a text is five characters, never the token. Characters
    of several bytes in UTF-8 add tokens for their bytes, which no text is encoded to while the character is known.

    Raises: DataError if there are no characters, or some are changed by Unicode's NFC (the tokenizer applies it).
    """
    from transformers import Qwen2Tokenizer

    known = list(dict.fromkeys(characters))
    if not known:
        raise DataError("a character tokenizer needs characters, got none; set model.create.characters")
    _check_normal(known)
    # Byte-level BPE writes a byte as GPT-2 does: as itself where it is printable, else as a letter from U+0100 on.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {b: chr(b) for b in printable}
    letters |= {b: chr(0x100 + i) for i, b in enumerate(b for b in range(256) if b not in printable)}
    vocab = {PAD: 0, EOS: 1}
    merges: list[tuple[str, str]] = []
    for character in known:
        written = [letters[b] for b in character.encode()]
        for letter in written:
            vocab.setdefault(letter, len(vocab))
        left = written[0]
        # Joins the bytes from the left, one merge after another; characters with a common beginning share merges.
        for letter in written[1:]:
            if left + letter not in vocab:
                merges.append((left, letter))
                vocab[left + letter] = len(vocab)
            left += letter
    return Qwen2Tokenizer(
        vocab=vocab,
        merges=merges,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=None,
        # A text that spells "<eos>" must not end a response.
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        padding_side="left",
        # An extra argument is saved with the tokenizer, and so tells `unknown_characters` after loading.
        characters="".join(known),
    )


def unknown_characters(tokenizer: Any, text: str) -> str:
    """Return the characters of `text` that a character tokenizer does not know; empty for other tokenizers."""
    characters = tokenizer.init_kwargs.get("characters")
    if not isinstance(characters, str):
        return ""
    unknown = set(text).difference(characters)
    return "".join(c for c in dict.fromkeys(text) if c in unknown) if unknown else ""


def _check_normal(known: list[str]) -> None:
    """Raise DataError for characters that NFC changes: decoding would not give back the same text."""
    outside_ascii = [c for c in known if not c.isascii()]
    for second in outside_ascii:
        for text in (second, *(first + second for first in known)):
            if not unicodedata.is_normalized("NFC", text):
                raise DataError(
                    f"character {second!r} (U+{ord(second):04X}) does not survive Unicode's NFC normalisation"
                    f"{'' if text == second else f' after {text[0]!r}'}; leave it out of model.create.characters"
                )
