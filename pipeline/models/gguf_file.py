"""Models in GGUF files: read once, made into a Hugging Face folder of float32 weights, and kept under their hash.

`model.path` may be a file `x.gguf`, or `package:NAME/x.gguf`, a file inside an installed Python package.
"""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from verizero.pipeline.errors import ConfigError, boundary
from verizero.pipeline.host.disk import locked, replace_folder, sha256_of
from verizero.pipeline.host.heap import trim_heap
from verizero.pipeline.models.named import model_named, refuse_pointer
from verizero.pipeline.near import near_path

PACKAGE, SUFFIX = "package:", ".gguf"
MADE = ".models"
"""Folder of the models made from GGUF files, under that of the runs."""
PROVENANCE = "provenance.json"
NEEDS = ("gguf", "accelerate")
"""Packages that transformers reads such files with."""
INSTALL = "pip install '.[real]'"
PLAIN = frozenset({"F32", "F16", "BF16", "F64"})
"""Types of weights that are not quantised."""
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_OWN_SPLIT, _BYTES = ("ByteLevel", True), ("ByteLevel", False)
SPLITS: Mapping[str, tuple[tuple[str, Any], ...]] = {
    "gpt-2": (_OWN_SPLIT,),
    "smollm": (("Digits", True), _OWN_SPLIT),
    "qwen2": (("Split", _WORDS + _REST), _BYTES),
    "llama-bpe": (("Split", _WORDS + "{1,3}" + _REST), _BYTES),
}
"""llama.cpp's name of a way of splitting texts before merges -> its steps.

A file has the name alone. transformers does not read it, and would split texts of most models as GPT-2 does.
"""


def is_gguf(path: str | None) -> bool:
    """True if a model's path names a GGUF file."""
    return path is not None and path.endswith(SUFFIX)


def model_folder(path: str, home: Path, revision: str | None = None, field: str = "model.path") -> str:
    """Return a model's folder, or its hub id; for a GGUF file the folder under `home` with its weights in float32.

    That folder is made if it is missing.

    Raises: ConfigError, which names `field`, as `model_named` does; if the file is missing, cut off or of an unknown
    architecture, or a package is not installed.
    """
    if not is_gguf(path):
        return model_named(path, revision, field)
    file = located(path, field)
    folder = home / MADE / f"{file.stem}-{digest(file)[:16]}"
    if not (folder / PROVENANCE).is_file():
        # The ranks of a group come together: one makes the folder, and the others wait for it.
        with locked(home / MADE, wait=True):
            if not (folder / PROVENANCE).is_file():
                facts = provenance_of(path)
                with replace_folder(folder, f"writing the model of {file.name} into {folder}") as partial:
                    _convert(file, path, partial)
                    (partial / PROVENANCE).write_text(json.dumps(facts, indent=1))
    return str(folder)


def check_model_is_there(path: str, revision: str | None = None) -> None:
    """Raise ConfigError for a model that is neither here nor to be had from the hub."""
    if is_gguf(path):
        located(path)
    else:
        model_named(path, revision)


def provenance(folder: Path) -> dict[str, Any]:
    """Return the facts about the file that a model's folder was made from; empty for any other folder."""
    path = folder / PROVENANCE
    made: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return made


def provenance_of(path: str) -> dict[str, Any]:
    """Return the facts about a GGUF file: names, hash, architecture, licence, and the share of weights of each type.

    Raises: ConfigError as `model_folder`.
    """
    file = located(path)
    reader = _reader(file, path)
    counts: Counter[str] = Counter()
    for tensor in reader.tensors:
        counts[tensor.tensor_type.name] += int(tensor.n_elements)
    total = sum(counts.values())
    return {
        "file": file.name,
        "sha256": digest(file),
        "bytes": file.stat().st_size,
        "architecture": _text(reader, "general.architecture"),
        "model": _text(reader, "general.name"),
        "licence": _text(reader, "general.license"),
        "types": {name: round(count / total, 4) for name, count in counts.most_common()},
        "is_quantized": not counts.keys() <= PLAIN,
    }


def located(path: str, field: str = "model.path") -> Path:
    """Return the GGUF file that a model's path names. Raises: ConfigError if there is none."""
    if not path.startswith(PACKAGE):
        if not Path(path).is_file():
            raise ConfigError(
                f"{field}={path!r}: there is no such file; {near_path(path, 'give the path of a GGUF file')}"
            )
        refuse_pointer(Path(path), field)
        return Path(path)
    package, _, name = path.removeprefix(PACKAGE).partition("/")
    spec = find_spec(package) if package.isidentifier() else None
    places = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    if not places:
        raise ConfigError(
            f"model.path={path!r}: no package {package!r} is installed; install it (make real does so for its own), or "
            "give the path of a GGUF file, a Hugging Face folder, or a hub id"
        )
    files = [place / name for place in places if (place / name).is_file()]
    if not files:
        there = sorted(p.relative_to(place).as_posix() for place in places for p in place.rglob(f"*{SUFFIX}"))
        raise ConfigError(f"model.path={path!r}: that package has no such file; it has {', '.join(there) or 'none'}")
    return files[0]


def digest(file: Path) -> str:
    """Return the sha256 of a file."""
    status = file.stat()
    return _digest(file, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=16)
def _digest(file: Path, size: int, changed_ns: int) -> str:
    return sha256_of(file)


def require_packages(what: str) -> None:
    """Raise ConfigError, which begins with `what`, if a package for GGUF files is not installed."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{what} needs the package {' and '.join(missing)}: {INSTALL}")


def _reader(file: Path, path: str) -> Any:
    """Return the gguf package's reader of a file, all of whose weights are there."""
    require_packages(f"model.path={path!r}")
    import gguf

    size = file.stat().st_size
    try:
        reader = gguf.GGUFReader(file)
        # the reader maps the file, and may name a tensor that ends behind its end
        ends = [int(t.data_offset) + int(t.n_bytes) for t in reader.tensors]
    except Exception as exc:  # of many kinds: whatever the bytes at the cut were taken for
        raise ConfigError(
            f"model.path={path!r} cannot be read as GGUF ({type(exc).__name__}: {exc}): the file is damaged or cut off "
            f"at {size:,} bytes; get it again"
        ) from exc
    if max(ends, default=size + 1) > size:
        raise ConfigError(
            f"model.path={path!r} is cut off: its weights need {max(ends, default=0):,} bytes, and it has {size:,}; "
            "get it again"
        )
    return reader


def _text(reader: Any, key: str) -> str:
    field = reader.get_field(key)
    return "" if field is None else str(field.contents())


def _convert(file: Path, path: str, folder: Path) -> None:
    """Write the model and tokenizer of a GGUF file into `folder`, with float32 weights."""
    import torch
    import transformers

    from verizero.pipeline.models.complete import loaded

    where, name = str(file.parent), file.name
    remedy = "give a model of an architecture that transformers reads from GGUF, or its Hugging Face folder"
    with boundary(ConfigError, f"model.path={path!r} cannot be made into a Hugging Face folder ({remedy})"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(where, gguf_file=name)
        maker: Any = transformers.AutoModelForCausalLM
        model = loaded(maker, where, f"model.path={path!r}", gguf_file=name, dtype=torch.float32)
    split_as(tokenizer, _text(_reader(file, path), "tokenizer.ggml.pre"))
    # The weights are plain numbers now; transformers refuses to save what it takes for quantised.
    model.config.__dict__.pop("quantization_config", None)
    for mark in ("hf_quantizer", "is_quantized"):
        model.__dict__.pop(mark, None)
    # In a group of ranks transformers lets rank 0 alone write; here the rank that came first does.
    model.should_save_on_this_rank = lambda is_main_process: is_main_process
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # Else the weights that were just read count in the peak of the run that follows.
    del model, tokenizer
    gc.collect()
    trim_heap()


def split_as(tokenizer: Any, name: str) -> None:
    """Make a byte-level tokenizer split texts as llama.cpp does under this name; one that is not in SPLITS is left."""
    if name not in SPLITS:
        return
    from tokenizers import Regex, pre_tokenizers

    make: dict[str, Callable[[Any], Any]] = {
        "ByteLevel": lambda how: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=how),
        "Digits": lambda how: pre_tokenizers.Digits(individual_digits=how),
        "Split": lambda how: pre_tokenizers.Split(Regex(how), "isolated"),
    }
    steps = [make[kind](how) for kind, how in SPLITS[name]]
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
