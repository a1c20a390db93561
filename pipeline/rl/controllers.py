"""Adaptive coefficients of the KL and of the entropy bonus, and the decay of the sampling temperature.

The controllers are small states with a `state_dict`, which belongs in the checkpoint. Loads no tensors.
"""

from __future__ import annotations

from collections.abc import Mapping

from verizero.pipeline.errors import CheckpointError, ConfigError
from verizero.pipeline.rl.parts import Parts

# One outlier of a batch moves the coefficient no further than this error would.
_KL_ERROR_LIMIT = 0.2


class KlController:
    """The coefficient of the KL: fixed, or moved so that the KL approaches a target.

    Source: arXiv:1909.08593: beta *= 1 + clip(KL / target - 1, -0.2, 0.2) n / horizon.
    """

    def __init__(self, coef: float, target: float | None, horizon: float | None) -> None:
        self.coef = coef
        self.target = target
        self.horizon = horizon

    def update(self, kl: float, num_responses: int) -> None:
        """Move the coefficient by the KL of one batch of `num_responses`; without a target it stays.

        `kl` must be measured as the target is meant: `Controllers` in pipeline/train/prepare.py gives a mean per token.
        The source means the sum over a response: its target of 6 nats is 0.06 for responses of 100 tokens.
        """
        if self.target is None or self.horizon is None:
            return
        error = max(-_KL_ERROR_LIMIT, min(_KL_ERROR_LIMIT, kl / self.target - 1))
        # A batch beyond five horizons would turn the coefficient negative.
        self.coef *= max(0.0, 1 + error * num_responses / self.horizon)

    def state_dict(self) -> dict[str, float]:
        """Return the state that `load_state_dict` restores."""
        return {"coef": self.coef}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore an adaptive coefficient; a fixed one stays the recipe's. Raises: CheckpointError if it is missing."""
        coef = _read(state, "coef")
        if self.target is not None:
            self.coef = coef


class EntropyController:
    """The coefficient of the entropy bonus: fixed, or rising while entropy is at or below a target, else falling.

    Above the target the bonus is off, however high the coefficient is.

    Source: arXiv:2505.22312.
    """

    def __init__(self, coef: float, target: float | None, step: float, highest: float) -> None:
        self.raw = coef  # continues to move while the bonus is off
        self.target = target
        self.step = step
        self.highest = highest
        self.active = True

    @property
    def coef(self) -> float:
        """The coefficient for the next update."""
        return self.raw if self.active else 0.0

    def update(self, entropy: float) -> None:
        """Move the coefficient by the mean token entropy of one batch, in nats; without a target it stays."""
        if self.target is None:
            return
        self.active = entropy <= self.target
        change = self.step if self.active else -self.step
        self.raw = max(0.0, min(self.highest, self.raw + change))

    def state_dict(self) -> dict[str, float]:
        """Return the state that `load_state_dict` restores."""
        return {"raw": self.raw, "active": float(self.active)}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore an adaptive coefficient; a fixed one stays the recipe's. Raises: CheckpointError if it is missing."""
        raw, active = _read(state, "raw"), bool(_read(state, "active"))
        if self.target is not None:
            self.raw, self.active = raw, active


def kl_controller(parts: Parts) -> KlController:
    """Return the controller that the parts ask for; without a target its coefficient is fixed."""
    return KlController(parts.kl.coef, parts.kl.target, parts.kl.horizon)


def entropy_controller(parts: Parts) -> EntropyController:
    """Return the controller that the parts ask for; without a target its coefficient is fixed."""
    terms = parts.terms
    return EntropyController(terms.entropy_coef, terms.entropy_target, terms.entropy_step, terms.entropy_max)


def decayed_temperature(start: float, end: float | None, progress: float) -> float:
    """Return the sampling temperature at `progress` in [0, 1] of training: linear from start to end, if any.

    Raises: ConfigError for progress outside [0, 1].
    Source: arXiv:2507.20534 section 3.2.3, which decays it and gives no form.
    """
    if not 0 <= progress <= 1:
        raise ConfigError(f"progress must be in [0, 1], got {progress}")
    return start if end is None else start + (end - start) * progress


def _read(state: Mapping[str, float], key: str) -> float:
    if key not in state:
        raise CheckpointError(f"controller state has no {key!r}, it has {', '.join(state) or 'nothing'}")
    return float(state[key])
