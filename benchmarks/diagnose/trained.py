"""A run with a planted fault: prepared, trained in a process of its own, and read back."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import shutil
import time
from pathlib import Path
from typing import Any

from benchmarks.diagnose.fault import HERE, Fault
from benchmarks.diagnose.rows import write_rows
from verizero.pipeline.config.load import load_recipe, read_tree
from verizero.pipeline.errors import VerizeroError
from verizero.pipeline.files import write_atomic

NOTE = "planted.json"
"""The file next to a run that names what was planted; a run whose note has the same is not repeated."""
GRADERS = HERE / "graders"
SAME_SFT = {"healthy_ppo": "healthy"}
"""Recipe -> the recipe whose SFT is the same."""


def planted(fault: Fault, seed: int, folder: Path) -> dict[str, Any]:
    """Train the recipe with the fault into `folder`/run unless that was done, and return the note of it."""
    want = {"name": fault.name, "seed": seed, "recipe": _hash(fault), "overrides": list(fault.overrides)}
    note = _note(folder)
    if want.items() <= note.items():
        return note
    shutil.rmtree(folder, ignore_errors=True)
    start = _start(fault, seed, folder.parent.parent) if fault.shares_sft else None
    folder.mkdir(parents=True)
    if start is not None:
        shutil.copytree(start / "run", folder / "run")
    begun = time.monotonic()
    error = in_own_process(fault, seed, folder)
    note = {**want, "error": error, "seconds": round(time.monotonic() - begun, 1)}
    shutil.rmtree(folder / "run" / "checkpoints", ignore_errors=True)
    shutil.rmtree(folder / "run" / "model", ignore_errors=True)
    write_atomic(folder / NOTE, json.dumps(note, indent=1).encode())
    return note


def in_own_process(fault: Fault, seed: int, folder: Path, only_sft: bool = False) -> str | None:
    """Train in a fork of this process, which the patches die with; return the error that ended the run, if any."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(fault, seed, folder, only_sft, sender))
    process.start()
    sender.close()
    try:
        error: str | None = receiver.recv()
    except EOFError:
        error = f"the process ended with status {process.exitcode}"
    process.join()
    return error


def _child(fault: Fault, seed: int, folder: Path, only_sft: bool, sender: Any) -> None:
    from verizero.pipeline.report.progress import Silent
    from verizero.pipeline.report.summary import build_summary
    from verizero.pipeline.run.opening import open_run
    from verizero.pipeline.whole_run import items_by_stage, run_items

    recipe = prepare_inputs(fault, seed, folder / "inputs")
    try:
        config = load_recipe(recipe, [f"seed={seed}", *fault.overrides])
        # Without the page of plots, which takes as long as the training.
        with fault.patch(), open_run(config, recipe.parent, folder / "run", "auto", Silent()) as session:
            items = [item for _, own in items_by_stage(session.run, session.state) for item in own]
            # A start ends before SFT's evaluation, which the fault may change.
            run_items(session, items[:1] if only_sft else items)
        build_summary(folder / "run")
        sender.send(None)
    except VerizeroError as exc:
        sender.send(f"{type(exc).__name__}: {exc}")


def prepare_inputs(fault: Fault, seed: int, inputs: Path) -> Path:
    """Write recipe, verifiers and rows with the fault into a new folder; return the path of the recipe there."""
    shutil.copytree(GRADERS, inputs, ignore=shutil.ignore_patterns("__pycache__"))
    for path in HERE.glob("healthy*.yaml"):  # one may extend another
        shutil.copy(path, inputs / path.name)
    write_rows(inputs, seed)
    if fault.data is not None:
        fault.data(inputs, seed)
    return inputs / fault.recipe.name


def _start(fault: Fault, seed: int, base: Path) -> Path:
    """Return the folder of the healthy recipe's SFT of that seed, trained unless it was."""
    name = SAME_SFT.get(fault.healthy, fault.healthy)
    healthy = Fault(name=name, cause="none", complaint="", healthy=name)
    folder = base / "starts" / f"{name}-{seed}"
    want = {"recipe": _hash(healthy)}
    if not want.items() <= _note(folder).items():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        error = in_own_process(healthy, seed, folder, only_sft=True)
        if error is not None:
            raise RuntimeError(f"the SFT of {name}.yaml with seed {seed} failed: {error}")
        write_atomic(folder / NOTE, json.dumps(want).encode())
    return folder


def _hash(fault: Fault) -> str:
    """Return a hash of the recipe that the fault changes; comments do not count."""
    return hashlib.sha256(json.dumps(read_tree(fault.recipe), sort_keys=True).encode()).hexdigest()[:16]


def _note(folder: Path) -> dict[str, Any]:
    path = folder / NOTE
    note: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    return note


def pass_rates(folder: Path) -> list[tuple[str, int, dict[str, tuple[float, float, float]]]]:
    """Return (label, step, domain -> pass@1 with its interval) of each evaluation of the run."""
    from verizero.pipeline.report.files import read_run

    rows = []
    for row in read_run(folder / "run").evaluations:
        measures = {d: m["pass@1"] for d, m in row.domains.items() if "pass@1" in m}
        rows.append((row.label, row.step, {d: (m["value"], m["low"], m["high"]) for d, m in measures.items()}))
    return rows
