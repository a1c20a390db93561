"""One module whose optimiser, gradients and weights DeepSpeed divides among ranks (ZeRO).

Master weights and moments are float32 whatever the module's type. They are saved whole, parameter by parameter, so that
any number of ranks can read them; on the same number the run continues bit for bit. Source: arXiv:1910.02054.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.errors import CheckpointError, ConfigError, NonFiniteError, RunError
from verizero.pipeline.train.any_forward import AnyForward
from verizero.pipeline.train.deepspeed_internals import (
    forbid_shared_memory,
    link_moments,
    master_weights,
    zero_stored_gradients,
)
from verizero.pipeline.train.device import fixed_order
from verizero.pipeline.train.optimizer import adamw, clipped_step, finite_norm
from verizero.pipeline.train.ranks import Ranks, collectives

SHARD_BYTES = 1 << 30
"""Optimiser state is written in files of about this size."""
MOMENTS = ("exp_avg", "exp_avg_sq")


class Sharded:
    """DeepSpeed's engine around a model, with our AdamW over the parameters that take a gradient."""

    def __init__(self, model: Any, whose: str, optimizer: OptimizerConfig, config: TrainConfig, ranks: Ranks) -> None:
        """`whose` begins error messages ("gradient norm"). Raises: ConfigError if DeepSpeed is not installed."""
        self.model = model
        self.whose = whose
        self.ranks = ranks
        self.has_sharded_weights = config.zero == 3
        self.engine = _engine(AnyForward(model), optimizer, config)
        self._is_bad: Tensor | None = None  # on the device, so that the host need not wait at each gradient

    @property
    def scale(self) -> int:
        """The loss is multiplied by it: DeepSpeed takes the mean of gradients over ranks, and we need their sum."""
        return self.ranks.size if self._has_wrapper else 1

    def run(self, compute: Callable[[Any], Any]) -> Any:
        """Return compute(model), called within the engine's forward, whose hooks gather sharded weights."""
        return self.engine(compute)

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient."""
        with fixed_order():
            self.engine.backward(loss * self.scale)

    def restart(self, optimizer: OptimizerConfig) -> None:
        """Reset the optimiser to these settings, with moments and step count 0."""
        for group in self._adamw.param_groups:
            group.update(lr=optimizer.learning_rate, betas=optimizer.betas, eps=optimizer.eps)
            group["weight_decay"] = optimizer.weight_decay
        if self._has_wrapper:  # else `_step_without_wrapper` clips
            self.engine.optimizer.clip_grad = optimizer.max_grad_norm or 0.0
        # In place, because DeepSpeed holds references to these tensors.
        for state in self._adamw.state.values():
            for value in state.values():
                value.zero_()
        self.discard()

    def watch_gradient(self) -> None:
        """Check each gradient for NaN and infinity as autograd makes it; `require_finite` reads the result."""
        # Later it is divided among ranks, and each ZeRO stage stores the parts differently.

        def check(gradient: Tensor) -> None:
            is_bad = ~torch.isfinite(gradient).all()
            self._is_bad = is_bad if self._is_bad is None else self._is_bad | is_bad

        for p in self.model.parameters():
            if p.requires_grad:
                p.register_hook(check)

    def require_finite(self, update: int) -> None:
        """Raise NonFiniteError if a gradient of some rank was not finite since the last step; the gradient stays."""
        if self.ranks.any(self._is_bad is not None and bool(self._is_bad)):
            raise self._not_finite(update)

    def step(self, config: OptimizerConfig, rate: float, update: int) -> float:
        """Take one clipped update, and return the gradient's norm. The gradient is gone.

        Raises: NonFiniteError if it is not finite; weights and moments are as before.
        """
        if not self._has_wrapper:
            return self._step_without_wrapper(config, rate, update)
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self.engine.step()
        if self.engine.optimizer.overflow:  # then DeepSpeed has not called AdamW
            self.discard()
            raise self._not_finite(update)
        norm = float(self.engine.get_global_grad_norm())
        zero_stored_gradients(self.engine.optimizer)
        return norm

    def discard(self) -> None:
        """Delete the gradient."""
        self._is_bad = None
        self.engine.optimizer.zero_grad()
        zero_stored_gradients(self.engine.optimizer)
        for p in self.model.parameters():
            p.grad = None

    def gathered(self) -> Iterator[tuple[str, Tensor]]:
        """Yield names and whole weights one by one; every rank must iterate in step."""
        for name, p in self.model.named_parameters():
            with self.whole(p):
                yield name, p.detach()

    def whole(self, *parameters: Tensor) -> AbstractContextManager[Any]:
        """Return a context in which those parameters are whole; every rank must enter it."""
        import deepspeed

        gathered = deepspeed.zero.GatheredParameters(list(parameters), enabled=self.has_sharded_weights)
        return cast(AbstractContextManager[Any], gathered)

    def write(self, folder: Path, prefix: str = "optimizer") -> list[str]:
        """Write master weights and moments, by rank 0, and return the names of the files."""
        from safetensors.torch import save_file

        files: list[str] = []
        tensors: dict[str, Tensor] = {}
        trained = self._trained()
        for number, (name, p) in enumerate(trained, 1):
            for key in ("fp32", *MOMENTS):
                full = self._full(p, key)  # every rank takes part; only the first writes it
                if self.ranks.is_first:
                    tensors[f"{name}/{key}"] = full.detach().cpu().contiguous().clone()
            num_bytes = sum(t.numel() * t.element_size() for t in tensors.values())
            if tensors and (num_bytes >= SHARD_BYTES or number == len(trained)):
                files.append(f"{prefix}-{len(files):05d}.safetensors")
                save_file(tensors, folder / files[-1])
                tensors = {}
        return files

    def read(self, folder: Path, files: list[str], num_updates: int) -> None:
        """Restore what `write` wrote. Raises: CheckpointError if it is of another model."""
        from safetensors import safe_open

        readers: list[Any] = [safe_open(folder / f, "pt") for f in files]
        reader_of = {name: reader for reader in readers for name in list(reader.keys())}
        trained = self._trained()
        if missing := [n for n, _ in trained if f"{n}/fp32" not in reader_of]:
            raise CheckpointError(f"{folder}: no optimiser state of {missing[0]}; it is of another model")
        self._make_moments()
        for name, p in trained:
            for key in ("fp32", *MOMENTS):
                value = reader_of[f"{name}/{key}"].get_tensor(f"{name}/{key}")
                self._set(p, key, value.to(self.model.device))
        for state in self._adamw.state.values():
            state["step"].fill_(float(num_updates))  # AdamW corrects its bias by it

    @property
    def _adamw(self) -> torch.optim.Optimizer:
        """Our AdamW, inside DeepSpeed's wrapper."""
        outer = self.engine.optimizer
        adamw: torch.optim.Optimizer = getattr(outer, "optimizer", outer)
        return adamw

    @property
    def _has_wrapper(self) -> bool:
        """True if DeepSpeed put a wrapper around our AdamW, as it does except for ZeRO 0 in float32."""
        return self._adamw is not self.engine.optimizer

    def _trained(self) -> list[tuple[str, Tensor]]:
        return [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]

    def _not_finite(self, update: int) -> NonFiniteError:
        return NonFiniteError(
            f"the {self.whose} is not finite at update {update}; the update was refused. Lower the learning rate or "
            "max_grad_norm if this comes back"
        )

    def _step_without_wrapper(self, config: OptimizerConfig, rate: float, update: int) -> float:
        """Take the update of ZeRO 0 in float32, where DeepSpeed does not check the gradient."""
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        self.ranks.sum_gradients(parameters)
        try:
            norm = finite_norm(parameters, self.whose, update)
        except NonFiniteError:
            self.discard()
            raise
        clipped_step(self._adamw, config, parameters, norm, rate)
        self.discard()
        return float(norm)

    def _full(self, p: Tensor, key: str) -> Tensor:
        """Return a parameter's whole float32 master weight (`key` "fp32") or moment, on every rank."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        if not self._has_wrapper:
            state = self._adamw.state.get(p, {})
            return p.detach().float() if key == "fp32" else state.get(key, torch.zeros_like(p))
        # `ds_shape`: under ZeRO 3 a parameter's own shape is empty while its weights are divided.
        if key != "fp32" and not self._adamw.state:
            return torch.zeros(getattr(p, "ds_shape", p.shape))  # before the first update
        full: Tensor | None
        full = safe_get_full_fp32_param(p) if key == "fp32" else safe_get_full_optimizer_state(p, key)
        if full is None:
            raise RunError(f"DeepSpeed gives no {key} of a parameter of shape {tuple(p.shape)}")
        return full

    def _make_moments(self) -> None:
        """Make AdamW's moments before its first update, which would make them."""
        parameters = [p for group in self._adamw.param_groups for p in group["params"]]
        for p in master_weights(self.engine.optimizer) or parameters:
            if not self._adamw.state.get(p):
                self._adamw.state[p] = {
                    "step": torch.zeros((), device=p.device, dtype=torch.float32),
                    **{key: torch.zeros_like(p) for key in MOMENTS},
                }
        link_moments(self.engine.optimizer)

    def _set(self, p: Tensor, key: str, value: Tensor) -> None:
        """Set a parameter's master weight or moment to a whole value, on every rank."""
        from deepspeed import utils

        if not self._has_wrapper:
            with torch.no_grad():
                (p if key == "fp32" else self._adamw.state[p][key]).copy_(value)
        elif self.has_sharded_weights:  # the last rank's shard may reach past the end of the parameter
            size = p.ds_tensor.numel()  # type: ignore[attr-defined]
            padded = torch.nn.functional.pad(value.flatten(), (0, size * self.ranks.size - value.numel()))
            shard = padded.narrow(0, size * self.ranks.rank, size)
            if key == "fp32":
                utils.safe_set_local_fp32_param(p, shard)
            else:
                utils.safe_set_local_optimizer_state(p, shard, key)
        elif key == "fp32":
            utils.safe_set_full_fp32_param(p, value)
        else:
            utils.safe_set_full_optimizer_state(p, value, key)


def _engine(module: torch.nn.Module, optimizer: OptimizerConfig, config: TrainConfig) -> Any:
    """Return DeepSpeed's engine around `module`, with our AdamW. Raises: ConfigError if it is not installed."""
    first = next(module.parameters())
    deepspeed = _library(first.device)
    zero: dict[str, Any] = {"stage": config.zero}
    if config.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    if config.offload == "all":
        zero["offload_param"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,  # `step` is called once per update
        "managed_gradient_accumulation": False,  # the number of micro-batches changes from step to step
        "gradient_clipping": optimizer.max_grad_norm or 0.0,  # 0: none
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
        "bf16": {"enabled": first.dtype == torch.bfloat16},
        **({"data_types": {"grad_accum_dtype": "fp32"}} if first.dtype == torch.bfloat16 else {}),
    }
    engine, *_ = deepspeed.initialize(
        model=module, optimizer=adamw(module.parameters(), optimizer), config=settings, dist_init_required=False
    )
    engine.eval()
    return engine


def _library(device: torch.device) -> Any:
    """Import DeepSpeed and initialise it over the present process group, or a group of one rank for `device`.

    Raises: ConfigError if it is not installed.
    """
    # DeepSpeed makes the GPU of this number the current one.
    os.environ.setdefault("LOCAL_RANK", str(device.index or 0))
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    try:
        import deepspeed
    except ImportError as exc:
        raise ConfigError(
            f"train.backend=deepspeed, and DeepSpeed does not import ({exc}); pip install deepspeed==0.19.8, or set "
            "train.backend: torch"
        ) from exc
    deepspeed.utils.logging.logger.setLevel("WARNING")
    # torch has renamed its collectives and warns at each: these would be the last lines of a rank that died
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    if not torch.cuda.is_available():
        forbid_shared_memory(deepspeed)
    if not torch.distributed.is_initialized():  # one process: DeepSpeed wants a group all the same
        from torch._C._distributed_c10d import HashStore

        torch.distributed.init_process_group(collectives(str(device)), rank=0, world_size=1, store=HashStore())
    deepspeed.init_distributed(verbose=False)
    return deepspeed
