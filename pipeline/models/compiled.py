"""Compile the policy's blocks with torch.compile, to fuse the operations between the matrix products.

The blocks stay the same modules, with the same names and hooks; only their `forward` changes. The attention of packed
rows is not compiled, because its pieces have other lengths in each micro-batch: by a kernel it is one call in the
block's graph (`runs.opaque`), otherwise it divides the block into several graphs.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.kernels import HALF
from verizero.pipeline.models.load import blocks_of

Forward = Callable[..., Any]
COMPILE_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"
MAX_GRAPHS = 64
"""torch compiles again for each shape, with and without gradients; by default it gives up after 8 times."""


@contextmanager
def own_compile_threads() -> Iterator[None]:
    """Restore after the block with how many threads torch compiles: vLLM sets one for the whole process."""
    name = "torch._inductor.config"
    variable, before = os.environ.get(COMPILE_THREADS), getattr(sys.modules.get(name), "compile_threads", None)
    try:
        yield
    finally:
        if variable is None:
            os.environ.pop(COMPILE_THREADS, None)
        else:
            os.environ[COMPILE_THREADS] = variable
        inductor: Any = sys.modules.get(name)
        if inductor is not None:
            inductor.compile_threads = inductor.decide_compile_threads() if before is None else before


@dataclass(slots=True)
class Compiling:
    """The setting for compiling a model's blocks; compiled code is tried at the first forward that may use it."""

    mode: Literal["auto", "on"]
    """auto: only for packed rows, which have few shapes. on: always, and an error if it does not work."""
    is_deterministic: bool = False
    """Compile deterministically: without autotuning, so that the code is the same in each process."""
    is_proved: bool | None = None
    """Compiled code computes the same as the block without compilation. None: not tried yet."""
    fallbacks: list[str] = field(default_factory=list)
    """Why models compute without compilation; one list for all copies."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiling:
        """Return the setting for a copy of the model, not tried yet: other weights may take gradients there."""
        return Compiling(self.mode, self.is_deterministic, None, self.fallbacks)

    def may_compile(self, named: dict[str, Any]) -> bool:
        """True if a block's forward with these keyword arguments may use compiled code."""
        is_packed = named.get("runs") is not None
        return self.is_proved is not False and named.get("past_key_values") is None and (is_packed or self.mode == "on")

    def give_up(self, why: str) -> None:
        """Compute without compilation from here on, and warn with the reason. Raises: ConfigError for `on`."""
        self.is_proved = False
        if self.mode == "on":
            raise ConfigError(f"train.compile=on: {why}; set train.compile: auto")
        self.fallbacks.append(why)
        warnings.warn(f"train.compile=auto: blocks compute without compilation: {why}", stacklevel=2)


def compile_blocks(model: Any, compiling: Compiling | None) -> None:
    """Make the blocks of `model` compute by compiled code. Call it before activations are recomputed or FSDP divides.

    Raises: ConfigError for a model without blocks that are known, with `on`.
    """
    if compiling is None:
        return
    if not (blocks := blocks_of(model)):
        compiling.give_up(f"model type {model.config.model_type!r} has no blocks that are known")
    own = Compiling(compiling.mode, compiling.is_deterministic, compiling.is_proved, compiling.fallbacks)
    for block in blocks:
        block.forward = partial(_forward, own, block)


def is_compiled(model: Any) -> bool:
    """True if the blocks of `model` compute by compiled code: it was tried on a forward, and is right."""
    setting: Any = next((block.forward for block in blocks_of(model)), None)
    while isinstance(setting, partial):  # around the forward of this file may be one that recomputes
        setting = setting.args[0]
    return isinstance(setting, Compiling) and setting.is_proved is True


def _forward(compiling: Compiling, block: Any, *inputs: Any, **named: Any) -> Any:
    plain = type(block).forward
    if not compiling.may_compile(named):
        return plain(block, *inputs, **named)
    if compiling.is_proved is None:
        _try(compiling, block, inputs, named)
    if compiling.is_proved:
        from torch._dynamo.exc import TorchDynamoException

        try:
            return _compiled(plain, compiling.is_deterministic)(block, *inputs, **named)
        except TorchDynamoException as exc:  # of a shape that comes later
            compiling.give_up(f"{type(exc).__name__}: {exc}")
    return plain(block, *inputs, **named)


@functools.cache
def _compiled(plain: Forward, is_deterministic: bool) -> Forward:
    import torch._dynamo
    import torch._inductor.config

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MAX_GRAPHS)
    options = {"deterministic": True} if is_deterministic and hasattr(torch._inductor.config, "deterministic") else None
    # Code for one shape each: code for several shapes would depend on the first one, and a resumed run would have other
    # bytes in the end.
    out: Forward = torch.compile(plain, dynamic=False, options=options)  # type: ignore[arg-type]
    return out


def _try(compiling: Compiling, block: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Compare the block's output and gradients to those without compilation, on the inputs at hand."""
    plain = type(block).forward
    try:
        gap = difference(plain, _compiled(plain, compiling.is_deterministic), block, inputs, named)
    except torch.OutOfMemoryError:
        raise  # says nothing of the compiler
    except Exception as exc:  # of a compiler, which has no common error class
        compiling.give_up(f"{type(exc).__name__}: {exc}")
        return
    # bfloat16 has 8 binary digits, and this is the greatest of many gaps.
    allowed = 2**-4 if inputs[0].dtype in HALF else 1e-3
    if gap <= allowed:  # NaN is not
        compiling.is_proved = True
    else:
        compiling.give_up(f"a compiled block differs by {gap:.2g}, where {allowed:.2g} is allowed")


def difference(plain: Forward, other: Forward, block: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> float:
    """Return the greatest difference of outputs and gradients, as a share of the greatest number compared."""
    trained = [p for p in block.parameters() if p.requires_grad]
    results = []
    # With hooks of its own: recomputed activations count what a backward saves, and this one must not be counted.
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
