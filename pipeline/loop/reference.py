"""The schedule of the KL reference: after which steps it is replaced by the policy, or moved towards it."""

from __future__ import annotations

from verizero.pipeline.config.stages import ReferenceConfig
from verizero.pipeline.run.algorithm import stage_reference
from verizero.pipeline.run.session import StageSetup
from verizero.pipeline.run.state import RunState
from verizero.pipeline.train.backend import Backend


def reference_config(setup: StageSetup) -> ReferenceConfig:
    """Return the schedule of the reference: the recipe's, else the algorithm's."""
    return stage_reference(setup.rounds, setup.algorithm)


def move_reference(backend: Backend, setup: StageSetup, state: RunState) -> None:
    """Move the reference after a step, if its schedule says so.

    `rounds.begin_round` makes the first copy, and moves the reference for the schedule `every_round`.
    """
    config = reference_config(setup)
    match config.schedule:
        case "every_n_steps":
            assert config.every is not None
            if state.step_in_stage % config.every == 0:
                refresh_reference(backend, state)
        case "ema":
            assert config.alpha is not None
            if state.step_in_stage % (config.every or 1) == 0:
                refresh_reference(backend, state, config.alpha)


def refresh_reference(backend: Backend, state: RunState, alpha: float = 1.0) -> None:
    """Set the reference to alpha * policy + (1 - alpha) * reference, and count its version."""
    backend.refresh_reference(alpha)
    state.reference_version += 1
