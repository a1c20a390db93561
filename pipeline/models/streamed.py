"""A model's folder written a block at a time, so that the whole model is in no process's memory."""

from __future__ import annotations

import copy
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from verizero.pipeline.models.unloaded import INDEX, SINGLE

FILE_BYTES = 32 << 20
"""Blocks are collected until a file has about so many bytes; a file has one block at least."""


class Streamed:
    """A divided policy with `save_pretrained`, as a whole model has; every rank must call it, and rank 0 writes."""

    def __init__(self, model: Any, blocks: Callable[[], Iterable[Mapping[str, Tensor]]], writes: bool) -> None:
        """`model` has the configuration; `blocks()` yields saved tensors by name, one call for each folder."""
        self.model = model
        self.blocks = blocks
        self.writes = writes

    def save_pretrained(self, folder: Path) -> None:
        """Write configuration and weights as a Hugging Face folder."""
        from safetensors.torch import save_file

        if not self.writes:
            deque(self.blocks(), maxlen=0)  # gathering needs every rank; a block is dropped before the next comes
            return
        folder.mkdir(parents=True, exist_ok=True)
        files: list[list[str]] = []
        total = 0
        for held in self._batches():
            save_file(held, folder / f".{len(files)}", metadata={"format": "pt"})
            files.append(list(held))
            total += sum(t.nbytes for t in held.values())
            del held  # the next block is gathered into the memory that this frees
        self._name(folder, files, total)
        self._describe(folder)

    def _batches(self) -> Iterator[dict[str, Tensor]]:
        """Yield the tensors of each file."""
        held: dict[str, Tensor] = {}
        for block in self.blocks():
            held |= {name: t.cpu().contiguous() for name, t in block.items()}
            del block  # on a GPU it would stay while the next one comes
            if sum(t.nbytes for t in held.values()) >= FILE_BYTES:
                yield held
                held = {}
        if held:
            yield held

    @staticmethod
    def _name(folder: Path, files: list[list[str]], total: int) -> None:
        """Give the files the names that readers look for, now that their number is known."""
        if len(files) == 1:
            (folder / ".0").rename(folder / SINGLE)
            return
        names = [f"model-{i + 1:05d}-of-{len(files):05d}.safetensors" for i in range(len(files))]
        for i, name in enumerate(names):
            (folder / f".{i}").rename(folder / name)
        where = {weight: name for name, weights in zip(names, files, strict=True) for weight in weights}
        (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": where}, indent=2))

    def _describe(self, folder: Path) -> None:
        settings = copy.deepcopy(self.model.config)
        settings.architectures = [type(self.model).__name__]
        settings.save_pretrained(folder)
        if self.model.can_generate():
            self.model.generation_config.save_pretrained(folder)
