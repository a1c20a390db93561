"""The runs of a claim: one of each arm and seed, from the model that the arm's SFT makes once a seed."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from benchmarks.claims.claim import Arm

ROOT = Path(__file__).resolve().parents[2]
START = "configs/demo.yaml"
"""The recipe whose SFT makes the model that all arms start from."""


def run_of(arm: Arm, seed: int, folder: Path, changes: tuple[str, ...] = ()) -> Path:
    """Return the folder of the arm's run with that seed, trained now unless it is there; `changes` come last.

    Arms of several claims that train alike share a run.
    """
    words = "\n".join([arm.recipe, *sorted(arm.changes)])
    place, name = (folder / "arms").resolve(), f"{hashlib.sha256(words.encode()).hexdigest()[:12]}-seed{seed}"
    if not (place / name / "summary.json").is_file():
        start = start_of(seed, folder, changes)
        own = ("stages=[rl]", f"model.path={start}", "model.create=null", "evaluation.before_training=true")
        train(arm.recipe, (f"name={name}", f"output={place}", f"seed={seed}", *own, *arm.changes, *changes))
    return place / name


def start_of(seed: int, folder: Path, changes: tuple[str, ...] = ()) -> Path:
    """Return the model after SFT with that seed."""
    place = (folder / "starts").resolve()
    if not (place / f"seed{seed}" / "model").is_dir():
        train(START, (f"name=seed{seed}", f"output={place}", f"seed={seed}", "stages=[sft]", *changes))
    return place / f"seed{seed}" / "model"


def train(recipe: str, changes: tuple[str, ...]) -> None:
    """Train a recipe in a process of its own. Raises: CalledProcessError if it fails."""
    words = [word for change in changes for word in ("--set", change)]
    command = [sys.executable, "-m", "verizero.pipeline.cli", "train", str(ROOT / recipe), "--no-prefect", *words]
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
