"""AdamW as a recipe's `optimizer` section describes it: schedule, clipped step, refusal of gradients not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pipeline.config.sections import OptimizerConfig
from pipeline.errors import NonFiniteError


def schedule(config: OptimizerConfig, step: int, total_steps: int) -> float:
    """Return the learning rate of update `step` (from 0) of `total_steps`: linear warm-up, then the schedule."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps  # the first update moves, too
    if config.schedule == "constant":
        return config.learning_rate
    begin = config.warmup_steps
    # Warm-up, stable, decay: the rate falls over the last `decay_share` of the updates only.
    if config.schedule == "wsd":
        begin = max(begin, total_steps - math.ceil(total_steps * config.decay_share))
    span = max(1, total_steps - begin)
    # Clamped: before `begin` the rate is whole, and a stage that goes past its plan keeps the final rate.
    done = min(1.0, max(0.0, (step - begin) / span))
    left = 0.5 * (1 + math.cos(math.pi * done)) if config.schedule == "cosine" else 1 - done
    return config.learning_rate * (config.final_share + (1 - config.final_share) * left)


def adamw(parameters: Iterable[Tensor], config: OptimizerConfig) -> torch.optim.AdamW:
    """Return a fresh AdamW over the parameters that take a gradient."""
    return torch.optim.AdamW(
        [p for p in parameters if p.requires_grad],
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


def finite_norm(parameters: Sequence[Tensor], whose: str, update: int) -> Tensor:
    """Return the norm of all gradients together.

    Raises: NonFiniteError if it is not finite; the gradients stay.
    """
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if not bool(torch.isfinite(norm)):
        raise NonFiniteError(
            f"the {whose} is {float(norm)} at update {update}; the update was refused. "
            "Lower the learning rate or max_grad_norm if this comes back"
        )
    return norm


def clipped_step(
    optimizer: torch.optim.Optimizer, config: OptimizerConfig, parameters: Sequence[Tensor], norm: Tensor, rate: float
) -> None:
    """Take one update at the learning rate `rate`, with gradients scaled down to the config's greatest norm."""
    if config.max_grad_norm is not None:
        torch.nn.utils.clip_grads_with_norm_([p for p in parameters if p.grad is not None], config.max_grad_norm, norm)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
