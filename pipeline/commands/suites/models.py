"""The models that a command line names: a folder, a hub id, a run with its first and newest weights, or a URL."""

from __future__ import annotations

import hashlib
import json
import re
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path

from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.template import Template
from verizero.pipeline.errors import ConfigError, boundary
from verizero.pipeline.host.network import open_url
from verizero.pipeline.models.named import is_path
from verizero.pipeline.train.checkpoint import checkpoint_folders, damage_of

FOLDER = "suites"
"""Folder of results next to a model."""
URLS = ("http://", "https://")
ENDINGS = (".json", ".jinja", ".safetensors", ".bin", ".gguf", ".model", ".txt")
"""Files of a model's folder on which its answers depend."""
BLOCK = 1 << 20
"""Bytes that are read at either end of such a file."""
TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Measured:
    """A model that is asked."""

    label: str
    model: str
    """A folder, a file, a hub id, or the base URL of an endpoint."""
    folder: Path
    """The folder of its answers and results."""
    template: Template | None = None
    """That of its run; None: the tokenizer's chat template, if it has one."""
    run: Path | None = None
    """The run whose training data is compared to the suites."""
    served: str | None = None
    """The model's name at the endpoint; None: it is computed here."""

    def fingerprint(self) -> str:
        """Return a hash of the model: of the ends of its files where it is a folder, else of its name."""
        digest = hashlib.sha256(f"{self.model}\n{self.served}".encode())
        folder = Path(self.model)
        if self.served is None and folder.is_dir():
            digest = hashlib.sha256()  # the same model in another place gives the same answers
            for path in sorted(p for p in folder.iterdir() if p.suffix in ENDINGS):
                size = path.stat().st_size
                with path.open("rb") as file:
                    digest.update(f"{path.name} {size}\n".encode() + file.read(BLOCK))
                    file.seek(max(0, size - BLOCK))
                    digest.update(file.read(BLOCK))
        return digest.hexdigest()


def measured_of(names: list[str], out: Path | None = None) -> list[Measured]:
    """Return the model of a name, or of two the models. A run alone is two: its first weights, then its newest.

    `out` takes the place of the folders next to the models. Raises: ConfigError.
    """
    if len(names) > 2:
        raise ConfigError(f"one model or two are compared, got {len(names)}: {', '.join(names)}")
    of_names = [_models_of(name) for name in names]
    models = of_names[0] if len(of_names) == 1 else [of_name[-1] for of_name in of_names]
    if len(names) == 2 and models[0].label == models[1].label:
        models = [replace(m, label=name) for m, name in zip(models, names, strict=True)]
    return [m if out is None else replace(m, folder=out) for m in models]


def _models_of(name: str) -> list[Measured]:
    folder = Path(name).expanduser()
    if name.startswith(URLS):
        url, _, served = name.partition("#")
        served = served or served_name(url)
        return [Measured(served, url.rstrip("/"), _folder_of(served), served=served)]
    if (folder / "recipe.yaml").is_file() and (folder / "metrics.jsonl").is_file():
        return _of_run(folder)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise ConfigError(f"{name} has neither config.json nor a run's recipe.yaml; give a model's folder, or a run's")
    place = folder / FOLDER if folder.is_dir() else _folder_of(Path(name).stem if is_path(name) else name)
    return [Measured(name, str(folder) if folder.is_dir() else name, place)]


def _of_run(folder: Path) -> list[Measured]:
    """Return the first weights of a run, and its newest, if there are two. Raises: ConfigError if there are none."""
    recipe = load_recipe(folder / "recipe.yaml")
    kept = [p for p in reversed(checkpoint_folders(folder / "checkpoints")) if damage_of(p) is None]
    # Those of a base in 4 bits have adapters alone.
    weights = {f"checkpoint {int(p.name)}": str(p / "model") for p in kept if (p / "model").is_dir()}
    if recipe.model.path is not None:
        weights = {"start": recipe.model.path, **weights}
    if (folder / "model" / "config.json").is_file():
        weights["final"] = str(folder / "model")
    if not weights:
        raise ConfigError(f"{folder} has no weights yet; wait for its first checkpoint")
    template, place = recipe.data.template, folder / FOLDER
    ends = dict.fromkeys([next(iter(weights)), list(weights)[-1]])
    # The first weights had not read the run's rows yet.
    runs = {label: None if label == "start" else folder for label in ends}
    return [Measured(label, weights[label], place, template, runs[label]) for label in ends]


def _folder_of(name: str) -> Path:
    return Path("runs") / FOLDER / re.sub(r"[^A-Za-z0-9._-]+", "--", name).strip("-.")


def served_name(url: str) -> str:
    """Return the name of the only model at an endpoint. Raises: ConfigError if it does not answer, or has several."""
    with boundary(ConfigError, f"{url} does not answer with its models; start it, or name one: {url}#NAME"):
        with open_url(urllib.request.Request(f"{url.rstrip('/')}/models"), TIMEOUT_S) as reply:
            names = [str(model["id"]) for model in json.load(reply)["data"]]
    if len(names) != 1:
        raise ConfigError(f"{url} serves {', '.join(names) or 'no model'}; name one of them: {url}#NAME")
    return names[0]
