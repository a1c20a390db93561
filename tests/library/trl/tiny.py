"""A tiny model with a tokenizer of characters, and sums to ask it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.models.load import create_model, save_folder

SIZES = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 640, "tie_word_embeddings": True,
}  # fmt: skip
CHARACTERS = "0123456789+-*=()<>/, .\nabcdefghijklmnopqrstuvwxyz\\{}:?"
TURNS = (
    "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)
ROWS: list[dict[str, Any]] = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(6) for b in range(4)]
CHATS: list[dict[str, Any]] = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in ROWS]


def tokenizer(chat: bool = False) -> Any:
    made = character_tokenizer(CHARACTERS)
    made.chat_template = TURNS if chat else None
    return made


def model() -> Any:
    return create_model("qwen2", SIZES, tokenizer(), 0)


def save_tiny(folder: Path, chat: bool = False) -> str:
    """Save the model, and return its folder."""
    save_folder(model(), tokenizer(chat), folder)
    return str(folder)
