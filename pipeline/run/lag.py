"""Off-policy by k updates: the engine keeps the weights that it took some updates ago, through a resume too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from pipeline.errors import CheckpointError, boundary
from pipeline.run.rollouts import hand_over

if TYPE_CHECKING:
    from pipeline.run.session import Session

FILE = "published.pt"


def is_due(session: Session) -> bool:
    """The policy is so many updates ahead of the engine that it hands its weights over."""
    return session.state.policy_version - session.engine.version >= session.config.rollout.publish_every


def hold(session: Session) -> None:
    """After the engine took the policy's weights: remember them, where it may still use them at a later checkpoint."""
    if session.config.rollout.publish_every > 1:
        weights = session.backend.model.state_dict()
        session.published = {name: w.detach().to("cpu", copy=True) for name, w in weights.items()}


def save(session: Session, folder: Path) -> None:
    """Write the engine's weights into a checkpoint, where they are not the policy's."""
    if session.published is not None and session.engine.version != session.state.policy_version:
        with (folder / FILE).open("wb") as file:  # given a path, torch hides a full disk's error
            torch.save({"version": session.engine.version, "weights": session.published}, file)


def publish_first(session: Session, start: Path | None) -> None:
    """Give a new engine its weights: the policy's, or those that the engine had at the checkpoint `start`.

    Raises: CheckpointError if those do not fit the policy.
    """
    path = None if start is None else start / FILE
    if path is None or not path.is_file():
        hand_over(session, session.state.policy_version)
        if session.runahead is not None:
            session.runahead.settle()
        hold(session)
        return
    model = session.backend.model
    present = {name: w.detach().clone() for name, w in model.state_dict().items()}
    with boundary(CheckpointError, f"{path} does not fit the policy"):
        saved = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(saved["weights"])
        session.engine.publish(saved["version"])
        hold(session)
        model.load_state_dict(present)
