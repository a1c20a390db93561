"""The schedule of the KL reference: after which steps it is replaced by the policy, or moved towards it."""

from __future__ import annotations

from verizero.pipeline.config.stages import ReferenceConfig
from verizero.pipeline.run.algorithm import stage_reference
from verizero.pipeline.run.session import StageSetup
from verizero.pipeline.run.state import RunState
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.types import StepMetrics


def reference_config(setup: StageSetup) -> ReferenceConfig:
    """Return the schedule of the reference: the recipe's, else the algorithm's."""
    return stage_reference(setup.rounds, setup.algorithm)


def move_reference(backend: Backend, setup: StageSetup, state: RunState, metrics: StepMetrics) -> None:
    """Move the reference after a step, if its schedule says so.

    `rounds.begin_round` makes the first copy, and moves the reference for the schedule `every_round`.
    """
    config, stage = reference_config(setup), state.stage
    match config.schedule:
        case "every_n_steps":
            assert config.every is not None
            if state.step_in_stage % config.every == 0:
                refresh_reference(backend, state)
        case "ema":
            assert config.alpha is not None
            if state.step_in_stage % (config.every or 1) == 0:
                refresh_reference(backend, state, config.alpha)
        case "on_kl":
            assert config.kl is not None
            if metrics.get("kl/k3", 0.0) > config.kl:
                refresh_reference(backend, state)
        case "on_plateau" if "reward/mean" in metrics:
            assert config.patience is not None
            reward = metrics["reward/mean"]
            is_better = stage.best_reward is None or reward > stage.best_reward
            if is_better:
                stage.best_reward = reward
            stage.steps_since_best = 0 if is_better else stage.steps_since_best + 1
            if stage.steps_since_best >= config.patience:
                refresh_reference(backend, state)
                stage.best_reward, stage.steps_since_best = None, 0


def refresh_reference(backend: Backend, state: RunState, alpha: float = 1.0) -> None:
    """Set the reference to alpha * policy + (1 - alpha) * reference, and count its version."""
    backend.refresh_reference(alpha)
    state.reference_version += 1
