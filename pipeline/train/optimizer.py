"""AdamW by a recipe's `optimizer` section: learning-rate schedule, float32 masters, gradient norm, clipped step.

Its moments are in float32, or in 8 bits by bitsandbytes (arXiv:2110.02861). Those of embeddings are in float32 always
(section 2.3 there): their gradients differ too much within a block that shares a scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.config.sections import OptimizerConfig
from verizero.pipeline.errors import ConfigError, NonFiniteError
from verizero.pipeline.models.kernels import HALF
from verizero.pipeline.models.quantized import library

EIGHT_BITS, PAGED = "adamw_8bit", "paged_adamw_8bit"
"""Values of `optimizer.kind`."""


def schedule(config: OptimizerConfig, step: int, total_steps: int) -> float:
    """Return the learning rate of update `step` (from 0) of `total_steps`: linear warm-up, then the schedule."""
    if step < config.warmup_steps:
        return config.rate * (step + 1) / config.warmup_steps  # the first update moves, too
    if config.schedule == "constant":
        return config.rate
    begin = config.warmup_steps
    # Warm-up, stable, decay: the rate falls over the last `decay_share` of the updates only.
    if config.schedule == "wsd":
        begin = max(begin, total_steps - math.ceil(total_steps * config.decay_share))
    span = max(1, total_steps - begin)
    # Clamped: before `begin` the rate is whole, and a stage that goes past its plan keeps the final rate.
    share_done = min(1.0, max(0.0, (step - begin) / span))
    share_left = 0.5 * (1 + math.cos(math.pi * share_done)) if config.schedule == "cosine" else 1 - share_done
    return config.rate * (config.final_share + (1 - config.final_share) * share_left)


class Masters(torch.optim.Optimizer):
    """A base for optimisers of float32 masters, from which parameters in half precision are rounded.

    An update is often smaller than the distance between two numbers in bfloat16, and would be lost without masters.
    Gradients add up in the masters, in float32: a parameter's own `grad` is moved there as soon as autograd made it.
    Masters and moments are part of `state_dict`. Source: arXiv:1710.03740 section 3.1.
    """

    def __init__(self, parameters: Sequence[Tensor], **numbers: Any) -> None:
        self.parameters = list(parameters)
        self.masters = [p.detach().float() for p in self.parameters]
        super().__init__(self.masters, **numbers)  # of the next base class, the real optimiser
        self._hooks: list[Any] = []
        for p, master in zip(self.parameters, self.masters, strict=True):
            move = partial(_move_gradient, master)
            self._hooks.append(p.register_post_accumulate_grad_hook(move))  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take one update of the masters, and round the parameters from them."""
        loss = super().step(closure)
        self._round()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return torch's state, and the masters in the order of the parameters."""
        return {**super().state_dict(), "masters": self.masters}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Raises: ValueError for a state without masters of these shapes."""
        own = {k: v for k, v in state_dict.items() if k != "masters"}
        masters = state_dict.get("masters", [])
        if [m.shape for m in masters] != [m.shape for m in self.masters]:
            raise ValueError("its optimiser has no float32 masters of these weights")
        super().load_state_dict(own)
        for ours, theirs in zip(self.masters, masters, strict=True):
            ours.copy_(theirs)
        self._round()

    def release(self) -> None:
        """Leave the parameters' gradients alone from now on: another optimiser takes them."""
        for hook in self._hooks:
            hook.remove()

    def _round(self) -> None:
        for p, master in zip(self.parameters, self.masters, strict=True):
            p.detach().copy_(master)


class MasterAdamW(Masters, torch.optim.AdamW):
    """AdamW over float32 masters of parameters in half precision."""


def _move_gradient(master: Tensor, parameter: Tensor) -> None:
    gradient = parameter.grad
    assert gradient is not None
    if master.grad is None:
        master.grad = gradient.float()
    else:
        master.grad.add_(gradient)
    parameter.grad = None


def with_masters(model: torch.nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return a fresh AdamW of the config's kind, over float32 masters where a parameter is in half precision."""
    trained = [p for p in model.parameters() if p.requires_grad]
    has_half = any(p.dtype in HALF for p in trained)
    if config.kind == "adamw":
        return MasterAdamW(trained, **_numbers(config), fused=True) if has_half else adamw(trained, config)
    kind: Any = _eight_bits()[has_half]
    made = kind(trained, **_numbers(config), is_paged=config.kind == PAGED)
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    made.in_float32 = frozenset(i for i, p in enumerate(trained) if id(p) in embeddings)
    return made  # type: ignore[no-any-return]


def trained_by(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the tensors that the optimiser updates and that have the gradients: the parameters, or their masters."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def adamw(parameters: Iterable[Tensor], config: OptimizerConfig) -> torch.optim.AdamW:
    """Return a fresh AdamW over the parameters that take a gradient."""
    return torch.optim.AdamW([p for p in parameters if p.requires_grad], **_numbers(config), fused=True)


@cache
def _eight_bits() -> tuple[type, type]:
    """Return AdamW with moments in 8 bits, without and with masters."""
    plain: Any = library(f"optimizer.kind={EIGHT_BITS}").optim.AdamW8bit

    class AdamW8bit(plain):  # type: ignore[misc]
        """AdamW with moments in 8 bits, but for the parameters with the numbers `in_float32`."""

        in_float32: frozenset[int] = frozenset()

        def get_config(self, gindex: int, pindex: int, group: dict[str, Any]) -> dict[str, Any]:
            """Return the settings of one parameter, as the library asks for them."""
            config: dict[str, Any] = super().get_config(gindex, pindex, group)
            return config | {"optim_bits": 32} if pindex in self.in_float32 else config

    return AdamW8bit, type("MasterAdamW8bit", (Masters, AdamW8bit), {})


def check_kinds(kinds: Iterable[str], device: str) -> None:
    """Raise ConfigError for a kind of optimiser whose package is missing, or that has nothing to do on the device."""
    for kind in sorted(set(kinds) - {"adamw"}):
        library(f"optimizer.kind={kind}")
        if kind == PAGED and not device.startswith("cuda"):
            raise ConfigError(
                f"optimizer.kind={PAGED} moves moments from a full GPU to the CPU's memory, and the device is "
                f"{device!r}; set optimizer.kind: {EIGHT_BITS}"
            )


def _numbers(config: OptimizerConfig) -> dict[str, Any]:
    return {"lr": config.rate, "betas": config.betas, "eps": config.eps, "weight_decay": config.weight_decay}


def finite_norm(parameters: Sequence[Tensor], whose: str, update: int) -> Tensor:
    """Return the norm of all gradients together. Raises: NonFiniteError if it is not finite; the gradients stay."""
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    return checked_norm(norm, whose, update)


def checked_norm(norm: Tensor, whose: str, update: int) -> Tensor:
    """Return the norm of a gradient. Raises: NonFiniteError if it is not finite."""
    if not bool(torch.isfinite(norm)):
        raise NonFiniteError(
            f"the {whose} is {float(norm)} at update {update}; the update was refused. "
            "Lower the learning rate or max_grad_norm if this comes back"
        )
    return norm


def clipped_step(
    optimizer: torch.optim.Optimizer, config: OptimizerConfig, parameters: Sequence[Tensor], norm: Tensor, rate: float
) -> None:
    """Take one update at the learning rate `rate`, with gradients clipped to the config's `max_grad_norm`."""
    if config.max_grad_norm is not None:
        torch.nn.utils.clip_grads_with_norm_([p for p in parameters if p.grad is not None], config.max_grad_norm, norm)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
