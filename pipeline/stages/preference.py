"""Training on pairs of better and worse responses: of files, or answers of the policy that its verifiers graded."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.errors import RunError
from pipeline.loop.steps import Steps, Wrap
from pipeline.report.files import write_atomic
from pipeline.run.schedule import Item
from pipeline.run.session import Session, stage_folder
from pipeline.stages._epochs import chunks, num_steps, record_step, steps_until
from pipeline.stages._pairs import kept_rows, made_rows
from pipeline.stages.pairwise import loss_of, settings_of
from pipeline.train.preference import PreferenceRow, ReferenceTable, key_of, preference_update
from pipeline.types import StepMetrics


def run(session: Session, item: Item, steps: Steps, wrap: Wrap) -> None:
    """The steps of one part of a preference stage, from where the state says.

    At its first step the pairs are made and the reference's log-probs are computed, once; both are files of the stage's
    folder, from which an interrupted part goes on. The reference is the policy that the part begins with.
    """
    section = session.config.preference
    assert section is not None
    begins = session.state.step == 0
    rows = made_rows(session, item, section, steps, wrap) if begins else kept_rows(session, item)
    total = num_steps(section.steps, section.epochs, len(rows), section.batch_size)
    if begins:
        session.backend.start(section.optimizer, total)
    table = reference_table(session, item, rows, begins)
    for until in chunks(session, item, total):
        wrap("train", train_chunk)(session, item, table, until)


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
    section = session.config.preference
    assert section is not None
    (params, loss), settings, order = loss_of(session), settings_of(session), f"{item.stage} {item.round}"

    def update(at: list[int]) -> StepMetrics:
        return preference_update(session.backend, params, loss, table.batch(at), settings)

    for metrics in steps_until(session, item, until, len(table.rows), section.batch_size, update, order):
        record_step(session, item, metrics)
    session.state.policy_version += 1
