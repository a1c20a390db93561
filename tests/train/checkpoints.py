"""Small checkpoints, and ways to spoil them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from verizero.pipeline.train.checkpoint import MANIFEST, path_of, save

FILES = {
    "state.json": b'{"step": %d}',
    "model/weights.bin": b"weights of %d" * 50,
    "model/deep/er/x.txt": b"x%d",
    "empty": b"",
}


def content(mark: int) -> dict[str, bytes]:
    return {name: data.replace(b"%d", str(mark).encode()) for name, data in FILES.items()}


def writer(mark: int) -> Callable[[Path], None]:
    """Writes files that only the checkpoint `mark` has."""

    def write(folder: Path) -> None:
        for name, data in content(mark).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)

    return write


def saved(root: Path, serial: int, mark: int, keep: int) -> Path:
    assert save(root, serial, writer(mark), keep) is None
    return path_of(root, serial)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def edit_manifest(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def tamper(path: Path) -> None:
        manifest = json.loads((path / MANIFEST).read_text())
        changed = change(manifest)
        (path / MANIFEST).write_text(json.dumps(manifest if changed is None else changed))

    return tamper
