"""Models written as GGUF files, read back by transformers: the same weights, log-probs, tokens and template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.families import build, next_logits
from tests.models.gguf_files import CHARACTERS, CHAT
from verizero.pipeline.cli import main
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.gguf_file import model_folder, provenance_of
from verizero.pipeline.models.load import load_model, load_tokenizer, save_folder
from verizero.pipeline.models.text_splits import SPLITS, split_of
from verizero.pipeline.models.to_gguf import write_gguf

gguf = pytest.importorskip("gguf")

(LLAMA_3,) = (ways[0][1] for ways, name in SPLITS.items() if name == "llama-bpe")
TEXT = 'Write {"a": 12345} \\ for Ann.  x\n\né'
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 128,  # more than the tokenizer has
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    tokenizer = character_tokenizer(CHARACTERS)
    tokenizer.chat_template = CHAT
    return tokenizer


def saved(folder: Path, tokenizer: Any, kind: str, **settings: Any) -> Any:
    """A model whose weights are all far from where they begin, in a folder with the tokenizer."""
    model = build(kind, {**SIZES, "eos_token_id": 1, "pad_token_id": 0, **settings})
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator) * (0.1 if p.ndim == 1 else 0.05))
    save_folder(model, tokenizer, folder)
    return model.eval()


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("llama", {"tie_word_embeddings": True}),
        ("mistral", {"tie_word_embeddings": False, "sliding_window": None}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen2", {"tie_word_embeddings": False}),
        ("qwen3", {"head_dim": 128}),  # transformers takes 128 for granted in GGUF files
    ],
)
def test_a_float32_file_computes_what_the_model_did(
    tmp_path: Path, tokenizer: Any, kind: str, settings: dict[str, Any]
) -> None:
    model = saved(tmp_path / "model", tokenizer, kind, **settings)
    written = write_gguf(str(tmp_path / "model"), tmp_path / "x.gguf", "f32", "Tiny")
    assert set(written.types) == {"F32"}
    folder = model_folder(str(tmp_path / "x.gguf"), tmp_path)
    back, tokens = load_model(folder), load_tokenizer(folder)
    assert back.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(w, back.state_dict()[name]) for name, w in model.state_dict().items())
    ids = tokenizer(TEXT)["input_ids"]
    assert tokens(TEXT)["input_ids"] == ids
    assert torch.equal(next_logits(back.eval(), ids), next_logits(model, ids))
    assert tokens.chat_template == CHAT
    assert (tokens.eos_token_id, tokens.pad_token_id) == (1, 0)
    facts = provenance_of(str(tmp_path / "x.gguf"))
    assert (facts["model"], facts["is_quantized"]) == ("Tiny", False)


@pytest.mark.parametrize(("kind", "step"), [("f16", 2**-11), ("bf16", 2**-8), ("q8_0", 1 / 127)])
def test_matrices_are_rounded_to_the_type_and_norms_are_not(
    tmp_path: Path, tokenizer: Any, kind: Any, step: float
) -> None:
    model = saved(tmp_path / "model", tokenizer, "llama", intermediate_size=80)
    written = write_gguf(str(tmp_path / "model"), tmp_path / "x.gguf", kind, "Tiny")
    back = load_model(model_folder(str(tmp_path / "x.gguf"), tmp_path)).state_dict()
    for name, w in model.state_dict().items():
        assert torch.equal(back[name], w) == (w.ndim == 1), name
        scale = w.abs().amax(-1, keepdim=True) if kind == "q8_0" else w.abs()
        assert w.ndim == 1 or bool(((back[name] - w).abs() <= scale * step + 2**-25).all()), name
    odd = {"F16"} if kind == "q8_0" else set()  # `down_proj` has rows of 80, which blocks of 32 do not fill
    assert set(written.types) == {"F32", kind.upper(), *odd}
    assert written.types["F32"] == sum(p.numel() for p in model.parameters() if p.ndim == 1)


def field(file: Path, key: str) -> Any:
    found = gguf.GGUFReader(file).get_field(key)
    return None if found is None else found.contents()


def test_llama_cpp_is_told_how_texts_are_split_and_which_numbers_are_no_tokens(tmp_path: Path, tokenizer: Any) -> None:
    saved(tmp_path / "model", tokenizer, "qwen2")
    write_gguf(str(tmp_path / "model"), tmp_path / "x.gguf", "f32", "Tiny")
    file = tmp_path / "x.gguf"
    assert (field(file, "tokenizer.ggml.model"), field(file, "tokenizer.ggml.pre")) == ("gpt2", "qwen2")
    assert field(file, "tokenizer.ggml.add_bos_token") is False
    kinds, names = field(file, "tokenizer.ggml.token_type"), field(file, "tokenizer.ggml.tokens")
    size = len(tokenizer)
    assert (len(kinds), kinds[:3], set(kinds[size:])) == (128, [3, 3, 1], {5})
    assert len(set(names)) == 128
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        ([{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}], "gpt-2"),
        (
            [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
            ],
            "smollm",
        ),
        (
            [
                {
                    "type": "Split",
                    "pattern": {"Regex": LLAMA_3},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
            "llama-bpe",
        ),
        ([{"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}], None),
        ([{"type": "Digits", "individual_digits": False}], None),
    ],
)
def test_each_way_of_splitting_has_its_name_or_is_refused(
    tmp_path: Path, tokenizer: Any, steps: list[dict[str, Any]], wanted: str | None
) -> None:
    import json

    saved(tmp_path / "model", tokenizer, "llama")
    place = tmp_path / "model" / "tokenizer.json"
    made = json.loads(place.read_text())
    made["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"trim_offsets": True, **step} for step in steps]}
    place.write_text(json.dumps(made))
    settings = json.loads((tmp_path / "model" / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"  # another one would put its own steps in place of these
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    if wanted is None:
        with pytest.raises(ConfigError, match=r"split texts as gpt-2, smollm, qwen2, llama-bpe in llama.cpp; convert"):
            write_gguf(str(tmp_path / "model"), tmp_path / "x.gguf", "f32", "Tiny")
        assert not (tmp_path / "x.gguf").exists()
    else:
        write_gguf(str(tmp_path / "model"), tmp_path / "x.gguf", "f32", "Tiny")
        assert field(tmp_path / "x.gguf", "tokenizer.ggml.pre") == wanted
        assert split_of(load_tokenizer(model_folder(str(tmp_path / "x.gguf"), tmp_path))) == wanted


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("gpt_neox", {}, r"type 'gpt_neox' is not written as GGUF here, but llama, mistral, qwen2, qwen3 are"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            r"positions of the kind 'linear'",
        ),
        ("qwen3", {"attention_bias": True}, r"biases of a model of type 'qwen3'"),
        ("mistral", {"sliding_window": 64}, r"a sliding window of 64 tokens is not written"),
    ],
)
def test_what_a_file_would_not_say_is_refused(
    tmp_path: Path, tokenizer: Any, kind: str, settings: dict[str, Any], reason: str
) -> None:
    saved(tmp_path / "model", tokenizer, kind, **settings)
    with pytest.raises(ConfigError, match=reason):
        write_gguf(str(tmp_path / "model"), tmp_path / "x.gguf", "f32", "Tiny")


def test_the_command_writes_a_runs_model_and_says_what_it_is(
    tmp_path: Path, tokenizer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path / "run" / "model", tokenizer, "qwen2")
    assert main(["gguf", str(tmp_path / "run"), str(tmp_path / "new" / "x.gguf"), "--type", "q8_0"]) == 0
    assert "qwen2, " in (said := capsys.readouterr().out)
    assert "% Q8_0" in said
    assert provenance_of(str(tmp_path / "new" / "x.gguf"))["model"] == "run"
    assert main(["gguf", str(tmp_path / "run"), str(tmp_path / "x.bin")]) == 1
    assert "ends in .gguf" in capsys.readouterr().err
