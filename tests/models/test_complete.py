"""A model whose files lack a weight is refused by the weight's name, by every way in."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.commands.test_check import recipe
from tests.models.families import SHAPE, build
from tests.models.gguf_files import tiny_llama, write_gguf
from verizero.pipeline.cli import main
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.complete import check_weights
from verizero.pipeline.models.gguf_file import model_folder
from verizero.pipeline.models.load import create_model, load_model, load_tokenizer, save_folder
from verizero.pipeline.models.named import model_named
from verizero.pipeline.models.streamed import model_on_meta, weights_of

Weights = dict[str, torch.Tensor]
UP = "model.layers.1.mlp.up_proj.weight"
EXPERT = "model.layers.1.mlp.experts.2.up_proj.weight"
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}


def prefixed(prefix):
    return lambda weights: {prefix + name: tensor for name, tensor in weights.items()}


def without(name):
    return lambda weights: {n: t for n, t in weights.items() if n != name}


def cut(name):
    return lambda weights: weights | {name: weights[name][:3].contiguous()}


def spoilt(name, number):
    return lambda weights: weights | {name: weights[name].index_fill(0, torch.tensor([0]), number)}


def names_without_base(weights):
    return {name.removeprefix("model."): tensor for name, tensor in weights.items()}


LACKS = "the files lack weights of the model, which would be random: "
ROWS = {
    "an adapter's names": ("tied", prefixed("base_model.model."), "rename these"),
    "names of a compiled model": ("tied", prefixed("_orig_mod."), "_orig_mod.model.embed_tokens.weight, "),
    "names of a wrapped model": ("tied", prefixed("module."), f"{LACKS}lm_head.weight, model.embed_tokens.weight, "),
    "one weight missing": ("tied", without(UP), f"{LACKS}{UP}; save it again"),
    "no output layer that is not tied": ("untied", without("lm_head.weight"), f"{LACKS}lm_head.weight; save"),
    "another shape": ("tied", cut(UP), f"{UP} has the shape [3, 16] in the file and [32, 16] in the model"),
    "one expert missing": ("moe", without(EXPERT), f"{LACKS}{EXPERT}; save it again"),
    "an expert of another shape": ("moe", cut(EXPERT), f"{EXPERT} has the shape [3, "),
    "a sound model": ("tied", dict, ""),
    "a sound model whose output layer is its own": ("untied", dict, ""),
    "a sound model of experts": ("moe", dict, ""),
    "names of the model without a head": ("tied", names_without_base, ""),
}
"""Which model, what is done to its weights, and what the refusal holds."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder, tokenizer = tmp_path_factory.mktemp("models"), character_tokenizer()
    plain = {k: v for k, v in SHAPE.items() if not k.endswith("_id") and k != "vocab_size"} | {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_hidden_layers": 2,
    }
    for name, tied in (("tied", True), ("untied", False)):
        save_folder(
            create_model("qwen2", plain | {"tie_word_embeddings": tied}, tokenizer, 0), tokenizer, folder / name
        )
    save_folder(build("qwen3_moe", MOE), tokenizer, folder / "moe")
    return folder


def changed(source, folder, change):
    shutil.copytree(source, folder)
    weights = change(load_file(folder / "model.safetensors"))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def in_shards(folder):
    """Divide the weights into two files and an index."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {name: f"model-0000{1 + n % 2}-of-00002.safetensors" for n, name in enumerate(weights)}
    for file in set(places.values()):
        save_file({n: weights[n] for n in weights if places[n] == file}, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def as_bin(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def refusal(call):
    try:
        call()
    except ConfigError as exc:
        return str(exc)
    return ""


FILES = (None, in_shards, as_bin)
WAYS = [(row, FILES[number % 3]) for number, row in enumerate(ROWS)]
WAYS += [(row, form) for row in ("one weight missing", "a sound model") for form in FILES if (row, form) not in WAYS]


@pytest.mark.parametrize(("row", "form"), WAYS)
def test_a_weight_that_is_not_in_the_files_is_named(row, form, models, tmp_path, monkeypatch):
    """By the folder's name and that of the hub, whole, and in parts as ranks and bases in bits read it."""
    from huggingface_hub import constants

    which, change, text = ROWS[row]
    home = tmp_path / "models--org--name"
    folder = changed(models / which, home / "snapshots" / "c0ffee", change)
    if form is not None:
        form(folder)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("c0ffee")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for call in (
        lambda: check_weights("org/name"),
        lambda: load_model("org/name"),
        lambda: load_model(str(folder)),
        lambda: model_on_meta(str(folder), torch.float32),
    ):
        message = refusal(call)
        assert text in message
        assert bool(message) == bool(text)


@pytest.mark.parametrize(
    ("row", "number"),
    [("a sound model", float("nan")), ("a sound model", -float("inf")), ("a sound model of experts", float("inf"))],
)
def test_a_weight_that_is_not_finite_is_named(row, number, models, tmp_path):
    which, name = ROWS[row][0], EXPERT if "experts" in row else UP
    folder = changed(models / which, tmp_path / "model", spoilt(name, number))
    assert f"{name.partition('.mlp')[0]}.mlp" in refusal(lambda: load_model(str(folder)))
    empty = model_on_meta(str(folder), torch.float32)
    files = weights_of(empty)
    message = refusal(lambda: [files.rows(n, slice(0, p.shape[0])) for n, p in empty.named_parameters()])
    assert f"the weight {name} has numbers that are NaN or infinite" in message


def test_a_gguf_file_without_a_weight_is_refused(tmp_path):
    pytest.importorskip("gguf")
    model = tiny_llama()
    rest = without(UP)(model.state_dict())
    file = write_gguf(tmp_path / "tiny.gguf", SimpleNamespace(config=model.config, state_dict=lambda: rest))
    assert f"{LACKS}{UP}" in refusal(lambda: model_folder(str(file), tmp_path))
    pointer_in(tmp_path, "tiny.gguf")
    assert "is a pointer of git-lfs" in refusal(lambda: model_folder(str(file), tmp_path))


def pointer_in(folder, name="model.safetensors"):
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")


def without_tokenizer(folder):
    for file in folder.glob("*token*"):
        file.unlink()


def without_shard(folder):
    in_shards(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


FOLDERS = {
    "an adapter alone": (
        lambda folder: (folder / "config.json").rename(folder / "adapter_config.json"),
        "is an adapter (LoRA); merge it into its base",
    ),
    "an adapter next to a model": (
        lambda folder: shutil.copy(folder / "config.json", folder / "adapter_config.json"),
        "has an adapter next to its model; merge it into its base",
    ),
    "a pointer for weights": (pointer_in, "is a pointer of git-lfs, not the file; run git lfs pull"),
    "a pointer for a tokenizer": (
        lambda folder: pointer_in(folder, "tokenizer.json"),
        "is a pointer of git-lfs, not the file",
    ),
    "no tokenizer": (without_tokenizer, "has no tokenizer (tokenizer.json); save it into that folder too"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "has no weights (model.safetensors or "),
    "a shard that is not there": (without_shard, "lacks model-00002-of-00002.safetensors, which its index names"),
}


@pytest.mark.parametrize("row", FOLDERS)
def test_a_folder_that_is_no_whole_model_is_refused_with_its_remedy(row, models, tmp_path):
    change, text = FOLDERS[row]
    folder = tmp_path / "model"
    shutil.copytree(models / "tied", folder)
    change(folder)
    assert text in refusal(lambda: (load_tokenizer(str(folder)), load_model(str(folder))))


@pytest.mark.run
def test_check_names_the_weight_before_a_run(models, tmp_path, capsys):
    folder = changed(models / "tied", tmp_path / "model", without(UP))
    assert main(["check", recipe(tmp_path, model={"create": None, "path": str(folder)})]) != 0
    assert f"{LACKS}{UP}" in capsys.readouterr().out
    folder = changed(models / "tied", tmp_path / "spoilt", spoilt(UP, float("nan")))
    in_shards(folder)
    assert main(["check", recipe(tmp_path, model={"create": None, "path": str(folder)})]) != 0
    assert f"the weight {UP} has numbers that are NaN or infinite" in capsys.readouterr().out
    assert model_named(str(folder)) == str(folder)
