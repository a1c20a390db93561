"""Models written as GGUF files, for llama.cpp and what is built on it.

The names of weights are those of the package `gguf`. Norms and biases stay float32. A tokenizer is written only if
llama.cpp splits texts as it does: the file names the way, and llama.cpp knows each by one name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.files import disk_errors
from verizero.pipeline.models.gguf_file import require_packages
from verizero.pipeline.models.load import load_model, load_tokenizer
from verizero.pipeline.models.sizes import head_size, settings_of
from verizero.pipeline.models.text_splits import SPLITS, split_of

NumberType = Literal["f32", "f16", "bf16", "q8_0"]
FILE_TYPES: Mapping[NumberType, str] = {
    "f32": "ALL_F32",
    "f16": "MOSTLY_F16",
    "bf16": "MOSTLY_BF16",
    "q8_0": "MOSTLY_Q8_0",
}
"""Type of the matrices -> llama.cpp's name of such files."""
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""transformers' model types -> llama.cpp's architectures."""
ELSE = "convert the model's folder by llama.cpp's convert_hf_to_gguf.py"
PAIRED = "llama"
"""The architecture whose rotary pairs are neighbours; in transformers they are half a head apart."""
BLOCK = 32
"""Numbers of a matrix's row that share a scale in Q8_0."""


@dataclass(frozen=True, slots=True)
class Written:
    """The contents of a GGUF file."""

    architecture: str
    num_bytes: int
    types: Mapping[str, int]
    """Type -> number of weights in it."""


def write_gguf(folder: str, file: Path, number_type: NumberType, name: str) -> Written:
    """Write the model and the tokenizer of a Hugging Face folder into a GGUF file, which is replaced as a whole.

    name: of the model, in the file's metadata. A matrix whose rows do not fill blocks of Q8_0 is written as float16.

    Raises: ConfigError for an architecture, a setting or a tokenizer that the file would not say; RunError if the disk
    does not take it.
    """
    require_packages(f"{file}: writing it")
    import gguf

    config, tokenizer = settings_of(folder), load_tokenizer(folder)
    architecture, split = _architecture_of(config), _split_of(tokenizer)
    model = load_model(folder, "bfloat16" if config.dtype == torch.bfloat16 else "float32", copies=False)
    names = names_in_file(architecture, config)
    partial = file.with_name(f".{file.name}-partial")
    file.parent.mkdir(parents=True, exist_ok=True)
    with disk_errors(f"writing {file}"):
        writer = gguf.GGUFWriter(partial, architecture, use_temp_file=True)  # else all weights stay in memory
        try:
            writer.add_name(name)
            writer.add_file_type(gguf.LlamaFileType[FILE_TYPES[number_type]])
            writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
            _write_settings(writer, config)
            _write_tokenizer(writer, tokenizer, split, config.vocab_size)
            types: dict[str, int] = {}
            for tensor_name, tensor in _weights(model, names, architecture):
                kind = _type_of(gguf, tensor, number_type)
                values = gguf.quantize(tensor.float().numpy(), kind)
                writer.add_tensor(tensor_name, values, raw_dtype=kind)
                types[kind.name] = types.get(kind.name, 0) + tensor.numel()
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            os.replace(partial, file)
        finally:
            partial.unlink(missing_ok=True)
    return Written(architecture, file.stat().st_size, types)


def _architecture_of(config: Any) -> str:
    """Return llama.cpp's architecture. Raises: ConfigError for one, or for a setting, that is not written here."""
    kind = config.model_type
    if kind not in ARCHITECTURES:
        raise ConfigError(
            f"a model of type {kind!r} is not written as GGUF here, but {', '.join(ARCHITECTURES)} are; {ELSE}"
        )
    rope, window = config.rope_parameters["rope_type"], getattr(config, "sliding_window", None)
    if rope != "default":
        raise ConfigError(f"positions of the kind {rope!r} (rope_parameters) are not written as GGUF here; {ELSE}")
    if getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False):
        raise ConfigError(f"biases of a model of type {kind!r} are not written as GGUF here; {ELSE}")
    if window is not None and window < config.max_position_embeddings:
        raise ConfigError(
            f"a sliding window of {window} tokens is not written as GGUF here, and without it longer texts would have "
            "other probabilities; " + ELSE
        )
    return ARCHITECTURES[kind]


def _write_settings(writer: Any, config: Any) -> None:
    width = head_size(config)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def names_in_file(architecture: str, config: Any) -> Any:
    """Return the package's map from transformers' names of weights to those in files of llama.cpp's architecture."""
    import gguf

    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    return gguf.get_tensor_name_map(arch, config.num_hidden_layers)


def paired_heads(architecture: str, name: str, config: Any) -> int | None:
    """Return the heads of a weight, by transformers' name, whose rows a file has as rotary pairs; None for others."""
    heads: dict[str, int] = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    return heads.get(name.split(".")[-2]) if architecture == PAIRED else None


def _weights(model: Any, names: Any, architecture: str) -> Iterator[tuple[str, Tensor]]:
    """Yield each weight of the model under its name in the file. Raises: ConfigError for one that has none."""
    config, tied = model.config, model.config.tie_word_embeddings
    for name, tensor in model.state_dict().items():
        if tied and name == "lm_head.weight":
            continue
        written = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if written is None:
            raise ConfigError(f"the weight {name} has no name in GGUF files of the architecture {architecture}")
        num_heads = paired_heads(architecture, name, config)
        if num_heads is not None:
            halves = tensor.reshape(num_heads, 2, -1, *tensor.shape[1:])
            tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
        yield written, tensor


def _type_of(gguf: Any, tensor: Tensor, number_type: NumberType) -> Any:
    """Return the type in which a weight is written. Raises: ConfigError if float16 cannot hold it."""
    kinds = gguf.GGMLQuantizationType
    if tensor.ndim == 1:
        return kinds.F32
    kind = kinds[number_type.upper()]
    if kind == kinds.Q8_0 and tensor.shape[-1] % BLOCK:
        kind = kinds.F16
    if kind == kinds.F16 and float(tensor.abs().max()) > torch.finfo(torch.float16).max:
        raise ConfigError("a weight is too large for float16; write the file as bf16")
    return kind


def _split_of(tokenizer: Any) -> str:
    """Return llama.cpp's name of how the tokenizer splits texts. Raises: ConfigError if it has none that we know."""
    name = split_of(tokenizer)
    if name is None:
        raise ConfigError(
            f"the tokenizer ({type(tokenizer).__name__}) is none of those that are written as GGUF here, which split "
            f"texts as {', '.join(SPLITS.values())} in llama.cpp; {ELSE}"
        )
    return name


def _write_tokenizer(writer: Any, tokenizer: Any, split: str, vocab_size: int) -> None:
    """Write tokens, merges, special tokens and chat template; numbers without a token get one that no text has."""
    import gguf

    made = json.loads(tokenizer.backend_tokenizer.to_str())
    added = {int(token["id"]): token for token in made["added_tokens"]}
    by_id = {number: token for token, number in tokenizer.get_vocab().items()}
    tokens, kinds = [], []
    for number in range(vocab_size):
        tokens.append(by_id.get(number, f"[PAD{number}]"))
        if number not in by_id:
            kinds.append(gguf.TokenType.UNUSED)
        elif number not in added:
            kinds.append(gguf.TokenType.NORMAL)
        else:
            kinds.append(gguf.TokenType.CONTROL if added[number]["special"] else gguf.TokenType.USER_DEFINED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in made["model"]["merges"]])
    for kind in ("bos", "eos", "unk", "pad"):
        number = getattr(tokenizer, f"{kind}_token_id")
        if number is not None:
            getattr(writer, f"add_{kind}_token_id")(number)
    ids = tokenizer("a")["input_ids"]
    writer.add_add_bos_token(tokenizer.bos_token_id is not None and ids[0] == tokenizer.bos_token_id)
    writer.add_add_eos_token(ids[-1] == tokenizer.eos_token_id)
    if tokenizer.chat_template is not None:
        writer.add_chat_template(tokenizer.chat_template)
