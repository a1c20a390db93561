"""Pre-training: next-token training on unlabelled text."""

from __future__ import annotations

from pipeline.data.texts import pieces
from pipeline.loop.steps import Steps, Wrap
from pipeline.run.schedule import Item
from pipeline.run.session import Session
from pipeline.stages.sft import train_tokens
from pipeline.train.texts import Row


def run(session: Session, item: Item, steps: Steps, wrap: Wrap) -> None:
    """The steps of a pre-training stage, from where the state says."""
    section = session.config.pretrain
    assert section is not None
    train_tokens(session, item, text_rows(session, item.stage), section, wrap)


def text_rows(session: Session, stage: str) -> list[Row]:
    """Texts in tokens, all but the first trained on; what is longer than the context is cut into pieces."""
    longest = getattr(session.backend.model.config, "max_position_embeddings", None)
    ids = [session.data.renderer.text_ids(line) for line in session.data.text[stage]]
    return [(piece, 1) for one in ids for piece in pieces(one, longest)]
