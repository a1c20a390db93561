"""The coefficient of the KL, fixed or adaptive, and the decay of the sampling temperature. Loads no tensors."""

from __future__ import annotations

from collections.abc import Mapping

from verizero.pipeline.errors import CheckpointError, ConfigError
from verizero.pipeline.rl.parts import Parts

# One outlier of a batch moves the coefficient no further than this error would.
_KL_ERROR_LIMIT = 0.2


class KlController:
    """The coefficient of the KL: fixed, or moved so that the KL approaches a target.

    Source: arXiv:1909.08593: beta *= 1 + clip(KL / target - 1, -0.2, 0.2) n / horizon, for n responses. There the KL is
    the sum over a response: a target of 6 nats is 0.06 a token for responses of 100 tokens.
    """

    def __init__(self, parts: Parts) -> None:
        params = parts.params
        self.coef, self.target, self.horizon = params.kl_coef, params.kl_target, params.kl_horizon
        # Like the target a mean per token in nats. With KL in the reward it is that of the policy at batch start, in
        # the loss that of the minibatches, by k1, the unbiased estimate.
        self.metric = "reward/kl_per_token" if params.kl_place == "reward" else "kl/k1"

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Move the coefficient by the metrics of an update; without a target it stays."""
        if self.target is None or self.horizon is None or self.metric not in metrics:
            return
        error = max(-_KL_ERROR_LIMIT, min(_KL_ERROR_LIMIT, metrics[self.metric] / self.target - 1))
        # A batch beyond five horizons would turn the coefficient negative.
        self.coef *= max(0.0, 1 + error * round(metrics["rows"]) / self.horizon)

    def state_dict(self) -> dict[str, float]:
        """Return the state that `load_state_dict` restores."""
        return {"coef": self.coef}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore an adaptive coefficient; a fixed one stays the recipe's. Raises: CheckpointError if it is missing."""
        if "coef" not in state:
            raise CheckpointError(f"controller state has no 'coef', it has {', '.join(state) or 'nothing'}")
        if self.target is not None:
            self.coef = float(state["coef"])


def decayed_temperature(start: float, end: float | None, progress: float) -> float:
    """Return the sampling temperature at `progress` in [0, 1] of training: linear from start to end, if any.

    Raises: ConfigError for progress outside [0, 1].
    Source: arXiv:2507.20534 section 3.2.3, which decays it and gives no form.
    """
    if not 0 <= progress <= 1:
        raise ConfigError(f"progress must be in [0, 1], got {progress}")
    return start if end is None else start + (end - start) * progress
