"""Tiny causal LMs with random weights large enough that every part of the architecture shows in the logits."""

import copy
import json
from functools import cache
from types import MethodType
from typing import Any

import torch
import transformers

VOCAB = 23
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}

FAST: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2 one key head": ("qwen2", {"num_key_value_heads": 1, "tie_word_embeddings": False}),
    "qwen3 wide heads": ("qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3 with bias": ("qwen3", {"head_dim": 8, "attention_bias": True, "tie_word_embeddings": False}),
    "llama": ("llama", {"num_key_value_heads": 4, "tie_word_embeddings": False}),
    "llama with bias": ("llama", {"attention_bias": True, "tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
    "llama narrow heads": ("llama", {"head_dim": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}),
    "mistral": ("mistral", {"sliding_window": None, "tie_word_embeddings": False}),
    "mistral wide heads": ("mistral", {"sliding_window": None, "head_dim": 12}),
}
"""Models that the fast path computes."""

SLOW: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "gemma2 with softcapping": ("gemma2", {"head_dim": 8, "final_logit_softcapping": 2.0, "sliding_window": 64}),
    "llama with scaled rotations": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}},
    ),
    "mistral with a sliding window": ("mistral", {"sliding_window": 4}),
}
"""Models that it leaves to transformers."""


def tiny(name: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """The model `name` of FAST or SLOW, in evaluation mode."""
    model_type, changes = {**FAST, **SLOW}[name]
    return build(model_type, changes, seed, dtype)


def build(model_type: str, changes: dict[str, Any], seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """A model of that type: SHAPE with `changes` (GPT-2 has names of its own for the shape)."""
    return copy.deepcopy(_built(model_type, json.dumps(changes, sort_keys=True), seed, dtype))


@cache
def _built(model_type: str, changes: str, seed: int, dtype: torch.dtype) -> Any:
    """The model that `build` copies, which takes half the time of making it."""
    shape = {k: v for k, v in SHAPE.items() if model_type != "gpt2" or k.endswith("_id") or k == "vocab_size"}
    config = transformers.AutoConfig.for_model(model_type, **{**shape, **json.loads(changes)})
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()
    scatter(model, seed)
    return model


def with_exact_norms(model: Any) -> Any:
    """The model, with norms in the type of their input: those of transformers are in float32, whatever it is in."""
    for norm in model.modules():
        if type(norm).__name__.endswith("RMSNorm"):
            norm.forward = MethodType(_norm, norm)
    return model


def _norm(norm: Any, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = norm.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon))
    return out


@torch.no_grad()
def scatter(model: Any, seed: int) -> None:
    """Draw every parameter again, biases and norms too, which a fresh model has at 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        spread = 0.25 if p.dim() > 1 else 0.4
        p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * spread + (p.dim() == 1) * 0.3)


@torch.no_grad()
def next_logits(model: Any, ids: list[int]) -> torch.Tensor:
    """[V] after `ids`, by the model's own forward on that row alone: no padding, no cache."""
    logits: torch.Tensor = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
    return logits


@torch.no_grad()
def logits_after(model: Any, rows: list[list[int]]) -> torch.Tensor:
    """[rows, V] after each of the rows, as `next_logits`; rows of one length in one forward."""
    wanted: dict[int, torch.Tensor] = {}
    for length in {len(row) for row in rows}:
        places = [i for i, row in enumerate(rows) if len(row) == length]
        logits = model(input_ids=torch.tensor([rows[i] for i in places]), use_cache=False).logits[:, -1]
        wanted |= dict(zip(places, logits, strict=True))
    return torch.stack([wanted[i] for i in range(len(rows))])
