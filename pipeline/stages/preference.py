"""Training on pairs of better and worse responses: of files, or answers of the policy that its verifiers graded."""

from __future__ import annotations

from collections.abc import Sequence

from verizero.pipeline.config.pairs import PreferenceConfig
from verizero.pipeline.errors import RunError
from verizero.pipeline.host.disk import write_atomic
from verizero.pipeline.loop.phases import PhaseWrapper
from verizero.pipeline.run.session import Session
from verizero.pipeline.run.state import Item
from verizero.pipeline.stages._epochs import last_steps_of_chunks, num_steps, train_steps
from verizero.pipeline.stages._pairs import kept_rows, loss_of, make_rows, update_settings
from verizero.pipeline.stages.base import StageKind
from verizero.pipeline.train.preference import PreferenceRow, ReferenceTable, key_of, preference_update
from verizero.pipeline.types import StepMetrics


def run(session: Session, item: Item, wrap: PhaseWrapper) -> None:
    """Do the steps of one part of a preference stage, from the step that the state names.

    At its first step the pairs are made and the reference's log-probs are computed, once. Both are files in the stage's
    folder, with which an interrupted part continues. The reference is the policy that the part begins with.
    """
    section = session.setup.section_as(PreferenceConfig)
    begins = session.state.step == 0
    rows = make_rows(session, item, section, wrap) if begins else kept_rows(session.run, item)
    total = num_steps(section.steps, section.epochs, len(rows), section.batch_size)
    session.workers.rollouts.free_memory()  # before the optimiser and the reference need the room
    if begins:
        session.workers.backend.start(section.optimizer, total)
    table = reference_table(session, item, rows, begins)
    for last_step in last_steps_of_chunks(session, item, total):
        wrap("train", train_until)(session, item, table, section.batch_size, last_step)


def reference_table(session: Session, item: Item, rows: Sequence[PreferenceRow], begins: bool) -> ReferenceTable:
    """Return the reference's log-probs of the part's rows: computed as the part begins, later read from their file.

    Raise RunError if the file is missing: the policy has trained since and cannot compute them again.
    """
    run, backend = session.run, session.workers.backend
    params, settings = loss_of(session.setup)[0], update_settings(run, session.setup)
    if not params.needs_reference:
        return ReferenceTable(rows)
    key = key_of(rows, settings)
    path = run.stage_folder(item.stage) / f"reference-{item.round}-{key}.safetensors"
    if not begins:
        if not path.is_file():
            raise RunError(
                f"{path} is missing and cannot be computed again, as the policy has trained since; start under another "
                "name"
            )
        return ReferenceTable.from_bytes(params, rows, path.read_bytes())
    with session.recorder.timed("reference"):
        table = ReferenceTable.computed(backend, params, rows, settings, "policy")
    session.state.reference_version += 1
    if run.ranks.is_first:
        write_atomic(path, table.to_bytes())
    run.ranks.barrier()
    return table


def train_until(session: Session, item: Item, table: ReferenceTable, batch_size: int, last_step: int) -> None:
    """Do the steps up to `last_step`."""
    (params, loss), settings = loss_of(session.setup), update_settings(session.run, session.setup)

    def update(indices: list[int]) -> StepMetrics:
        return preference_update(session.workers.backend, params, loss, table.batch(indices), settings)

    order = f"{item.stage} {item.round}"
    for _ in train_steps(session, item, last_step, len(table.rows), batch_size, update, order):
        pass
    session.state.policy_version += 1


KIND = StageKind(PreferenceConfig, run)
