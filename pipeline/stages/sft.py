"""Supervised fine-tuning on demonstrations."""

from __future__ import annotations

from verizero.pipeline.loop.steps import Wrap
from verizero.pipeline.run.demonstrations import demonstration_rows
from verizero.pipeline.run.schedule import Item
from verizero.pipeline.run.session import Session
from verizero.pipeline.stages._epochs import train_tokens


def run(session: Session, item: Item, wrap: Wrap) -> None:
    """Do the steps of an SFT stage, from the step that the state names."""
    section = session.setup.config.sft
    assert section is not None
    stage, context = session.state.stage.name, session.workers.context
    rows = demonstration_rows(session.run, session.setup, session.recorder, stage, context)
    train_tokens(session, item, rows, section, wrap)
