"""A model of a few thousand parameters, rows of sums, and settings that keep a run short."""

import string
from pathlib import Path

import verizero as vz
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.models.load import create_model, save_folder

ROWS = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(6) for b in range(5)]
SMALL = {"rollout.max_response_tokens": 8, "rl.prompts_per_step": 2, "rl.group_size": 4, "evaluation.k": 1}
SIZES = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64, "tie_word_embeddings": True,
}  # fmt: skip
CHARACTERS = string.digits + string.ascii_letters + string.punctuation + " \n"


def save_tiny(folder: Path, positions: int = 64, chat: str | None = None) -> None:
    """Write a model with random weights, which reads `positions` characters, and its tokenizer with a chat template."""
    tokenizer = character_tokenizer(CHARACTERS)
    tokenizer.chat_template = chat
    sizes = {**SIZES, "max_position_embeddings": positions}
    save_folder(create_model("qwen2", sizes, tokenizer, 0), tokenizer, folder)


def weights(run: vz.TrainedRun) -> bytes:
    """The trained weights, as they are in the file."""
    return (run.model / "model.safetensors").read_bytes()
