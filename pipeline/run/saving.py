"""Writing a run down: checkpoints of everything that the next step depends on, and the final model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from verizero.pipeline.errors import RunError
from verizero.pipeline.host.disk import disk_errors, partial_path, replace_folder
from verizero.pipeline.host.heap import trim_heap
from verizero.pipeline.report.measures import note_peak
from verizero.pipeline.run import collapse
from verizero.pipeline.run.session import Run, Session, Workers
from verizero.pipeline.run.state import StoreMark, schedule
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
            finish_writing = checkpoint.save(
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


def finish_checkpoint(run: Run, workers: Workers) -> None:
    """Return once the last checkpoint has its name, if it is still being written. Every rank must call it.

    Raises: RunError if the disk does not take what was still to be written.
    """
    unfinished, workers.unfinished = workers.unfinished, None
    if unfinished is not None:
        unfinished.result()
        run.ranks.barrier()


def save_final(run: Run, backend: Backend) -> Path:
    """Write the policy as a Hugging Face folder `model/` in the run's folder, replaced as a whole; return its path."""
    # All ranks: gathering shards is a collective.
    model = backend.whole_model(only_first=True)
    if not run.ranks.is_first:
        save_model(run, model, run.folder / "model")
        return run.folder / "model"
    with replace_folder(run.rank_folder / "model", "writing the final model") as partial:
        save_model(run, model, partial)
    return run.rank_folder / "model"


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
