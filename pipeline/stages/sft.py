"""Supervised fine-tuning on demonstrations, and the next-token training that other kinds of stages use too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipeline.config.stages import PretrainConfig, SftConfig
from pipeline.errors import NonFiniteError
from pipeline.loop.steps import Steps, Wrap, demonstration_rows
from pipeline.run.schedule import Item
from pipeline.run.session import Session
from pipeline.stages._epochs import chunks, num_steps, record_step, steps_until
from pipeline.stages.evaluate import evaluate
from pipeline.train.texts import Row, text_gradient
from pipeline.types import StepMetrics


def run(session: Session, item: Item, steps: Steps, wrap: Wrap) -> None:
    """The steps of an SFT stage, from where the state says."""
    section = session.config.sft
    assert section is not None
    train_tokens(session, item, demonstration_rows(session), section, wrap)


def train_tokens(
    session: Session, item: Item, rows: Sequence[Row], section: SftConfig | PretrainConfig, wrap: Wrap
) -> None:
    """Next-token training on `rows`, from where the state says."""
    every, total = section.evaluate_every, num_steps(section.steps, section.epochs, len(rows), section.batch_size)
    if session.state.step == 0:
        session.backend.start(section.optimizer, total)
    for until in chunks(session, item, total, every):
        wrap("train", train_chunk)(session, item, rows, section, until)
        if until < total and every is not None and until % every == 0 and session.data.evaluation:
            evaluate(session, replace(item, kind="evaluate", label=f"{item.label} step {until}"), wrap)
            session.progress.begin(item.label, until, total)


def train_chunk(
    session: Session, item: Item, rows: Sequence[Row], section: SftConfig | PretrainConfig, until: int
) -> None:
    """Steps up to `until`; one line of metrics each."""

    def update(at: list[int]) -> StepMetrics:
        return next_token_update(session, [rows[i] for i in at], section.packing)

    for metrics in steps_until(session, item, until, len(rows), section.batch_size, update):
        record_step(session, item, metrics)
    session.state.policy_version += 1


def next_token_update(session: Session, batch: Sequence[Row], packs: bool = False) -> StepMetrics:
    """One optimiser step on the mean negative log-likelihood of all trained tokens of the batch."""
    backend = session.backend
    try:
        seen = text_gradient(backend, batch, 1.0, session.pad_id, session.config.train.micro_batch_tokens, packs)
    except NonFiniteError:
        backend.discard()
        raise
    return {**seen, **backend.step()}
