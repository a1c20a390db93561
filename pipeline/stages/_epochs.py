"""Training in epochs over given rows: number of steps, the rows of each step, and checkpoints on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from verizero.pipeline.config.stages import PretrainConfig, SftConfig
from verizero.pipeline.data.render import end_of_prompts
from verizero.pipeline.errors import NonFiniteError
from verizero.pipeline.loop.phases import PhaseWrapper
from verizero.pipeline.models.flops import update_flops
from verizero.pipeline.report.row_types import StepRow
from verizero.pipeline.run.saving import is_first_step, save
from verizero.pipeline.run.session import Session
from verizero.pipeline.run.state import EVALUATION, Item
from verizero.pipeline.seeds import stream
from verizero.pipeline.stages.evaluate import evaluate
from verizero.pipeline.train.texts import Row, text_gradient
from verizero.pipeline.types import StepMetrics

CHUNK_STEPS = 50
"""Steps in one phase (a task in Prefect)."""
Update = Callable[[list[int]], StepMetrics]
"""Indices of rows -> the metrics of one optimiser step on them."""


def num_steps(steps: int | None, epochs: float | None, num_rows: int, batch_size: int) -> int:
    """Return the number of steps of a stage on so many rows. The last batch of an epoch reaches into the next one."""
    return steps if epochs is None and steps is not None else math.ceil((epochs or 0) * num_rows / batch_size)


def last_steps_of_chunks(session: Session, item: Item, total: int, *every: int | None) -> Iterator[int]:
    """Yield the last step of each chunk, starting at the state's step, and write a checkpoint between two chunks.

    A chunk also ends after each multiple of the numbers in `every`.
    """
    state, recorder = session.state, session.recorder
    recorder.progress.begin(item.label, state.step, total)
    while state.step < total:
        last_step = min(total, *((state.step // n + 1) * n for n in (CHUNK_STEPS, *every) if n is not None))
        recorder.step_label = f"{item.label} steps {state.step + 1}-{last_step}"
        session.workers.rollouts.free_memory()  # pairs were sampled before, or an evaluation came between
        yield last_step
        if last_step < total or recorder.callbacks.stopped_by:
            save(session)
        recorder.callbacks.raise_if_stopped()


def train_steps(
    session: Session,
    item: Item,
    last_step: int,
    num_rows: int,
    batch_size: int,
    update: Update,
    order: str | None = None,
) -> Iterator[StepMetrics]:
    """Yield the metrics of each step up to `last_step`, and record them when the caller asks for the next.

    A refused update is reported and counted. `order` names the random order of the rows; None: the stage's name. Each
    epoch goes through all rows once. A step's rows depend on its number alone, so that a resumed run draws the same.
    """
    state, recorder, seed = session.state, session.recorder, session.run.seed
    while state.step < last_step:
        with recorder.timed("update"):
            positions = range(state.step * batch_size, (state.step + 1) * batch_size)
            epochs_and_indices = (divmod(position, num_rows) for position in positions)
            chosen = [_order(num_rows, seed, order or item.stage, epoch)[index] for epoch, index in epochs_and_indices]
            try:
                metrics = update(chosen)
            except NonFiniteError as exc:
                recorder.say(f"{item.label} step {state.step + 1}: {exc}")
                metrics = {"update/skipped": 1.0}
        state.step += 1
        yield metrics
        _record(session, item, metrics)
        # After a chunk's last step the caller first counts a version of the policy; `last_steps_of_chunks` stops then.
        if (recorder.callbacks.stopped_by or is_first_step(state)) and state.step < last_step:
            save(session)
            recorder.callbacks.raise_if_stopped()


def _record(session: Session, item: Item, metrics: StepMetrics) -> None:
    """Write the step that was just done to metrics.jsonl, the trackers and the progress bar, and call the callbacks."""
    recorder, step = session.recorder, session.state.step
    row = StepRow(
        stage=item.stage, stage_kind=item.kind, round=item.round, step=step, metrics=metrics, **recorder.take_measures()
    )
    recorder.store.metrics(row)
    recorder.track({f"{item.stage}/{k}": v for k, v in metrics.items()}, step)
    recorder.progress.advance(step, {"loss": metrics.get("loss", float("nan"))})
    recorder.callbacks.call(session.run.ranks, row)


@lru_cache(maxsize=2)  # a batch reaches at most into the next epoch, unless it holds more rows than there are
def _order(num_rows: int, seed: int, stage: str, epoch: int) -> list[int]:
    order = list(range(num_rows))
    stream(seed, stage, "epoch", epoch).shuffle(order)
    return order


def train_tokens(
    session: Session, item: Item, rows: Sequence[Row], section: SftConfig | PretrainConfig, wrap: PhaseWrapper
) -> None:
    """Train on the next token of `rows`, from the step that the state names."""
    every, total = section.evaluate_every, num_steps(section.steps, section.epochs, len(rows), section.batch_size)
    if session.state.step == 0:
        session.workers.backend.start(section.optimizer, total)
    for last_step in last_steps_of_chunks(session, item, total, every):
        wrap("train", train_tokens_until)(session, item, rows, section, last_step)
        if last_step < total and every is not None and last_step % every == 0 and session.run.data.evaluation:
            evaluate(session, replace(item, kind=EVALUATION, label=f"{item.label} step {last_step}"), wrap)
            session.recorder.progress.begin(item.label, last_step, total)


def train_tokens_until(
    session: Session, item: Item, rows: Sequence[Row], section: SftConfig | PretrainConfig, last_step: int
) -> None:
    """Do the steps up to `last_step`."""

    def update(indices: list[int]) -> StepMetrics:
        return next_token_update(session, [rows[i] for i in indices], section)

    for _ in train_steps(session, item, last_step, len(rows), section.batch_size, update):
        pass
    session.state.policy_version += 1


def next_token_update(session: Session, batch: Sequence[Row], section: SftConfig | PretrainConfig) -> StepMetrics:
    """Do one optimiser step on the mean negative log-likelihood of all trained tokens of the batch."""
    backend, most = session.workers.backend, session.setup.config.train.most_tokens
    rows = [(len(row.ids), row.num_trained) for row in batch]
    session.recorder.work.add("update", sum(n for n, _ in rows), update_flops(backend.model, rows))
    try:
        metrics = text_gradient(backend, batch, 1.0, session.run.pad_id, most)
    except NonFiniteError:
        backend.discard()
        raise
    shown = rows_metrics(session, batch) if isinstance(section, SftConfig) else {}
    return {**metrics, **shown, **backend.step()}


def rows_metrics(session: Session, batch: Sequence[Row]) -> StepMetrics:
    """Return what shows a wrong mask or template of demonstrations.

    The number of rows, of all their tokens, the share of rows whose last token is a trained end, and how prompts end.
    """
    renderer = session.run.data.renderer
    end = renderer.closing[1]
    ends = sum(row.ids[-1] == end and bool(row.spans) and row.spans[-1][1] == len(row.ids) for row in batch)
    prompts = [row.ids[: row.spans[0][0]] for row in batch if row.spans]
    return {
        "rows": float(len(batch)),
        "rows/tokens": float(sum(len(row.ids) for row in batch)),
        "ends/trained": ends / len(batch),
        **end_of_prompts(renderer.decode, prompts),
    }
