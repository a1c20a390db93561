"""Pre-training: next-token training on unlabelled text."""

from __future__ import annotations

from collections.abc import Sequence

from verizero.pipeline.config.stages import PretrainConfig
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.texts import pieces
from verizero.pipeline.loop.phases import PhaseWrapper
from verizero.pipeline.run.session import Session
from verizero.pipeline.run.state import Item
from verizero.pipeline.stages._epochs import train_tokens
from verizero.pipeline.stages.base import StageKind
from verizero.pipeline.train.texts import Row, row_after


def run(session: Session, item: Item, wrap: PhaseWrapper) -> None:
    """Do the steps of a pre-training stage, from the step that the state names."""
    section, data = session.setup.section_as(PretrainConfig), session.run.data
    train_tokens(session, item, text_rows(data.renderer, session.workers.context, data.text[item.stage]), section, wrap)


def text_rows(renderer: Renderer, context: int | None, texts: Sequence[str]) -> list[Row]:
    """Return texts in tokens, all but the first token trained on. Texts longer than the context are cut into pieces."""
    return [row_after(piece, 1) for text in texts for piece in pieces(renderer.text_ids(text), context)]


KIND = StageKind(PretrainConfig, run)
