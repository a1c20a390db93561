"""The ways in which tokenizers split a text before their merges, and llama.cpp's names of them.

A GGUF file has the name alone. transformers does not read it, and would split texts of most models as GPT-2 does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_DIGITS = ("Digits", True)
_OWN_SPLIT, _BYTES = ("ByteLevel", True), ("ByteLevel", False)
SPLITS: Mapping[tuple[tuple[str, Any], ...], str] = {
    (_OWN_SPLIT,): "gpt-2",
    (_DIGITS, _OWN_SPLIT): "smollm",
    (("Split", _WORDS + _REST), _BYTES): "qwen2",
    (("Split", _WORDS + "{1,3}" + _REST), _BYTES): "llama-bpe",
}
"""The ways of splitting a text before merges -> llama.cpp's names of them."""


def split_of(tokenizer: Any) -> str | None:
    """Return llama.cpp's name of how a byte-level tokenizer splits texts; None for any that is not in SPLITS."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    made: dict[str, Any] = {} if backend is None else json.loads(backend.to_str())
    before = made.get("pre_tokenizer") or {}
    steps = before["pretokenizers"] if before.get("type") == "Sequence" else [before]
    is_merged = made.get("model", {}).get("type") == "BPE"
    return SPLITS.get(tuple(_step(step) for step in steps)) if is_merged else None


def _step(step: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the kind of a step and its setting; None for settings that no way in SPLITS has."""
    kind, how = str(step.get("type")), None
    if kind == "ByteLevel" and not step["add_prefix_space"]:
        how = step["use_regex"]
    elif kind == "Digits":
        how = step["individual_digits"]
    elif kind == "Split" and step["behavior"] == "Isolated" and not step["invert"]:
        how = step["pattern"].get("Regex")
    return kind, how


def split_as(tokenizer: Any, name: str) -> None:
    """Make a byte-level tokenizer split texts as llama.cpp does under this name; one that is not in SPLITS is left."""
    ways = next((ways for ways, known in SPLITS.items() if known == name), None)
    if ways is None or split_of(tokenizer) in (None, name):
        return
    from tokenizers import Regex, pre_tokenizers

    make: dict[str, Callable[[Any], Any]] = {
        "ByteLevel": lambda how: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=how),
        "Digits": lambda how: pre_tokenizers.Digits(individual_digits=how),
        "Split": lambda how: pre_tokenizers.Split(Regex(how), "isolated"),
    }
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([make[kind](how) for kind, how in ways])
