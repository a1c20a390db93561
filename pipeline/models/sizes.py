"""The sizes of a model, without its weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from verizero.pipeline.errors import ConfigError, boundary
from verizero.pipeline.models.gguf_file import is_gguf, located
from verizero.pipeline.models.named import model_named
from verizero.pipeline.models.saved_names import on_meta


def files_of_model(path: str, revision: str | None = None) -> dict[str, Any]:
    """Return the arguments with which transformers finds a folder, a hub id or a GGUF file. Raises: ConfigError."""
    if not is_gguf(path):
        return {
            "pretrained_model_name_or_path": model_named(path, revision),
            **({"revision": revision} if revision else {}),
        }
    file: Path = located(path)
    return {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}


def settings_of(path: str, revision: str | None = None) -> Any:
    """Return the configuration of a model. Raises: ConfigError for one that does not load."""
    import transformers

    where = files_of_model(path, revision)
    with boundary(ConfigError, f"model {path!r} does not load (give a folder saved by save_pretrained, or a hub id)"):
        return transformers.AutoConfig.from_pretrained(**where)


def settings_of_new(model_type: str, config: Mapping[str, Any], tokenizer: Any) -> Any:
    """Return the configuration of a new model; the vocabulary and special tokens are the tokenizer's.

    Raises: whatever transformers raises for an architecture or argument that it does not know.
    """
    import transformers

    values = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        **config,
    }
    return transformers.AutoConfig.for_model(model_type, **values)


def num_parameters(settings: Any) -> int:
    """Return the number of parameters of a causal LM of this configuration. Raises: ConfigError."""
    import transformers

    with boundary(ConfigError, f"a model of type {getattr(settings, 'model_type', None)!r} cannot be made"):
        return int(on_meta(transformers.AutoModelForCausalLM, settings, torch.float32).num_parameters())


def head_size(settings: Any) -> int:
    """Return how many numbers a head's query has, of a text model's configuration."""
    return int(getattr(settings, "head_dim", None) or settings.hidden_size // settings.num_attention_heads)
