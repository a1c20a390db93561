"""Tiny GGUF files, written by the package `gguf` from weights that a test keeps."""

import string

import numpy as np
import torch
import transformers

from verizero.pipeline.data.tokenizer import EOS, PAD, character_tokenizer

CHARACTERS = string.printable[:95] + "\né"
"""The last one has two bytes, and so a merge: without one transformers takes the file for another kind of tokenizer."""
CHAT = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
HEADS, KEY_HEADS, WIDTH = 4, 2, 32
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}


def tiny_llama(seed=0, head_width=WIDTH // HEADS):
    """Return a model of two blocks with random weights, whose vocabulary is that of the printable characters."""
    tokenizer = character_tokenizer(CHARACTERS)
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HEADS * head_width,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config)


def write_gguf(path, model, quantized=False):
    """Write `model` into a GGUF file: its matrices as Q8_0, or all as float32."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    _write_settings(writer, model.config)
    _write_tokenizer(writer)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue  # tied to the embedding
        values = _as_stored(name, tensor.numpy().astype(np.float32))
        if quantized and values.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(_gguf_name(name), gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(_gguf_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_settings(writer, config):
    writer.add_name("Tiny")
    writer.add_license("apache-2.0")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)


def _write_tokenizer(writer):
    tokenizer = character_tokenizer(CHARACTERS)
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if t in (PAD, EOS) else 1 for t in tokens])  # 3: control, 1: normal
    writer.add_token_merges(["Ã ©"])  # the bytes of é, as byte-level vocabularies write them
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_bos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_chat_template(CHAT)


def _gguf_name(name):
    if name in NAMES:
        return NAMES[name]
    _, _, block, rest = name.split(".", 3)
    return f"blk.{block}.{NAMES[rest]}"


def _as_stored(name, values):
    """Put the rows of queries and keys into the order of GGUF's llama, where a rotary pair is two neighbours."""
    heads = {"q_proj": HEADS, "k_proj": KEY_HEADS}.get(name.split(".")[-2])
    if heads is None:
        return values
    rows, columns = values.shape
    return values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
