"""Training in epochs over rows at hand: how many steps, which rows each takes, and checkpoints on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from pipeline.errors import NonFiniteError
from pipeline.run.schedule import Item
from pipeline.run.session import Session
from pipeline.seeds import stream
from pipeline.types import StepMetrics

CHUNK_STEPS = 50
"""Steps between two looks of the outside (a task in Prefect)."""


def num_steps(steps: int | None, epochs: float | None, num_rows: int, batch_size: int) -> int:
    """How many steps a stage has on so many rows; a last batch runs on into the next epoch."""
    return steps if epochs is None and steps is not None else math.ceil((epochs or 0) * num_rows / batch_size)


def chunks(session: Session, item: Item, total: int, *every: int | None) -> Iterator[int]:
    """The step that each chunk goes up to, from where the state says; between two chunks a checkpoint is written.

    `every`: a chunk also ends after each so many steps.
    """
    state = session.state
    session.progress.begin(item.label, state.step, total)
    while state.step < total:
        until = min(total, *((state.step // n + 1) * n for n in (CHUNK_STEPS, *every) if n is not None))
        session.where = f"{item.label} steps {state.step + 1}-{until}"
        yield until
        if until < total:
            session.save()


def steps_until(
    session: Session,
    item: Item,
    until: int,
    num_rows: int,
    batch_size: int,
    update: Callable[[list[int]], StepMetrics],
    order: str | None = None,
) -> Iterator[StepMetrics]:
    """Metrics of each step up to `until`: of `update` on the batch's rows; one that is refused is said and counted.

    `order` names the random numbers that rows are ordered by; None: the stage's name.
    """
    state = session.state
    while state.step < until:
        with session.timed("update"):
            chosen = batch_rows(num_rows, batch_size, state.step, session.config.seed, order or item.stage)
            try:
                metrics = update(chosen)
            except NonFiniteError as exc:
                session.progress.say(f"{item.label} step {state.step + 1}: {exc}")
                metrics = {"update/skipped": 1.0}
        state.step += 1
        yield metrics


def record_step(session: Session, item: Item, metrics: StepMetrics) -> None:
    """One line of metrics.jsonl for the step that was just done, to the trackers and the progress bar too."""
    step = session.state.step
    session.store.metrics(
        {
            "kind": "step",
            "stage": item.stage,
            "stage_kind": item.kind,
            "round": item.round,
            "step": step,
            "metrics": metrics,
            "time": session.take_times(),
        }
    )
    session.track({f"{item.stage}/{k}": v for k, v in metrics.items()}, step)
    session.progress.advance(step, {"loss": metrics.get("loss", float("nan"))})


def batch_rows(num_rows: int, batch_size: int, step: int, seed: int, stage: str) -> list[int]:
    """Indices of the rows of one batch: epochs without replacement, each in an order of its own.

    A function of the step alone, so that a resumed run draws what it would have drawn. Batches run on over the end of
    an epoch.
    """
    first = step * batch_size
    out = []
    for position in range(first, first + batch_size):
        epoch, at = divmod(position, num_rows)
        out.append(_order(num_rows, seed, stage, epoch)[at])
    return out


_orders: dict[tuple[int, int, str, int], list[int]] = {}


def _order(num_rows: int, seed: int, stage: str, epoch: int) -> list[int]:
    key = (num_rows, seed, stage, epoch)
    if key not in _orders:
        _orders.clear()
        order = list(range(num_rows))
        stream(seed, stage, "epoch", epoch).shuffle(order)
        _orders[key] = order
    return _orders[key]
