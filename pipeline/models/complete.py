"""Refuse a model whose files lack a weight that it has: transformers would draw such a weight at random."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from verizero.pipeline.errors import ConfigError, boundary
from verizero.pipeline.models.named import MERGE, kept_folder
from verizero.pipeline.models.saved_names import as_saved, on_meta

NUM_NAMED = 3
"""Weights that a message names; of the others it gives the number."""
FILES = ("model.safetensors", "pytorch_model.bin")


def check_weights(path: str, revision: str | None = None, numbers: bool = False) -> None:
    """Compare the names and shapes in the files of a folder, or of a hub id on this machine, with the model's weights.

    With `numbers` the files are read whole, and a weight that is not finite is named too.
    Raises: ConfigError naming the weights that are missing or have another shape, or a file that is missing.
    """
    import transformers

    folder = Path(path)
    if not folder.is_dir():
        kept = kept_folder(path, revision)
        files = [] if kept is None else _files(Path(kept))
        if kept is None or not files or not all(file.is_file() for file in files):
            return  # they will be fetched
        folder = Path(kept)
    with boundary(ConfigError, f"model.path {path!r} does not load"):
        settings = transformers.AutoConfig.from_pretrained(folder)
        model = on_meta(transformers.AutoModelForCausalLM, settings, torch.float32)
    what = f"model.path {path!r}"
    check_headers(model, folder, what)
    if numbers:
        from transformers.modeling_utils import load_state_dict

        for file in _files(folder):
            with boundary(ConfigError, f"{what} does not load (is {file.name} cut off or damaged?)"):
                weights = load_state_dict(str(file), map_location="cpu")
            for name, weight in weights.items():
                require_finite(name, weight, what)


def check_headers(model: Any, folder: Path, what: str) -> None:
    """Compare the beginnings of the files in `folder` with a model on `meta`. Raises: ConfigError as `check_weights`.

    Nothing is checked of a model that is quantised in its files, as its weights have other names there.
    """
    files = _files(folder)
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        fault = f"lacks {missing[0]}, which its index names" if missing else f"has no weights ({' or '.join(FILES)})"
        raise ConfigError(f"{what} {fault}; copy or download the whole folder")
    if getattr(model.config, "quantization_config", None) is None:
        with boundary(ConfigError, f"{what} does not load (is a file cut off or damaged?)"):
            report = _report(model, files)
        require_all(report, what)


def loaded(maker: Any, path: Path | str, what: str, **how: Any) -> Any:
    """Return `maker.from_pretrained(path, **how)`, whose weights are all in its files and finite.

    Raises: ConfigError, which begins with `what` and names a weight; whatever transformers raises.
    """
    model, report = maker.from_pretrained(path, output_loading_info=True, ignore_mismatched_sizes=True, **how)
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ConfigError(f"{what} is an adapter, or has one next to it; {MERGE}")
    require_all(report, what)
    for name, weight in model.named_parameters():
        require_finite(name, weight, what)
    return model


def require_all(report: Mapping[str, Any], what: str) -> None:
    """Raise ConfigError if transformers' report of loading names a weight that is missing or has another shape.

    The report leaves out what no file needs to have: weights that are tied to others, and computed buffers.
    """
    if report["mismatched_keys"]:
        odd = sorted(report["mismatched_keys"])
        shapes = _few(
            f"{n} has the shape {list(own)} in the file and {list(model)} in the model" for n, own, model in odd
        )
        raise ConfigError(f"{what}: {shapes}; its config.json is that of another model, or the file is damaged")
    if report["missing_keys"]:
        few = _few(sorted(report["missing_keys"]))
        others = sorted(report["unexpected_keys"])
        names = f", and has weights that the model does not, {_few(others)}: rename these" if others else ""
        raise ConfigError(
            f"{what}: the files lack weights of the model, which would be random: {few}{names or '; save it again'}"
        )


def require_finite(name: str, weight: torch.Tensor, what: str) -> None:
    """Raise ConfigError, which begins with `what`, if a weight has a NaN or an infinite number."""
    if weight.is_meta or not weight.numel() or not weight.is_floating_point():
        return
    # The least and the largest number need no second tensor of this size.
    if weight.element_size() > 1 and not bool(torch.isfinite(torch.stack(weight.detach().aminmax())).all()):
        raise ConfigError(f"{what}: the weight {name} has numbers that are NaN or infinite; get its file again")


def _files(folder: Path) -> list[Path]:
    for name in FILES:
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return [folder / name]
        if index.is_file():
            with boundary(ConfigError, f"{index} cannot be read"):
                return [folder / n for n in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    return []


def _report(model: Any, files: Iterable[Path]) -> dict[str, Any]:
    """Return transformers' report of loading these files into a model on `meta`, from their headers alone."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import convert_and_load_state_dict_in_model
    from transformers.modeling_utils import LoadStateDictConfig, load_state_dict

    own = model.state_dict()
    tensors = {n: t for file in files for n, t in load_state_dict(str(file), map_location="meta").items()}
    mapping = get_model_conversion_mapping(model)
    how = LoadStateDictConfig(
        ignore_mismatched_sizes=True, device_map={"": "meta"}, dtype=torch.float32, weight_mapping=mapping
    )
    result, _ = convert_and_load_state_dict_in_model(copy.deepcopy(model), tensors, how, None)
    model.tie_weights(missing_keys=result.missing_keys, recompute_mapping=False)
    model._adjust_missing_and_unexpected_keys(result)
    report = dict(result.to_dict())
    # A weight that files have in parts, such as experts, lacks some of these, or one has another shape.
    parts = {name: as_saved(model, {name: own[name]}) for name in report["missing_keys"]}
    odd = {part: t.shape for saved in parts.values() for part, t in saved.items() if part in tensors}
    shapes = {(part, tensors[part].shape, shape) for part, shape in odd.items() if tensors[part].shape != shape}
    return report | {
        "mismatched_keys": report["mismatched_keys"] | shapes,
        "missing_keys": {part for name, saved in parts.items() for part in saved if part not in tensors} - odd.keys(),
    }


def _few(names: Iterable[str]) -> str:
    some = list(names)
    more = len(some) - NUM_NAMED
    return ", ".join(some[:NUM_NAMED]) + (f" and {more} more" if more > 0 else "")
