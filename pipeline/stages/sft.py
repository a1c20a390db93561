"""Supervised fine-tuning on demonstrations, and the next-token training that other kinds of stages use too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from pipeline.config.stages import PretrainConfig, SftConfig
from pipeline.errors import NonFiniteError
from pipeline.seeds import stream
from pipeline.stages.evaluate import evaluate
from pipeline.stages.schedule import Item
from pipeline.stages.session import Session
from pipeline.stages.steps import Steps, Wrap, demonstration_rows
from pipeline.train.texts import Row, text_gradient

CHUNK_STEPS = 50
"""Steps between two looks of the outside (a task in Prefect)."""


def run(session: Session, item: Item, steps: Steps, wrap: Wrap) -> None:
    """The steps of an SFT stage, from where the state says."""
    section = session.config.sft
    assert section is not None
    train_tokens(session, item, demonstration_rows(session), section, wrap)


def train_tokens(
    session: Session, item: Item, rows: Sequence[Row], section: SftConfig | PretrainConfig, wrap: Wrap
) -> None:
    """Next-token training on `rows`, from where the state says."""
    state, total = session.state, steps_of(section, len(rows))
    if state.step == 0:
        session.backend.start(section.optimizer, total)
    session.progress.begin(item.label, state.step, total)
    while state.step < total:
        until = min(total, *(_next(state.step, every) for every in (CHUNK_STEPS, section.evaluate_every) if every))
        session.where = f"{item.label} steps {state.step + 1}-{until}"
        wrap("train", train_chunk)(session, item, rows, section, until)
        if until == total:
            return
        if section.evaluate_every is not None and until % section.evaluate_every == 0 and session.data.evaluation:
            evaluate(session, replace(item, kind="evaluate", label=f"{item.label} step {until}"), wrap)
            session.progress.begin(item.label, state.step, total)
        session.save()


def steps_of(section: SftConfig | PretrainConfig, num_rows: int) -> int:
    """How many steps the stage has on so many rows; a last batch runs on into the next epoch."""
    if section.epochs is None:
        assert section.steps is not None
        return section.steps
    return math.ceil(section.epochs * num_rows / section.batch_size)


def _next(step: int, every: int) -> int:
    return (step // every + 1) * every


def train_chunk(
    session: Session, item: Item, rows: Sequence[Row], section: SftConfig | PretrainConfig, until: int
) -> None:
    """Steps up to `until`; one line of metrics each."""
    state = session.state
    while state.step < until:
        with session.timed("update"):
            chosen = batch_rows(len(rows), section.batch_size, state.step, session.config.seed, item.stage)
            try:
                metrics = next_token_update(session, [rows[i] for i in chosen], section.packing)
            except NonFiniteError as exc:
                session.progress.say(f"{item.label} step {state.step + 1}: {exc}")
                metrics = {"update/skipped": 1.0}
        state.step += 1
        record_step(session, item, metrics)
    state.policy_version += 1


def record_step(session: Session, item: Item, metrics: dict[str, float]) -> None:
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


def next_token_update(session: Session, batch: Sequence[Row], packs: bool = False) -> dict[str, float]:
    """One optimiser step on the mean negative log-likelihood of all trained tokens of the batch."""
    backend = session.backend
    try:
        seen = text_gradient(backend, batch, 1.0, session.pad_id, session.config.train.micro_batch_tokens, packs)
    except NonFiniteError:
        backend.discard()
        raise
    return {**seen, **backend.step()}


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
