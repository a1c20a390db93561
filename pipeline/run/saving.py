"""Writing a run down: checkpoints of everything that the next step depends on, the final model, and what opens a run.

What opens it: recipe.yaml, run.json and origin.json, with which a later process finds the recipe again.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from verizero.pipeline.config.episodes import time_dependent_settings
from verizero.pipeline.config.load import dump, parse, read_tree
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import RunError
from verizero.pipeline.host.disk import disk_errors, partial_path, replace_folder, write_atomic
from verizero.pipeline.host.heap import trim_heap
from verizero.pipeline.models.gguf_file import provenance
from verizero.pipeline.report.measures import note_peak
from verizero.pipeline.run import collapse
from verizero.pipeline.run.build import first_model_path
from verizero.pipeline.run.choose_checkpoint import changes_of
from verizero.pipeline.run.session import Run, Session, StageSetup, Workers
from verizero.pipeline.run.state import RunState, StoreMark, schedule
from verizero.pipeline.train import checkpoint
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.checkpoint import FinishWriting
from verizero.pipeline.train.deadline import WATCH

TEMPLATE_FILE = "template.json"
"""In a model's folder: the template that a run trained it with, which a later run's can be compared to."""


def save(session: Session) -> None:
    """Write a checkpoint of everything that the next step depends on. Every rank must call it.

    It holds state.json, the backend's files (model, optimiser, reference, critic), models that the stage trains next to
    the policy, and a manifest. The next call, or `finish_checkpoint`, waits for what is written in the background; the
    last one of a stage is whole at once.
    """
    run, workers, state, recorder = session.run, session.workers, session.state, session.recorder
    WATCH.begins(f"{recorder.step_label}: checkpoint")
    finish_checkpoint(run, workers)
    is_last = state.is_at_end_of_stage(schedule(run.recipe))
    if is_last:
        state.stage_ends[state.stage.name] = state.next_checkpoint
    # On the disk before the checkpoint that counts them: a resume must find at least these bytes.
    state.store = StoreMark(recorder.store.sync(), recorder.store.sums())
    state.sampler, state.ledger = workers.sampler.state_dict(), workers.ledger.state_dict()
    # Collectives, so outside the part that only rank 0 runs.
    in_flight = workers.rollouts.snapshot()
    number, kept_for_rollback = state.next_checkpoint, collapse.note_checkpoint(state, session.setup.config)
    # Before the state is written, so that a resumed run does not use this number again.
    state.next_checkpoint += 1
    root = run.folder / "checkpoints"
    trim_heap()  # a save copies the weights

    def write(folder: Path) -> FinishWriting | None:
        run.ranks.barrier()  # rank 0 has made the folder
        finish_writing = workers.backend.save(folder, lambda model, to: save_model(run, model, to), in_background=True)
        for name, write_model in workers.extra_models.items():
            write_model(folder / name)
        if run.ranks.is_first:
            whole = replace(state, in_flight=in_flight)
            (folder / "state.json").write_text(json.dumps(whole.to_json()))
        return finish_writing

    try:
        if run.ranks.is_first:
            keep = session.setup.config.checkpoint.keep
            finish_writing: Callable[[], Any] | None = checkpoint.save(
                root, number, write, keep, {*state.stage_ends.values(), *kept_for_rollback}
            )
        else:
            # Other ranks write their shards into the folder that rank 0 made, under its temporary name.
            finish_writing = write(partial_path(checkpoint.path_of(root, number)))
        if finish_writing is not None:
            workers.unfinished = workers.writer.submit(finish_writing)
            if is_last:
                finish_checkpoint(run, workers)
        else:
            run.ranks.barrier()  # no rank continues before the checkpoint has its name
    except RunError:
        # The number is free again: a full disk, for example, may have room at the next try.
        state.next_checkpoint = number
        raise
    with disk_errors(f"writing into {run.rank_folder}"):
        note_peak(run.rank_folder)


def is_first_step(state: RunState) -> bool:
    """True after the first step of a run, which gets a checkpoint. By time, equal runs would differ in files."""
    return state.num_done == 0 and state.step == 1


def finish_checkpoint(run: Run, workers: Workers) -> None:
    """Return once the last checkpoint has its name. Every rank must call it. Raises: RunError if the disk refuses."""
    unfinished, workers.unfinished = workers.unfinished, None
    if unfinished is not None:
        unfinished.result()
        run.ranks.barrier()


def save_final(run: Run, backend: Backend) -> Path:
    """Write the policy as a Hugging Face folder `model/` in the run's folder, replaced as a whole; return its path."""
    from verizero.pipeline.models.streamed import Streamed

    # All ranks: gathering shards is a collective.
    model, final = backend.whole_model(only_first=True), run.folder / "model"
    with replace_folder(final, "writing the final model") if run.ranks.is_first else nullcontext() as partial:
        run.ranks.barrier()  # rank 0 has made the folder
        save_model(run, model, partial or partial_path(final))
        if isinstance(model, Streamed):
            model.finish()
        run.ranks.barrier()  # all have written, before the folder gets its name
    return final


def save_model(run: Run, model: Any, folder: Path) -> None:
    """Write a model with the run's tokenizer, and the template that it was trained with, by rank 0."""
    from verizero.pipeline.models.load import save_folder
    from verizero.pipeline.models.streamed import Streamed

    if not run.ranks.is_first:
        if isinstance(model, Streamed):
            model.save_pretrained(folder)  # takes part; the others' models are whole on rank 0
        return
    save_folder(model, run.tokenizer, folder)
    (folder / TEMPLATE_FILE).write_text(json.dumps(run.recipe.data.template.model_dump(mode="json"), indent=1))


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
    """Write `recipe.yaml` (resolved), `origin.json` (the recipe's own folder) and `run.json` (versions, sizes)."""
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
    """Return a run's recipe with `a.b=c` overrides, and its own folder. Raises: ConfigError, RunError."""
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
