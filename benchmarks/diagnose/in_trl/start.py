"""The model that every run begins with: two layers, a token a character, and a few seconds of demonstrations."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from benchmarks.diagnose.in_trl.tasks import ASSISTANT, END, PAD, USER, easy_rows, hard_rows, rows
from benchmarks.diagnose.rows import Row, demonstration
from verizero.pipeline.seeds import stream

CHARACTERS = "0123456789+-*=()<>/, .\nabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ\\{}:?|_"
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
STEPS, BATCH, RATE, CAREFUL = 700, 48, 4e-3, 0.4


def tokenizer_of() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token for each character, and a chat template of its own."""
    vocab = {token: i for i, token in enumerate([PAD, USER, ASSISTANT, END, "<unk>", *CHARACTERS])}
    tokens = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    tokens.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens,
        pad_token=PAD,
        eos_token=END,
        unk_token="<unk>",
        additional_special_tokens=[USER, ASSISTANT],
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def text_of(task: Row, draw: random.Random, right: float) -> str:
    """Return a demonstration: `right` is the chance that a sum is worked out."""
    if "+" in task["question"]:
        answer = demonstration(task, right, draw)
    elif "*" in task["question"]:
        answer = f"\\boxed{{{draw.randrange(1000, 9999)}}}"
    else:
        answer = f"\\boxed{{{task['answer']}}}"
    return f"{USER}{task['question']}{END}{ASSISTANT}{answer}{END}"


def make(folder: Path, seed: int) -> Path:
    """Train the start model of a seed into `folder` unless it is there, and return the folder."""
    if (folder / "start.json").is_file():
        return folder
    torch.manual_seed(seed)
    tokenizer = tokenizer_of()
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=96,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config)
    draw = stream(seed, "diagnose", "trl demonstrations")
    train, _ = rows(seed)
    sums, others = train, [*easy_rows(), *hard_rows(seed)[:100]]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 20, 1.05 - step / STEPS)
        tasks = [draw.choice(sums if draw.random() < 0.75 else others) for _ in range(BATCH)]
        batch = tokenizer([text_of(t, draw, CAREFUL) for t in tasks], padding=True, return_tensors="pt")
        starts = (batch["input_ids"] == tokenizer.convert_tokens_to_ids(ASSISTANT)).int().argmax(dim=1)
        places = torch.arange(batch["input_ids"].shape[1])
        trains = (places > starts[:, None]) & (batch["attention_mask"] == 1)
        labels = batch["input_ids"].masked_fill(~trains, -100)
        loss = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "start.json").write_text(json.dumps({"seed": seed, "loss": round(float(loss), 4)}))
    return folder
