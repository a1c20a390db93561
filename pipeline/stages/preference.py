"""Training on pairs of better and worse responses: of files, or answers of the policy that its verifiers graded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pipeline.config.preference import PreferenceConfig
from pipeline.errors import NonFiniteError, RunError
from pipeline.report.files import write_atomic
from pipeline.stages.pair_rows import kept_rows, made_rows
from pipeline.stages.pairwise import loss_of, settings_of
from pipeline.stages.schedule import Item
from pipeline.stages.session import Session, stage_folder
from pipeline.stages.sft import CHUNK_STEPS, batch_rows, record_step
from pipeline.stages.steps import Steps, Wrap
from pipeline.train.preference import PreferenceRow, ReferenceTable, key_of, preference_update


def run(session: Session, item: Item, steps: Steps, wrap: Wrap) -> None:
    """The steps of one part of a preference stage, from where the state says.

    At its first step the pairs are made and the reference's log-probs are computed, once; both are files of the stage's
    folder, from which an interrupted part goes on. The reference is the policy that the part begins with.
    """
    section, state = session.config.preference, session.state
    assert section is not None
    begins = state.step == 0
    rows = made_rows(session, item, section, steps, wrap) if begins else kept_rows(session, item)
    item = sized(item, section, len(rows))
    if begins:
        session.backend.start(section.optimizer, item.num_steps)
    table = reference_table(session, item, rows, begins)
    session.progress.begin(item.label, state.step, item.num_steps)
    while state.step < item.num_steps:
        until = min(item.num_steps, (state.step // CHUNK_STEPS + 1) * CHUNK_STEPS)
        session.where = f"{item.label} steps {state.step + 1}-{until}"
        wrap("train", train_chunk)(session, item, table, until)
        if until < item.num_steps:
            session.save()


def sized(item: Item, section: PreferenceConfig, num_rows: int) -> Item:
    """The item with its number of steps, where that follows from the pairs."""
    if section.epochs is None:
        return item
    return replace(item, num_steps=max(1, math.ceil(section.epochs * num_rows / section.batch_size)))


def reference_table(session: Session, item: Item, rows: Sequence[PreferenceRow], begins: bool) -> ReferenceTable:
    """The reference's log-probs of the part's rows: computed as the part begins, later read from their file.

    Raises: RunError where that file is gone: the policy has moved on and cannot give them again.
    """
    params, settings = loss_of(session)[0], settings_of(session)
    if not params.needs_reference:
        return ReferenceTable(rows)
    folder = stage_folder(session, item.stage)
    path = folder / f"reference-{item.round}-{key_of(rows, settings.temperature)}.safetensors"
    if not begins:
        if not path.is_file():
            raise RunError(f"{path} is missing, and the reference is no more; start under another name")
        return ReferenceTable.from_bytes(params, rows, path.read_bytes())
    with session.timed("reference"):
        table = ReferenceTable.computed(session.backend, params, rows, settings)
    session.state.reference_version += 1
    if session.ranks.is_first:
        write_atomic(path, table.to_bytes())
    session.ranks.barrier()
    return table


def train_chunk(session: Session, item: Item, table: ReferenceTable, until: int) -> None:
    """Steps up to `until`; one line of metrics each."""
    section, state = session.config.preference, session.state
    assert section is not None
    (params, loss), settings = loss_of(session), settings_of(session)
    order = f"{item.stage} {item.round}"
    while state.step < until:
        with session.timed("update"):
            at = batch_rows(len(table.rows), section.batch_size, state.step, session.config.seed, order)
            try:
                metrics = preference_update(session.backend, params, loss, table.batch(at), settings)
            except NonFiniteError as exc:
                session.progress.say(f"{item.label} step {state.step + 1}: {exc}")
                metrics = {"update/skipped": 1.0}
        state.step += 1
        record_step(session, item, metrics)
    state.policy_version += 1
