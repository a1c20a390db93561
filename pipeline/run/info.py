"""Files of a run and its stages: recipe.yaml, run.json, origin.json, which are written when it is opened, and JSONL."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from verizero.pipeline.config.episodes import time_dependent_settings
from verizero.pipeline.config.load import dump, parse, read_tree
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import RunError
from verizero.pipeline.host.disk import disk_errors, write_atomic
from verizero.pipeline.models.gguf_file import provenance
from verizero.pipeline.run.build import first_model_path
from verizero.pipeline.run.choose_checkpoint import changes_of
from verizero.pipeline.run.saving import TEMPLATE_FILE
from verizero.pipeline.run.session import Run, StageSetup, Workers

PACKAGES = ("torch", "transformers", "prefect", "sympy", "math-verify", "numpy")
"""Packages whose versions are written into run.json."""


def template_of(model: str | None) -> dict[str, Any] | None:
    """Return the template that a run left in the folder of the model which it trained; None if there is none."""
    path = Path(model or "") / TEMPLATE_FILE
    if model is None or not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:  # a file of that name by somebody else
        return None
    return value if isinstance(value, dict) else None


def write_run_info(run: Run, workers: Workers, setup: StageSetup) -> None:
    """Write `recipe.yaml`, the resolved recipe, and `run.json`: versions, device and sizes, for the report.

    `origin.json` has the folder of the recipe's own files.
    """
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    model, engine = workers.backend.model, workers.rollouts.engine
    info = {
        "name": setup.config.name,
        "seed": run.seed,
        "versions": versions,
        "start": {} if run.recipe.model.path is None else provenance(Path(first_model_path(run.recipe))),
        "device": str(model.device),
        "num_parameters": sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters()),
        "num_ranks": run.ranks.size,
        "engine_fast_path": engine.is_fast,
        "engine_note": engine.fallback_reason,
        "num_prompts": {"train": len(run.data.train), "evaluation": len(run.data.evaluation)},
        "data_notes": list(run.data.notes),
        "isolation": run.isolation,
        "bytes_depend_on_time": []
        if workers.rollouts.generation.episode_setup is None
        else time_dependent_settings(run.recipe.episodes),
        "model_template": template_of(run.recipe.model.path),
        "changes": [] if run.resumed_from is None else changes_of(run.folder),
        "ended": None,
    }
    with disk_errors(f"writing into {run.rank_folder}"):
        (run.rank_folder / "recipe.yaml").write_text(dump(run.recipe))
        (run.rank_folder / "run.json").write_text(json.dumps(info, indent=1))
    write_origin(run.rank_folder, run.base_dir)


def write_lines(run: Run, path: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Write a JSONL file of a stage, whole or not at all. Only rank 0 writes."""
    if not run.ranks.is_first:
        return
    with disk_errors(f"writing {path.name}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())


def write_left_out(run: Run, stage: str, left_out: Iterable[tuple[Any, str]]) -> None:
    """Write the rows that a stage does not train on, each with the reason, for people."""
    write_lines(run, run.stage_folder(stage) / "left_out.jsonl", [{"row": row, "why": why} for row, why in left_out])


FILE = "origin.json"
"""Apart from run.json, which the report shows to people who need not know this machine's folders."""


def write_origin(folder: Path, base_dir: Path) -> None:
    """Write the recipe's folder into that of the run."""
    base, run = base_dir.resolve(), folder.resolve()
    place = base.relative_to(run) if base.is_relative_to(run) else base  # the run may be moved with what it holds
    write_atomic(folder / FILE, json.dumps({"recipe_folder": str(place)}, indent=1).encode())


def recipe_of_run(folder: Path, overrides: Sequence[str] = ()) -> tuple[RunConfig, Path]:
    """Return the recipe of the run in `folder`, with `a.b=c` overrides, and the folder that has the recipe's own files.

    Raises: ConfigError, RunError as `recipe_folder`.
    """
    base, path = recipe_folder(folder) or folder, folder / "recipe.yaml"
    return parse(read_tree(path), overrides, source=str(path), base=base), base


def recipe_folder(folder: Path) -> Path | None:
    """Return the folder of the recipe of the run in `folder`; None for a run that did not write it down.

    Raises: RunError if the file was changed by hand, or the recipe's folder is not there any more.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        origin = folder / str(json.loads(path.read_text())["recipe_folder"])
    except (ValueError, LookupError, TypeError) as exc:
        raise RunError(f"{path} cannot be read ({exc}); write {{'recipe_folder': FOLDER}} into it as JSON") from exc
    if not origin.is_dir():
        raise RunError(
            f"the recipe of {folder} came from {origin}, which is not there any more; put the folder back, or write "
            f"the one that has its files now into {path}"
        )
    return origin
