"""Supervised fine-tuning on demonstrations."""

from __future__ import annotations

from verizero.pipeline.config.stages import SftConfig
from verizero.pipeline.loop.phases import PhaseWrapper
from verizero.pipeline.run.demonstrations import demonstration_rows
from verizero.pipeline.run.session import Session
from verizero.pipeline.run.state import Item
from verizero.pipeline.stages._epochs import train_tokens
from verizero.pipeline.stages.base import StageKind


def run(session: Session, item: Item, wrap: PhaseWrapper) -> None:
    """Do the steps of an SFT stage, from the step that the state names."""
    stage, context = session.state.stage.name, session.workers.context
    rows = demonstration_rows(session.run, session.setup, session.recorder, stage, context)
    train_tokens(session, item, rows, session.setup.section_as(SftConfig), wrap)


KIND = StageKind(SftConfig, run)
