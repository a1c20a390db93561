"""A model that is never whole in a process's memory: read row by row where it is divided, written block by block."""

from __future__ import annotations

import copy
import json
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.errors import ConfigError, boundary
from verizero.pipeline.models.complete import check_headers, require_finite
from verizero.pipeline.models.saved_names import as_saved, on_meta

FILE_BYTES = 32 << 20
"""Blocks are collected until a file has about so many bytes; a file has one block at least."""


class Streamed:
    """A divided policy with `save_pretrained`, as a whole model has; every rank must call it.

    Files are dealt to the ranks that write. Where several do, each writes its files while the next are gathered and
    afterwards, from copies in the CPU's memory, and `finish` waits for the end.
    """

    def __init__(
        self, model: Any, blocks: Callable[[], Iterable[Mapping[str, Tensor]]], rank: int = 0, writers: int = 1
    ) -> None:
        """`model` has the configuration; `blocks()` yields saved tensors by name, one call for each folder.

        `writers`: so many ranks write, the first ones.
        """
        self.model, self.blocks, self.rank, self.writers = model, blocks, rank, writers
        self._unfinished: list[Future[None]] = []
        self._names: dict[Path, Path] = {}
        """Written file -> the name that it gets at the end."""

    def save_pretrained(self, folder: Path) -> None:
        """Write configuration and weights as a Hugging Face folder."""
        if self.rank < self.writers:
            folder.mkdir(parents=True, exist_ok=True)
        files: list[list[str]] = []
        total = 0
        thread = ThreadPoolExecutor(1, "model files")
        for names, num_bytes, held in self._files():
            if len(files) % self.writers == self.rank:
                written = thread.submit(_write, held, folder / f".{len(files)}")
                self._unfinished.append(written)
                if self.writers == 1:
                    written.result()  # the next block is gathered into the memory that this frees
            files.append(names)
            total += num_bytes
            del held
        thread.shutdown(wait=False)
        self._names = {folder / f".{i}": folder / name for i, name in enumerate(_names(len(files)))}
        if self.rank == 0:
            if len(files) > 1:
                where = {w: path.name for path, names in zip(self._names.values(), files, strict=True) for w in names}
                index = {"metadata": {"total_size": total}, "weight_map": where}
                (folder / INDEX).write_text(json.dumps(index, indent=2))
            self._describe(folder)
        if self.writers == 1:
            self.finish()

    def finish(self) -> list[Path]:
        """Return the files that this rank has written, once they are. Raises: OSError."""
        unfinished, self._unfinished = self._unfinished, []
        for writing in unfinished:
            writing.result()
        mine = list(self._names.items())[self.rank :: self.writers] if self.rank < self.writers else []
        self._names = {}
        for written, name in mine:
            written.rename(name)
        return [name for _, name in mine]

    def _files(self) -> Iterator[tuple[list[str], int, dict[str, Tensor]]]:
        """Yield the names in each file, its bytes, and the tensors, if this rank writes it."""
        number, num_bytes, names, held = 0, 0, list[str](), dict[str, Tensor]()
        for block in self.blocks():
            names += block
            num_bytes += sum(t.nbytes for t in block.values())
            if number % self.writers == self.rank:
                held |= {name: t.cpu().contiguous() for name, t in block.items()}
            del block  # on a GPU it would stay while the next one comes
            if num_bytes >= FILE_BYTES:
                yield names, num_bytes, held
                number, num_bytes, names, held = number + 1, 0, [], {}
        if names:
            yield names, num_bytes, held

    def _describe(self, folder: Path) -> None:
        settings = copy.deepcopy(self.model.config)
        settings.architectures = [type(self.model).__name__]
        settings.save_pretrained(folder)
        if self.model.can_generate():
            self.model.generation_config.save_pretrained(folder)


def _write(tensors: dict[str, Tensor], path: Path) -> None:
    from safetensors.torch import save_file

    save_file(tensors, path, metadata={"format": "pt"})


def _names(num: int) -> list[str]:
    """Return the names of so many files of weights that readers look for."""
    return [SINGLE] if num == 1 else [f"model-{i + 1:05d}-of-{num:05d}.safetensors" for i in range(num)]


INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

_FILES: weakref.WeakKeyDictionary[Any, Files] = weakref.WeakKeyDictionary()


def model_on_meta(path: str, dtype: torch.dtype, revision: str | None = None) -> Any | None:
    """Return the causal LM at a local folder or hub id with parameters on the device `meta` and computed buffers.

    None if the rows of its weights are not found in its files, e.g. because they are not safetensors, or quantised.
    Raises: ConfigError naming the path and the remedy, and weights that are not in its files.
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
    check_headers(model, folder, f"model.path {path!r}")
    files = Files(folder, model)
    if not files.has_all or getattr(settings, "quantization_config", None) is not None:
        return None
    _FILES[model] = files
    return model


def weights_of(model: Any) -> Files | None:
    """Return the files with the weights of a model of `model_on_meta`; None for any other model."""
    return _FILES.get(model)


class Files:
    """The weights of a model in a Hugging Face folder, read a few rows at a time."""

    def __init__(self, folder: Path, model: Any) -> None:
        """`model` has the names; it may be on `meta`."""
        self.files = files_of(folder)
        # Some weights have other names in files; experts are one tensor in the model and several in files.
        others = {name: p.shape for name, p in model.named_parameters() if name not in self.files}
        self.names = {name: _renamed(model, name, shape) for name, shape in others.items()}
        self.parts = {n: _parts(model, n, shape) for n, shape in others.items() if self.names[n] not in self.files}

    @property
    def has_all(self) -> bool:
        """True if every weight of the model can be read."""
        return all(parts and all(part.file_name in self.files for part in parts) for parts in self.parts.values())

    def rows(self, name: str, rows: slice) -> Tensor:
        """Return those rows of a weight (its first dimension); the rest of it is not read."""
        name = self.names.get(name) or name
        if name in self.files:
            return self._read(name, rows)
        return torch.stack(
            [
                torch.cat([self._read(p.file_name, slice(None)) for p in self.parts[name] if p.row == row])
                for row in range(rows.start, rows.stop)
            ]
        )

    def _read(self, name: str, rows: slice) -> Tensor:
        from safetensors import safe_open

        with safe_open(self.files[name], "pt") as file:
            read: Tensor = file.get_slice(name)[rows.start : rows.stop]
        require_finite(name, read, f"{self.files[name]}")
        return read


@dataclass(frozen=True, slots=True)
class _Part:
    """A tensor of a file that is a part of one row (an expert) of a model's tensor."""

    file_name: str
    row: int
    start: int
    """Its first place in the second dimension."""


def _renamed(model: Any, name: str, shape: Sequence[int]) -> str | None:
    """Return the name in files of a weight that is saved in the model's shape; None if it is saved in parts."""
    numbers = torch.arange(2 * shape[0]).view(-1, 2)[:, slice(2) if len(shape) > 1 else 0]
    ((saved, whole), *more) = as_saved(model, {name: numbers}).items()
    is_same = not more and torch.equal(whole, numbers)
    return saved if is_same and len(shape) < 3 else None


def _parts(model: Any, name: str, shape: Sequence[int]) -> list[_Part]:
    """Return the tensors of files that make up a weight [E, R, ...], by row and place; empty if they are unknown."""
    if len(shape) < 3:
        return []
    # Each number says where it comes from. The conversion cuts the first two dimensions, so two columns show it.
    numbers = torch.arange(shape[0] * shape[1]).view(shape[0], shape[1], 1).repeat(1, 1, 2)
    parts = []
    for saved, part in as_saved(model, {name: numbers}).items():
        if part.ndim != 2 or part.shape[1] != 2 or not torch.equal(part[:, 0], part[:, 1]):
            return []
        values = part[:, 0]
        if bool((values.diff() != 1).any()):
            return []
        parts.append(_Part(saved, *divmod(int(values[0]), shape[1])))
    return sorted(parts, key=lambda p: (p.row, p.start))


def files_of(folder: Path) -> dict[str, Path]:
    """Return the file of each weight in a Hugging Face folder, by name; empty without safetensors files."""
    from safetensors import safe_open

    if (folder / INDEX).is_file():
        return {name: folder / file for name, file in json.loads((folder / INDEX).read_text())["weight_map"].items()}
    if not (folder / SINGLE).is_file():
        return {}
    with safe_open(folder / SINGLE, "pt") as file:
        return dict.fromkeys(file.keys(), folder / SINGLE)


def _fetched(path: str, revision: str | None) -> Path:
    """Return the local folder of a hub's model, of which configuration and weights are there."""
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(path, revision=revision, allow_patterns=["*.json", "*.safetensors"]))
