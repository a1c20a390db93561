"""Stages that do not go on from the policy of the one before, but from that of an earlier one, or of the base."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.config.stages import BASE
from pipeline.train import checkpoint

if TYPE_CHECKING:
    from pipeline.run.session import Session


def begin_anew(session: Session, stage: str) -> None:
    """Where a stage begins and does not go on from the one before: its policy is the one that it names.

    Raises: CheckpointError where the end of the stage that it names cannot be trusted.
    """
    from pipeline.run.build import put_weights

    (start,) = (s.start for s in session.recipe.stages if s.name == stage)
    state = session.state
    if start is None or stage == state.stage or state.num_done == 0:
        return
    end = None if start == BASE else session.shared / "checkpoints" / f"{state.ends[start]:08d}"
    if end is not None:
        checkpoint.require(end)
    put_weights(session, end)
    state.policy_version += 1
    session.progress.say(f"{stage} begins with the policy {'of the base' if end is None else f'that {start} left'}")
