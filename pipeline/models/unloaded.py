"""A policy whose weights stay in their files until ranks divide it: each rank then reads its own rows of each."""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.errors import ConfigError, boundary
from pipeline.models import cpu

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

_FOLDERS: weakref.WeakKeyDictionary[Any, Path] = weakref.WeakKeyDictionary()


def unloaded(path: str, dtype: torch.dtype, revision: str | None = None) -> Any | None:
    """Return the causal LM at a local folder or hub id, its parameters on the device `meta`, its buffers computed.

    None if its files do not have the weights under the model's own names, as those of experts do not.
    Raises: ConfigError naming the path and the remedy.
    """
    import transformers

    remedy = "give a folder saved by save_pretrained, or a hub id on a machine with network"
    with boundary(ConfigError, f"model.path {path!r} does not load ({remedy})"):
        folder = Path(path) if Path(path).is_dir() else _fetched(path, revision)
        settings = transformers.AutoConfig.from_pretrained(folder)
        model = on_meta(transformers.AutoModelForCausalLM, settings, dtype)
        # Where the files are on a hub they name end tokens too, which a model made from its configuration lacks.
        if (folder / "generation_config.json").is_file():
            model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    files = files_of(folder)
    if any(name not in files for name, _ in model.named_parameters()):
        return None
    _FOLDERS[model] = folder
    return model


def folder_of(model: Any) -> Path | None:
    """Return the folder with the weights of a model that `unloaded` made; None for any other model."""
    return _FOLDERS.get(model)


def on_meta(maker: Any, settings: Any, dtype: torch.dtype) -> Any:
    """Return `maker.from_config(settings)`: parameters on `meta`, buffers as the architecture computes them."""
    with torch.device("meta"):
        model = maker.from_config(settings, dtype=dtype)
    for module in model.modules():
        own = {name: b for name, b in module._buffers.items() if b is not None}
        for name, b in own.items():
            module._buffers[name] = torch.zeros_like(b, device="cpu")
        if own:
            # Frequencies of rotary positions, for example, are in no file.
            model._init_weights(module)
    cpu.use_onednn(model)  # as `load.ready` does: the same products round alike
    return model.eval()


def files_of(folder: Path) -> dict[str, Path]:
    """Return the file of each weight in a Hugging Face folder, by name; empty without safetensors files."""
    from safetensors import safe_open

    if (folder / INDEX).is_file():
        return {name: folder / file for name, file in json.loads((folder / INDEX).read_text())["weight_map"].items()}
    if not (folder / SINGLE).is_file():
        return {}
    with safe_open(folder / SINGLE, "pt") as file:
        return dict.fromkeys(file.keys(), folder / SINGLE)


def read_rows(files: Mapping[str, Path], name: str, rows: slice) -> Tensor:
    """Return those rows of a weight; the rest of it is not read."""
    from safetensors import safe_open

    with safe_open(files[name], "pt") as file:
        read: Tensor = file.get_slice(name)[rows.start : rows.stop]
        return read


def _fetched(path: str, revision: str | None) -> Path:
    """Return the local folder of a hub's model, of which configuration and weights are there."""
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(path, revision=revision, allow_patterns=["*.json", "*.safetensors"]))
