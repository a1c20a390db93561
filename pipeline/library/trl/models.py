"""Models, tokenizers and adapters that a script of TRL holds as objects, as folders and fields of a recipe."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from verizero.pipeline.errors import ConfigError, boundary
from verizero.pipeline.library.trl.config import GRPOConfig
from verizero.pipeline.models.named import model_named

MODEL = "model"
"""Folder in the run's `given/` with a model or a tokenizer that was passed as an object."""
LORA_READ = frozenset({"r", "lora_alpha", "target_modules", "use_rslora"})
LORA_FREE = frozenset(
    {"task_type", "inference_mode", "base_model_name_or_path", "peft_type", "peft_version", "revision", "auto_mapping"}
)
"""Fields of peft's LoraConfig that change nothing in training."""


def model_folder(model: Any, tokenizer: Any, folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the name of the model for a recipe, and fields that go with it. Objects are saved below `folder`.

    model: a name, or a transformers model. tokenizer: one to use in place of the model's own, or None.
    Raises: ConfigError for an object that is no plain model, or for a tokenizer that cannot be put next to the model.
    """
    if hasattr(tokenizer, "image_processor"):
        raise ConfigError(
            "processing_class is a processor of images too, and policies read text alone; give a tokenizer"
        )
    if isinstance(model, str | Path):
        return _with_tokenizer(str(model), tokenizer, folder / MODEL), {}
    if hasattr(model, "peft_config"):
        raise ConfigError(
            "model is a PeftModel; give its base model and peft_config= for new adapters, or merge_and_unload() first"
        )
    if not hasattr(model, "save_pretrained"):
        raise ConfigError(f"model is {type(model).__name__}; give a folder, a hub id or a transformers model")
    dtype = str(model.dtype).removeprefix("torch.")
    if dtype not in ("float32", "bfloat16"):
        raise ConfigError(f"model is in {dtype}; load it in float32 or bfloat16, or give its folder or hub id")
    if tokenizer is None:
        from transformers import AutoTokenizer

        name = getattr(model.config, "_name_or_path", "")
        with boundary(ConfigError, f"no tokenizer for the model {name!r}; give processing_class="):
            tokenizer = AutoTokenizer.from_pretrained(name)
    model.save_pretrained(folder / MODEL)
    tokenizer.save_pretrained(folder / MODEL)
    return str(folder / MODEL), {"model.dtype": dtype} if dtype == "bfloat16" else {}


def require_same_loss(model: str, args: GRPOConfig) -> None:
    """Raise ConfigError if TRL would train this model with dropout, or with a term that balances experts."""
    from transformers import AutoConfig

    with boundary(ConfigError, f"model {model!r} does not load"):
        config = AutoConfig.from_pretrained(model_named(model)).get_text_config()
    dropouts = {n: v for n, v in vars(config).items() if "drop" in n and isinstance(v, int | float) and v > 0}
    used = {n: v for n, v in dropouts.items() if not n.startswith(("classifier", "summary"))}
    if used and not args.disable_dropout:
        raise ConfigError(
            f"the model's config has {', '.join(f'{n}={v:g}' for n, v in used.items())}, and policies train without "
            "dropout here; set disable_dropout=True"
        )
    asked = args.router_aux_loss_coef
    coef = getattr(config, "router_aux_loss_coef", 0.0) if asked is None else asked
    if coef and (asked is not None or hasattr(config, "output_router_logits")):
        raise ConfigError(
            f"router_aux_loss_coef={coef:g} ({'asked for' if asked else 'by the config of the model'}): the loss here "
            "has no term that balances experts; set router_aux_loss_coef=0.0, or use TRL for it"
        )


def _with_tokenizer(name: str, tokenizer: Any, folder: Path) -> str:
    """Return the folder of the model with that tokenizer: the model itself if it is the same as its own."""
    if tokenizer is None or _is_own(name, tokenizer):
        return name
    if not Path(name).is_dir():
        raise ConfigError(
            f"processing_class is another tokenizer than that of {name!r}; save the model and this tokenizer to one "
            "folder by save_pretrained, and name it"
        )
    if folder.exists():
        shutil.rmtree(folder)
    shutil.copytree(name, folder, copy_function=_linked)
    for file in folder.glob("chat_template*"):
        file.unlink()
    for file in folder.glob("*token*"):  # links, which save_pretrained would write through
        file.unlink()
    tokenizer.save_pretrained(folder)
    return str(folder)


def _linked(source: str, target: str) -> None:
    Path(target).symlink_to(Path(source).resolve())


def _is_own(name: str, tokenizer: Any) -> bool:
    from transformers import AutoTokenizer

    with boundary(ConfigError, f"the tokenizer of {name!r} does not load"):
        own = AutoTokenizer.from_pretrained(name)
    return _facts(own) == _facts(tokenizer)


def _facts(tokenizer: Any) -> tuple[Any, ...]:
    """Return what a tokenizer computes with; how it pads is no part of it, as rows are padded here."""
    rules: dict[str, Any] = {}
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:
        rules = {k: v for k, v in json.loads(backend.to_str()).items() if k not in ("padding", "truncation")}
    return rules, tokenizer.get_vocab(), tokenizer.chat_template, tokenizer.eos_token_id, tokenizer.bos_token_id


def lora_of(config: Any, model: str) -> dict[str, Any]:
    """Return `train.lora` for a LoraConfig of peft. Raises: ConfigError naming what it asks for and is not here."""
    if type(config).__name__ != "LoraConfig":
        raise ConfigError(f"peft_config is {type(config).__name__}; adapters here are those of peft.LoraConfig")
    plain = type(config)()
    for name, value in vars(config).items():
        if name not in LORA_READ | LORA_FREE and value != getattr(plain, name, None):
            raise ConfigError(
                f"peft_config has {name}={value!r}; adapters here are low-rank products alone: r, lora_alpha, "
                "target_modules and use_rslora"
            )
    # rslora scales by alpha / sqrt(r), a recipe by alpha / rank.
    alpha = config.lora_alpha * (config.r**0.5 if config.use_rslora else 1)
    return {"rank": config.r, "alpha": alpha, "targets": _targets(config.target_modules, model)}


def _targets(asked: Any, model: str) -> list[str]:
    if asked == "all-linear":
        return []
    if isinstance(asked, str):
        raise ConfigError(
            f"peft_config has target_modules={asked!r}, a pattern; list the ends of names, e.g. ['q_proj']"
        )
    if asked is not None:
        return sorted(asked)
    from transformers import AutoConfig

    from verizero.pipeline.models.lora import usual_targets

    with boundary(ConfigError, f"model {model!r} does not load"):
        kind = AutoConfig.from_pretrained(model).model_type
    targets = usual_targets(kind)
    if not targets:
        raise ConfigError(
            f"peft_config names no target_modules and peft has none for {kind!r}; give them, e.g. 'all-linear'"
        )
    return targets
