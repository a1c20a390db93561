"""Models by name: a path of this machine, or an id of the hub. What is a path never asks the hub."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.near import near_path

HUB = "https://huggingface.co"
OFFLINE = "HF_HUB_OFFLINE"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
SUFFIXES = (".gguf", ".safetensors", ".bin", ".pt", ".pth")
"""Endings of files with weights."""
MERGE = "merge it into its base (merge_and_unload of peft), and give a folder of the merged model alone"
"""The remedy for an adapter."""
POINTER = b"version https://git-lfs"
"""The first words of the small file that git leaves for a large file until it is fetched."""
PATIENCE_S = 3.0
AGAIN_S = 60.0
"""Seconds for which an answer to the question whether the hub is reached is good."""


def is_path(name: str) -> bool:
    """True if a model's name is a path: something is there, or it cannot be an id of the hub, `org/name` or `name`.

    So `./x`, `../x`, `/x`, `~/x`, `a/b/c`, `a\\b` and `x.gguf` are paths.
    """
    return Path(name).exists() or not HUB_ID.fullmatch(name) or name.endswith(SUFFIXES)


def model_named(name: str, revision: str | None = None, field: str = "model.path") -> str:
    """Return the local folder of a model, or its id on the hub, which was reached and has to be asked.

    Raises: ConfigError, which names `field`, for a path without a folder, for an adapter, for a pointer of git-lfs, and
    for an id that is not on this machine while the hub is not reached. A path never asks the hub.
    """
    folder = Path(name)
    if folder.is_dir():
        if (folder / "model" / "config.json").is_file() and not (folder / "config.json").exists():
            raise ConfigError(f"{field}={name!r} is the folder of a run; its model is {folder / 'model'}")
        if (folder / "adapter_config.json").is_file():
            fault = "has an adapter next to its model" if (folder / "config.json").is_file() else "is an adapter (LoRA)"
            raise ConfigError(f"{field}={name!r} {fault}; {MERGE}")
        for file in sorted(folder.iterdir()):
            refuse_pointer(file, field)
        return name
    is_id = not is_path(name)
    kept = kept_folder(name, revision) if is_id else None
    if kept is not None:
        return name if not is_offline() and is_hub_reached() else kept
    remedy = "give a folder saved by save_pretrained, a file x.gguf, or a hub id such as Qwen/Qwen3-0.6B"
    if not is_id and folder.exists():
        fault = "that is no folder and no GGUF file"
    elif not is_id or "/" not in name:
        fault = "nothing is there"
    elif is_offline():
        fault = "it is not on this machine, and the hub is not asked, because HF_HUB_OFFLINE is set"
    elif not is_hub_reached():
        fault = f"it is not on this machine, and the hub, {endpoint()}, is not reached"
        remedy = "connect this machine (HTTPS_PROXY names a proxy), or give a folder or a file x.gguf"
    else:
        return name
    raise ConfigError(f"{field}={name!r}: {fault}; {remedy if folder.exists() else near_path(name, remedy)}")


def refuse_pointer(file: Path, field: str) -> None:
    """Raise ConfigError, which names `field`, if git put a pointer where the file's content belongs."""
    if file.is_file() and file.stat().st_size < 1024 and file.read_bytes().startswith(POINTER):
        raise ConfigError(f"{field}: {str(file)!r} is a pointer of git-lfs, not the file; run git lfs pull there")


def is_offline() -> bool:
    """True if the user has told the libraries of the hub to look on this machine alone."""
    return os.environ.get(OFFLINE, "").upper() in ("1", "ON", "YES", "TRUE")


@contextmanager
def asks_no_hub() -> Iterator[None]:
    """Let the libraries of the hub look on this machine alone within the block, as HF_HUB_OFFLINE=1 does."""
    # Each of them reads the variable only when it is imported.
    settings: list[Any] = [import_module("huggingface_hub.constants")]
    if find_spec("datasets") is not None:
        settings.append(import_module("datasets.config"))
    variable, values = os.environ.get(OFFLINE), [module.HF_HUB_OFFLINE for module in settings]
    os.environ[OFFLINE] = "1"
    for module in settings:
        module.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        os.environ.pop(OFFLINE)
        if variable is not None:
            os.environ[OFFLINE] = variable
        for module, value in zip(settings, values, strict=True):
            module.HF_HUB_OFFLINE = value


def endpoint() -> str:
    """Return the address of the hub."""
    return os.environ.get("HF_ENDPOINT") or HUB


def is_hub_reached() -> bool:
    """True if the hub or its proxy answers: its libraries would try for 40 s and more, once for each file."""
    url = urlsplit(endpoint())
    proxy = None if proxy_bypass(url.hostname or "") else getproxies().get(url.scheme) or getproxies().get("all")
    if proxy is not None:
        url = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    return _answers(url.hostname or "", url.port or (443 if url.scheme == "https" else 80), int(time.time() // AGAIN_S))


@lru_cache(maxsize=4)
def _answers(host: str, port: int, minute: int) -> bool:
    done: list[bool] = []

    def connect() -> None:
        try:
            socket.create_connection((host, port), PATIENCE_S).close()
        except OSError:
            return
        done.append(True)

    # In a thread, as the search for the address of a name has no limit of its own.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(2 * PATIENCE_S)
    return bool(done)


def kept_folder(name: str, revision: str | None) -> str | None:
    """Return the folder in which the libraries of the hub keep a model; None if it is not on this machine."""
    from huggingface_hub import try_to_load_from_cache

    try:
        file = try_to_load_from_cache(name, "config.json", revision=revision)
    except ValueError:  # no id that the hub allows
        return None
    return str(Path(file).parent) if isinstance(file, str) else None
