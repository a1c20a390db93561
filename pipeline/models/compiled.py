"""Blocks of a policy that torch compiles: passes over memory between the products are put together.

The blocks stay the modules that they were, with the same names and hooks; only the function that they call is another
one. What attention does with a layout is left out of the compiled part, so that its pieces may have any lengths.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.kernels import HALF

Forward = Callable[..., Any]
MOST_GRAPHS = 64
"""torch compiles a function again for each shape, with gradients and without, and gives up after 8 times by default."""


@dataclass(slots=True)
class Compiling:
    """The choice to compute the blocks of a model by compiled code; tried at the first forward that may."""

    way: Literal["auto", "on"]
    """auto: for packed rows alone, whose shapes are few. on: always, and an error where it does not work."""
    repeats: bool = False
    """Code is chosen without timing it, so that it is the same in each process."""
    holds: bool | None = None
    """None: not tried yet."""
    fallbacks: list[str] = field(default_factory=list)
    """The reasons for which models compute without compilation; one list for all copies."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiling:
        """Return the same for a copy of the model, which is tried for itself: other weights may take gradients."""
        return Compiling(self.way, self.repeats, None, self.fallbacks)

    def may(self, named: dict[str, Any]) -> bool:
        """True if a forward of a block with these arguments is one that may be compiled."""
        is_packed = named.get("runs") is not None
        return self.holds is not False and named.get("past_key_values") is None and (is_packed or self.way == "on")

    def give_up(self, why: str) -> None:
        """Compute without compilation from here on, and say why. Raises: ConfigError for `on`."""
        self.holds = False
        if self.way == "on":
            raise ConfigError(f"train.compile=on: {why}; set train.compile: auto")
        self.fallbacks.append(why)
        warnings.warn(f"train.compile=auto: blocks compute without compilation: {why}", stacklevel=2)


def compile_blocks(model: Any, compiling: Compiling | None) -> None:
    """Make the blocks of `model` compute by compiled code. Call it before activations are recomputed or FSDP divides.

    Raises: ConfigError for a model without blocks that are known, with `on`.
    """
    if compiling is None:
        return
    from transformers.modeling_layers import GradientCheckpointingLayer

    blocks = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not blocks:
        compiling.give_up(f"model type {model.config.model_type!r} has no blocks that are known")
    own = Compiling(compiling.way, compiling.repeats, compiling.holds, compiling.fallbacks)
    for block in blocks:
        block.forward = partial(_forward, own, block)


def _forward(compiling: Compiling, block: Any, *inputs: Any, **named: Any) -> Any:
    plain = type(block).forward
    if not compiling.may(named):
        return plain(block, *inputs, **named)
    if compiling.holds is None:
        _try(compiling, block, inputs, named)
    if compiling.holds:
        from torch._dynamo.exc import TorchDynamoException

        try:
            return _compiled(plain, compiling.repeats)(block, *inputs, **named)
        except TorchDynamoException as exc:  # of a shape that comes later
            compiling.give_up(f"{type(exc).__name__}: {exc}")
    return plain(block, *inputs, **named)


@functools.cache
def _compiled(plain: Forward, repeats: bool) -> Forward:
    import torch._dynamo
    import torch._inductor.config

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MOST_GRAPHS)
    options = {"deterministic": True} if repeats and hasattr(torch._inductor.config, "deterministic") else None
    # Each shape has code of its own: code for several would depend on the one that came first, and a resumed run would
    # end with other bytes.
    out: Forward = torch.compile(plain, dynamic=False, options=options)  # type: ignore[arg-type]
    return out


def _try(compiling: Compiling, block: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Compare the block's output and gradients to those without compilation, on the inputs at hand."""
    plain = type(block).forward
    try:
        gap = difference(plain, _compiled(plain, compiling.repeats), block, inputs, named)
    except Exception as exc:  # of a compiler, which has no common error class
        compiling.give_up(f"{type(exc).__name__}: {exc}")
        return
    allowed = (
        2**-4 if inputs[0].dtype in HALF else 1e-3
    )  # bfloat16 has 8 digits, and the greatest of many gaps is taken
    if gap <= allowed:  # NaN is not
        compiling.holds = True
    else:
        compiling.give_up(f"a compiled block differs by {gap:.2g}, where {allowed:.2g} is allowed")


def difference(plain: Forward, other: Forward, block: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> float:
    """Return the greatest difference of outputs and gradients, as a share of the greatest number compared."""
    trained = [p for p in block.parameters() if p.requires_grad]
    results = []
    # What is saved for this backward is nobody else's: activations that are recomputed are counted.
    with torch.inference_mode(False), torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(_same, _same):
        for forward in (plain, other):
            hidden = inputs[0].detach().clone().requires_grad_()
            out = forward(block, hidden, *inputs[1:], **named)
            out = out if isinstance(out, Tensor) else out[0]
            pull = torch.sin(torch.arange(out.numel(), device=out.device)).view_as(out).to(out.dtype)
            gradients = torch.autograd.grad((out * pull).sum(), (hidden, *trained), allow_unused=True)
            results.append([out.detach(), *(g for g in gradients if g is not None)])
    gaps = (
        float((ours.float() - theirs.float()).abs().max() / theirs.float().abs().max().clamp(min=1e-12))
        for theirs, ours in zip(*results, strict=True)
    )
    return max(gaps, default=0.0)


def _same(x: Tensor) -> Tensor:
    return x
