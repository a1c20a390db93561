"""What a training backend is: the policy, its optimiser and its reference, wherever their shards live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from torch import Tensor

from pipeline.config.sections import OptimizerConfig
from pipeline.train.ranks import Ranks
from pipeline.train.replay import Replay

Who = Literal["policy", "reference"]


class CriticBackend(Protocol):
    """A critic: values with gradient, and optimiser steps of its own."""

    def values(self, input_ids: Tensor, where: Tensor) -> Tensor:
        """V [B, T] of the states before the tokens at `where` (bool [B, T]), 0 elsewhere."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient of one micro-batch's share of the value loss."""
        ...

    def require_finite(self) -> None:
        """Raises: NonFiniteError if the gradient is not finite; it is still there."""
        ...

    def step(self) -> dict[str, float]:
        """Clip, update, forget the gradient; gradient norm and learning rate."""
        ...

    def discard(self) -> None:
        """Forget the gradient."""
        ...


class Backend(Protocol):
    """Computes log-probs with gradient, takes optimiser steps, keeps the reference and, for some, a critic."""

    model: Any
    """The policy's module. Its weights may be shards; `whole_model` has them whole."""
    ranks: Ranks
    """The processes that train this policy together."""

    @property
    def critic(self) -> CriticBackend | None:
        """The critic; None before `start_critic`."""
        ...

    def start(self, optimizer: OptimizerConfig, total_steps: int) -> None:
        """Begin a stage: a fresh optimiser whose schedule spans `total_steps` updates."""
        ...

    def start_critic(self, shared: bool, optimizer: OptimizerConfig, total_steps: int) -> None:
        """A critic that has learned nothing: a head on the policy's backbone if `shared`, else a copy of its own."""
        ...

    def logprobs(
        self,
        input_ids: Tensor,
        where: Tensor,
        temperature: float,
        who: Who,
        entropy: bool,
        replay: Replay | None = None,
        lengths: Sequence[int] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probs [B, T] of the tokens at `where` (bool [B, T]), 0 elsewhere, and their entropies if asked for.

        With `replay` both are of the distribution cut off as it was sampled, for the policy and the reference alike,
        and the policy uses the experts that were used then; a reference routes by itself. With `lengths`, the tokens
        of each row, rows are packed: padding is not computed.
        """
        ...

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient of one micro-batch's share of the loss."""
        ...

    def step(self) -> dict[str, float]:
        """Clip, update, forget the gradient; gradient norm and learning rate.

        Raises: NonFiniteError if the gradient is not finite; weights and optimiser are as before, the gradient is gone.
        """
        ...

    def discard(self) -> None:
        """Forget the gradient, the critic's too."""
        ...

    def refresh_reference(self, alpha: float = 1.0) -> None:
        """reference <- alpha * policy + (1 - alpha) * reference; made on first use."""
        ...

    def whole_model(self) -> Any:
        """A plain module with the policy's present weights, to generate with and to save; the same one each time."""
        ...

    def save(self, folder: Path, save_model: Callable[[Any, Path], None]) -> None:
        """Write model (through `save_model`), optimiser, reference and critic into `folder`, by rank 0."""
        ...

    def load(self, folder: Path) -> None:
        """Restore all that `save` wrote, bit for bit."""
        ...
