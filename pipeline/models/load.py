"""Making, loading and saving a policy as a plain Hugging Face folder."""

from __future__ import annotations

import copy
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from verizero.pipeline.errors import ConfigError, boundary
from verizero.pipeline.models.complete import check_weights, loaded
from verizero.pipeline.models.named import model_named
from verizero.pipeline.models.sizes import settings_of_new
from verizero.pipeline.near import near_path

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def create_model(model_type: str, config: Mapping[str, Any], tokenizer: Any, seed: int, dtype: str = "float32") -> Any:
    """Return a causal LM with random weights drawn from `seed`; the vocabulary and special tokens are the tokenizer's.

    They are drawn in float32 and then rounded to `dtype`, so that all types begin from the same numbers.

    Raises: ConfigError for an architecture or argument that transformers does not know.
    """
    import transformers

    with boundary(ConfigError, f"model.create (model_type {model_type!r}, config {dict(config)!r})"):
        settings = settings_of_new(model_type, config, tokenizer)
        before = torch.get_rng_state()
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(settings)
        if dtype != "float32":
            # A second model that transformers makes in that type itself: it knows which numbers stay float32, such as
            # the frequencies of rotary positions, and a model that is loaded from a checkpoint keeps the same.
            drawn = model.state_dict()
            model = transformers.AutoModelForCausalLM.from_config(settings, dtype=DTYPES[dtype])
            model.load_state_dict(drawn)
        torch.set_rng_state(before)
    ready(model)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def load_model(
    path: str, dtype: str = "float32", device: str = "cpu", revision: str | None = None, copies: bool = True
) -> Any:
    """Return the causal LM at a local folder or, online, of a hub id.

    Without `copies` its weights may be in the file still, and must be made `ready` before anything computes.
    Raises: ConfigError naming the path and the remedy, and weights that are not in its files.
    """
    import transformers

    path = model_named(path, revision)
    remedy = "give a folder saved by save_pretrained, or a hub id on a machine with network"
    check_weights(path, revision)
    what = f"model.path {path!r}"
    with boundary(ConfigError, f"{what} does not load ({remedy})"):
        model = loaded(transformers.AutoModelForCausalLM, path, what, dtype=DTYPES[dtype], revision=revision)
    return (ready(model) if copies else model).to(device)


def ready(model: Any) -> Any:
    """Return the model, with its weights at addresses where every product rounds alike."""
    # A file's tensors are at odd addresses, where some products round differently than at those of a fresh model: a
    # resumed run would end with other bytes.
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model


class NoEndToken(ConfigError):
    """A tokenizer without an end-of-sequence token: generation would never stop."""


def load_tokenizer(path: str, revision: str | None = None) -> Any:
    """Return the tokenizer of a folder or hub id, padding by its end token if it has no other. Raises: ConfigError."""
    import transformers

    path = model_named(path, revision)
    hint = "is it in that folder?" if Path(path).is_dir() else near_path(path, "is that its name on the hub?")
    with boundary(ConfigError, f"the tokenizer of model.path {path!r} does not load ({hint})"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, revision=revision)
    # Without its files transformers makes a tokenizer of the model's kind that knows no text.
    if Path(path).is_dir() and not tokenizer.get_vocab().keys() - tokenizer.get_added_vocab().keys():
        raise ConfigError(f"model.path {path!r} has no tokenizer (tokenizer.json); save it into that folder too")
    if tokenizer.eos_token_id is None:
        raise NoEndToken(f"the tokenizer of {path!r} has no end-of-sequence token; set eos_token in its config")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def save_folder(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write model and tokenizer into `folder`, so that AutoModelForCausalLM.from_pretrained loads it."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def frozen_copy(model: Any, shared: dict[int, Any] | None = None) -> Any:
    """Return a copy that takes no gradient. `shared`: the memo of a deep copy, with what both have in common."""
    return copy.deepcopy(model, shared).eval().requires_grad_(False)


def blocks_of(model: Any) -> list[Any]:
    """Return the blocks of a model of transformers, in order."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]


def recompute_activations(model: Any) -> None:
    """Keep only each block's input for the backward. Raises: ConfigError for an architecture without such blocks."""
    # transformers does so in training mode only. That has dropout, and a ratio must compare the same function.
    if not (blocks := blocks_of(model)):
        raise ConfigError(
            f"train.gradient_checkpointing: model type {model.config.model_type!r} has no blocks that can be computed "
            "again; set it to false"
        )
    model.gradient_checkpointing_enable({"use_reentrant": False})  # the model reports that it does so
    for block in blocks:
        block.forward = partial(_recomputed, block.forward)


def _recomputed(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*inputs, **named)
    # A backward pass may be strict about kernels that repeat their bytes. Within it a forward has its own setting: it
    # has operations that torch refuses there, and blocks that are compiled would be compiled again.
    return checkpoint(
        partial(forward, **named),
        *inputs,
        use_reentrant=False,
        preserve_rng_state=False,
        context_fn=lambda: (nullcontext(), _determinism_of_now()),
    )


def _determinism_of_now() -> AbstractContextManager[None]:
    """Return a context with the present settings for deterministic kernels, to be entered when there are others."""
    enabled, lenient = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )

    @contextmanager
    def as_now() -> Iterator[None]:
        before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(enabled, warn_only=lenient)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])

    return as_now()


def eos_ids(model: Any, tokenizer: Any) -> list[int]:
    """Return all ids that end a response: the tokenizer's and those of the model's generation config."""
    return sorted({int(tokenizer.eos_token_id), *_ends_of(model)})


def stop_at(model: Any, end: int) -> Any:
    """Return the model, whose generation ends with the token `end` too, here and where its folder is served."""
    if end not in (ends := _ends_of(model)):
        model.generation_config.eos_token_id = [*ends, end]
    return model


def _ends_of(model: Any) -> list[int]:
    named = getattr(model.generation_config, "eos_token_id", None)
    return [] if named is None else [int(i) for i in ([named] if isinstance(named, int) else named)]


def quiet() -> None:
    """Keep tokenizers from forking threads, and libraries from printing bars and warnings over our lines."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not torch.cuda.is_available():
        # transformers imports DeepSpeed where it is installed, whatever trains; it would warn that it sees no GPU.
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if not torch.accelerator.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        # torch's compiler, which transformers imports, asks once for triton: 70 MiB that compile nothing here.
        with absent("triton"):
            importlib.import_module("torch._dynamo")
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@contextmanager
def absent(*names: str) -> Iterator[None]:
    """Make imports of these packages fail within the block, as if they were not installed."""
    before = {name: sys.modules.get(name) for name in names}
    sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name, module in before.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module
