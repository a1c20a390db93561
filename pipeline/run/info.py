"""Facts of a run, written when it is opened: recipe.yaml, run.json and origin.json."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from verizero.pipeline.config.episodes import time_dependent_settings
from verizero.pipeline.config.load import dump
from verizero.pipeline.files import disk_errors
from verizero.pipeline.models.gguf_file import provenance
from verizero.pipeline.run.build import first_model_path
from verizero.pipeline.run.choose_checkpoint import changes_of
from verizero.pipeline.run.origin import write_origin
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
