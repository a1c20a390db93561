"""A module whose optimiser, gradients and weights DeepSpeed divides among ranks (ZeRO), or keeps on the CPU.

Master weights and moments are float32 whatever the module's type. They are saved whole, parameter by parameter, so that
any number of ranks can read them; on the same number the run continues bit for bit. Source: arXiv:1910.02054.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.errors import CheckpointError, ConfigError, NonFiniteError, RunError, Unsupported
from verizero.pipeline.models.load import recompute_activations
from verizero.pipeline.models.lora import Adapted
from verizero.pipeline.train.device import fixed_order
from verizero.pipeline.train.optimizer import adamw
from verizero.pipeline.train.ranks import Ranks, join_alone
from verizero.pipeline.train.torch_trained import whole_reference
from verizero.pipeline.train.trained import MOMENTS, POLICY, AnyForward, Trained

SHARD_BYTES = 1 << 30
"""Optimiser state is written in files of about this size."""
PREFIXES = {"": "optimizer", "critic": "critic-optimizer"}
"""Names of files with the optimiser state of a policy and of its critic begin so."""
UNTIL_START = OptimizerConfig(learning_rate=1e-6)
"""Settings of the optimiser until the first stage starts; `start` replaces all of them."""


class DeepSpeedTrained(Trained):
    """DeepSpeed's engine around a model, with our AdamW over the parameters that take a gradient."""

    backend = "deepspeed"
    gives_adapters = False

    def __init__(self, model: Any, whose: str, ranks: Ranks, train: TrainConfig) -> None:
        """Raises: ConfigError if DeepSpeed is not installed."""
        super().__init__(model.eval(), whose, ranks)
        self.train_config = train
        self.is_divided = train.zero == 3
        self._is_bad: Tensor | None = None  # on the device, so that the host need not wait at each gradient
        self.engine = _engine(AnyForward(model), train)
        self.scale = ranks.size  # DeepSpeed takes the mean of gradients over ranks, and we need their sum

    def change(self, optimizer: OptimizerConfig) -> None:
        """Refuse: the engine has its own copy of the settings."""
        raise Unsupported("DeepSpeed sets the optimiser as a stage starts; set train.backend: torch or fsdp")

    def run(self, compute: Callable[[Any], Any]) -> Any:
        """Return compute(model), called within the engine's forward, whose hooks gather sharded weights."""
        return self.engine(compute)

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient."""
        with fixed_order():
            self.engine.backward(loss * self.scale)

    def require_finite(self) -> None:
        """Raise NonFiniteError if a gradient of some rank was not finite since the last step; the gradient stays.

        Only of a critic's gradient it is known before the step.
        """
        if self.ranks.any(self._is_bad is not None and bool(self._is_bad)):
            raise self._not_finite()

    def discard(self) -> None:
        self._is_bad = None
        self.engine.optimizer.zero_grad()
        zero_stored_gradients(self.engine.optimizer)
        super().discard()

    @contextmanager
    def whole(self, *parameters: Any) -> Iterator[tuple[Tensor, ...]]:
        """Yield the parameters, which are whole within the block."""
        import deepspeed

        with deepspeed.zero.GatheredParameters(list(parameters), enabled=self.is_divided):
            yield parameters

    def frozen(self, empty: Any, blocks: Iterable[Mapping[str, Tensor]]) -> Trained:
        """Return a module like `empty`, with these weights, whole on every rank and without DeepSpeed's hooks."""
        return whole_reference(empty, blocks, self.ranks, self.device)

    def like(self, model: Any, whose: str) -> Trained:
        """Return a classifier that is divided as the policy is, and whose gradient is known before its step."""
        made = DeepSpeedTrained(model, whose, self.ranks, self.train_config)
        made._watch_gradient()
        return made

    def _write(self, folder: Path, parts: Mapping[str, Trained], *others: Any) -> None:
        """Write master weights and moments in files of their own."""
        if self.config is not None:
            self._write_optimizer(folder, "")
        if isinstance(critic := parts.get("critic"), DeepSpeedTrained):
            critic._write_critic(folder)

    def read(self, folder: Path, state: dict[str, Any], part: str = "") -> None:
        """Restore master weights and moments. Raises: CheckpointError if they are of another model."""
        from safetensors import safe_open

        if self.config is None:
            return
        readers: list[Any] = [safe_open(f, "pt") for f in sorted(folder.glob(f"{PREFIXES[part]}-*.safetensors"))]
        reader_of = {name: reader for reader in readers for name in list(reader.keys())}
        trained = self._trained()
        if missing := [n for n, _ in trained if f"{n}/fp32" not in reader_of]:
            raise CheckpointError(f"{folder}: no optimiser state of {missing[0]}; it is of another model")
        self._make_moments()
        for name, p in trained:
            for key in ("fp32", *MOMENTS):
                value = reader_of[f"{name}/{key}"].get_tensor(f"{name}/{key}")
                self._set(p, key, value.to(self.model.device))
        self.num_updates = (state[part] if part else state)["num_updates"]
        for state_of_weight in self._adamw.state.values():
            state_of_weight["step"].fill_(float(self.num_updates))  # AdamW corrects its bias by it

    def _restart(self, optimizer: OptimizerConfig) -> None:
        for group in self._adamw.param_groups:
            group.update(lr=optimizer.learning_rate, betas=optimizer.betas, eps=optimizer.eps)
            group["weight_decay"] = optimizer.weight_decay
        self.engine.optimizer.clip_grad = optimizer.max_grad_norm or 0.0
        # In place, because DeepSpeed holds references to these tensors.
        for state in self._adamw.state.values():
            for value in state.values():
                value.zero_()
        self.discard()

    def _update(self, config: OptimizerConfig, rate: float) -> float:
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self.engine.step()
        if self.engine.optimizer.overflow:  # then DeepSpeed has not called AdamW
            self.discard()
            raise self._not_finite()
        norm = float(self.engine.get_global_grad_norm())
        zero_stored_gradients(self.engine.optimizer)
        return norm

    def _watch_gradient(self) -> None:
        """Check each gradient for NaN and infinity as autograd makes it; `require_finite` reads the result."""
        # Later it is divided among ranks, and each ZeRO stage stores the parts differently.

        def check(gradient: Tensor) -> None:
            is_bad = ~torch.isfinite(gradient).all()
            self._is_bad = is_bad if self._is_bad is None else self._is_bad | is_bad

        for p in self.model.parameters():
            if p.requires_grad:
                p.register_hook(check)

    def _write_optimizer(self, folder: Path, part: str) -> None:
        """Write master weights and moments, by rank 0."""
        from safetensors.torch import save_file

        num_files = 0
        tensors: dict[str, Tensor] = {}
        trained = self._trained()
        for number, (name, p) in enumerate(trained, 1):
            for key in ("fp32", *MOMENTS):
                full = self._full(p, key)  # every rank takes part; only the first writes it
                if self.ranks.is_first:
                    tensors[f"{name}/{key}"] = full.detach().cpu().contiguous().clone()
            num_bytes = sum(t.numel() * t.element_size() for t in tensors.values())
            if tensors and (num_bytes >= SHARD_BYTES or number == len(trained)):
                save_file(tensors, folder / f"{PREFIXES[part]}-{num_files:05d}.safetensors")
                num_files += 1
                tensors = {}

    def read_adapters(self, adapted: Adapted, folder: Path) -> None:
        """Restore the policy's adapters from a checkpoint; see `Trained.read_adapters`."""
        import deepspeed

        trained = [p for _, p in self._trained()]
        with deepspeed.zero.GatheredParameters(trained, modifier_rank=0, enabled=self.is_divided):
            adapted.load(folder)

    def _write_critic(self, folder: Path) -> None:
        """Write the weights as a Hugging Face folder `critic/`, master weights and moments next to the policy's."""
        is_first, weights = self.ranks.is_first, dict[str, Tensor]()
        for block in self.gathered():  # all ranks iterate
            weights |= {name: w.cpu().clone() for name, w in block.items() if is_first}
        self._write_optimizer(folder, "critic")
        if is_first:
            self.model.save_pretrained(folder / "critic", state_dict=weights)

    @property
    def _adamw(self) -> torch.optim.Optimizer:
        """Our AdamW, inside DeepSpeed's wrapper."""
        adamw: torch.optim.Optimizer = self.engine.optimizer.optimizer
        return adamw

    def _not_finite(self) -> NonFiniteError:
        return NonFiniteError(
            f"the {self.whose} is not finite at update {self.num_updates}; the update was refused. Lower the learning "
            "rate or max_grad_norm if this comes back"
        )

    def _full(self, p: Tensor, key: str) -> Tensor:
        """Return a parameter's whole float32 master weight (`key` "fp32") or moment, on every rank."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

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
        # ZeRO 3 lends one float32 shard at a time to the parameter groups, for the step alone; no call returns them.
        for p in getattr(self.engine.optimizer, "fp32_partitioned_groups_flat", None) or parameters:
            if not self._adamw.state.get(p):
                self._adamw.state[p] = {
                    "step": torch.zeros((), device=p.device, dtype=torch.float32),
                    **{key: torch.zeros_like(p) for key in MOMENTS},
                }
        # ZeRO 1 and 2 make moments visible to `safe_get_full_optimizer_state` in their first step. The public function
        # in `deepspeed.utils` leaves the optimiser's flag unset, and the first step would link again.
        if hasattr(self.engine.optimizer, "_lazy_init_hp_params_optimizer_state"):
            self.engine.optimizer._lazy_init_hp_params_optimizer_state()

    def _set(self, p: Tensor, key: str, value: Tensor) -> None:
        """Set a parameter's master weight or moment to a whole value, on every rank."""
        from deepspeed import utils

        if self.is_divided:  # the last rank's shard may reach past the end of the parameter
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


def deepspeed_policy(model: Any, config: TrainConfig, ranks: Ranks) -> DeepSpeedTrained:
    """Return the policy `model`, divided by `train.zero`. Raises: ConfigError if DeepSpeed is not installed."""
    if config.recomputes:
        recompute_activations(model)
    return DeepSpeedTrained(model, POLICY, ranks, config)


def _engine(module: torch.nn.Module, config: TrainConfig) -> Any:
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
        "gradient_clipping": UNTIL_START.max_grad_norm or 0.0,  # 0: none
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
        "bf16": {"enabled": first.dtype == torch.bfloat16},
        **({"data_types": {"grad_accum_dtype": "fp32"}} if first.dtype == torch.bfloat16 else {}),
    }
    engine, *_ = deepspeed.initialize(
        model=module, optimizer=adamw(module.parameters(), UNTIL_START), config=settings, dist_init_required=False
    )
    engine.eval()
    return engine


def _library(device: torch.device) -> Any:
    """Import DeepSpeed, over the present process group or one of this process. Raises: ConfigError without it."""
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
        # Else it compiles a shared-memory all-reduce for the CPU, which takes a minute; gloo does without. Neither its
        # configuration nor an environment variable forbids it: it asks this table alone.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    join_alone(str(device))
    deepspeed.init_distributed(verbose=False)
    return deepspeed


# Names of DeepSpeed 0.19.8 that are not part of its interface. Others are used in `_make_moments` and `_library`.


def zero_stored_gradients(optimizer: Any) -> None:
    """Zero the gradients that DeepSpeed stores between updates: under ZeRO 3, and on the host under ZeRO 1 and 2.

    A parameter that an update, or its first micro-batch, does not use (an adapter that is off, a head) gets no new
    gradient, and its stored one would be applied again.
    """
    gradients = list(getattr(optimizer, "accumulated_grads_in_cpu", {}).values())
    if (buffer := getattr(optimizer, "grad_partitions_flat_buffer", None)) is not None:
        gradients.append(buffer)
    # With an optimiser on the host these are buffers of their own; otherwise DeepSpeed sets them before each step.
    for name in ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat"):
        gradients += [group.grad for group in getattr(optimizer, name, ()) if group.grad is not None]
    for gradient in gradients:
        gradient.zero_()
