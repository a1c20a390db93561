"""Training with DeepSpeed: ranks share out optimiser, gradients and weights (ZeRO 0 to 3), some of it on the CPU.

Master weights and moments are float32 whatever the policy's type, log-probs are computed in float32. A checkpoint holds
both whole, parameter by parameter, so that it resumes on any number of ranks, bit for bit on the same.
Source: arXiv:1910.02054.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.config.sections import OptimizerConfig, TrainConfig
from pipeline.errors import CheckpointError, ConfigError, NonFiniteError, RunError
from pipeline.models.forward import logits_at, spread
from pipeline.models.load import frozen_copy, recompute_activations
from pipeline.rl.logprobs import logprobs_and_entropy, token_logprobs
from pipeline.train.backend import Who
from pipeline.train.critic import TorchCritic
from pipeline.train.optimizer import adamw, clipped_step, finite_norm, schedule
from pipeline.train.ranks import ALONE, Ranks
from pipeline.train.replay import Replay

SHARD_BYTES = 1 << 30
"""Optimiser state is written in files of about this size."""
MOMENTS = ("exp_avg", "exp_avg_sq")


class DeepSpeedBackend:
    """Holds the policy `model`, sharded once a stage has begun, and its reference. Implements `Backend`."""

    critic: TorchCritic | None = None

    def __init__(self, model: Any, config: TrainConfig, ranks: Ranks = ALONE) -> None:
        self.model = model.eval()  # no dropout: ratios compare the same function
        self.ranks = ranks
        self.train_config = config
        self.reference: Any = None
        self.config: OptimizerConfig | None = None
        self.total_steps = 0
        self.num_updates = 0
        self.engine: Any = None
        self._whole = copy.deepcopy(model) if config.zero == 3 else model
        self._whole_is_fresh = True
        self._spare: Any = None
        """Becomes the reference."""
        if config.gradient_checkpointing:
            recompute_activations(model)

    def start(self, optimizer: OptimizerConfig, total_steps: int) -> None:
        """A fresh optimiser for `total_steps` updates; the weights are dealt out the first time."""
        self.config, self.total_steps, self.num_updates = optimizer, total_steps, 0
        if self.engine is None:
            if self._whole is self.model and self.reference is None:
                self._spare = frozen_copy(self.model)  # a copy later would take DeepSpeed's hooks along
            self.engine = _engine(_Forward(self.model), optimizer, self.train_config)
        for group in self._adamw.param_groups:
            group.update(lr=optimizer.learning_rate, betas=optimizer.betas, eps=optimizer.eps)
            group["weight_decay"] = optimizer.weight_decay
        self._clip(optimizer)
        self._set_moments(None)
        self.discard()

    def start_critic(self, shared: bool, optimizer: OptimizerConfig, total_steps: int) -> None:
        """Raises: ConfigError: a critic is not sharded yet."""
        raise ConfigError(
            "the algorithm has a critic and train.backend=deepspeed shards none; set train.backend: torch, or use an "
            "algorithm without one, e.g. grpo"
        )

    def logprobs(
        self,
        input_ids: Tensor,
        where: Tensor,
        temperature: float,
        who: Who = "policy",
        entropy: bool = False,
        replay: Replay | None = None,
        lengths: Sequence[int] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probs [B, T] at `where` and, if asked for, entropies; see `Backend.logprobs`."""
        routing = replay.routing if replay is not None and who == "policy" else None
        if who == "reference":
            logits = logits_at(self.reference, input_ids, where, lengths=lengths)
        elif self.engine is None:
            logits = logits_at(self.model, input_ids, where, routing, lengths=lengths)
        else:
            logits = self.engine(input_ids, where, routing, lengths)
        kept = None if replay is None else replay.kept
        if not entropy:
            return spread(token_logprobs(logits, input_ids[where], temperature, kept), where), None
        values, entropies = logprobs_and_entropy(logits, input_ids[where], temperature, kept)
        return spread(values, where), spread(entropies, where)

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradient. DeepSpeed takes the mean over ranks, a loss here is a share of a sum."""
        self.engine.backward(loss if self._is_plain else loss * self.ranks.size)

    def step(self) -> dict[str, float]:
        """One AdamW update; see `Backend.step`."""
        assert self.config is not None
        rate = schedule(self.config, self.num_updates, self.total_steps)
        norm = self._plain_step(rate) if self._is_plain else self._sharded_step(rate)
        self.num_updates += 1
        return {"grad_norm": norm, "learning_rate": rate}

    def _plain_step(self, rate: float) -> float:
        """Without shards: nothing of DeepSpeed's looks at the gradient before AdamW does, so it is looked at here."""
        assert self.config is not None
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        self.ranks.sum_gradients(parameters)
        try:
            norm = finite_norm(parameters, "gradient norm", self.num_updates)
        except NonFiniteError:
            self.discard()
            raise
        clipped_step(self._adamw, self.config, parameters, norm, rate)
        self.discard()
        return float(norm)

    def _sharded_step(self, rate: float) -> float:
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self.engine.step()
        self._whole_is_fresh = False
        if self.engine.optimizer.overflow:  # DeepSpeed found it before AdamW did anything
            self.discard()
            raise NonFiniteError(
                f"the gradient norm is not finite at update {self.num_updates}; the update was refused. Lower the "
                "learning rate or max_grad_norm if this comes back"
            )
        return float(self.engine.get_global_grad_norm())

    def discard(self) -> None:
        """Forget the gradient."""
        if self.engine is not None:
            self.engine.optimizer.zero_grad()
            for p in self.model.parameters():
                p.grad = None

    @torch.no_grad()
    def refresh_reference(self, alpha: float = 1.0) -> None:
        """reference <- alpha * policy + (1 - alpha) * reference; every rank holds the whole of it."""
        whole = self.whole_model()
        if self.reference is None:
            self.reference, self._spare, alpha = self._spare or frozen_copy(whole), None, 1.0
        for ours, theirs in zip(self.reference.parameters(), whole.parameters(), strict=True):
            ours.lerp_(theirs.to(ours.dtype), alpha) if alpha < 1 else ours.copy_(theirs)

    @torch.no_grad()
    def whole_model(self) -> Any:
        """The policy's module, or with ZeRO 3 a second one whose weights are gathered one by one where they changed."""
        if self._whole is not self.model and not self._whole_is_fresh:
            targets = dict(self._whole.named_parameters())
            for name, weight in self._gathered():
                targets[name].copy_(weight)
            self._whole_is_fresh = True
        return self._whole

    def save(self, folder: Path, save_model: Callable[[Any, Path], None]) -> None:
        """Model as a Hugging Face folder; master weights, moments and reference whole, in files of their own."""
        whole = self.whole_model()
        state: dict[str, Any] = {"num_updates": self.num_updates, "total_steps": self.total_steps}
        if self.engine is not None and self.config is not None:
            state["config"] = self.config.model_dump()
            state["files"] = self._write_shards(folder)
        if not self.ranks.is_first:
            return
        save_model(whole, folder / "model")
        (folder / "deepspeed.json").write_text(json.dumps(state))
        if self.reference is not None:
            torch.save(self.reference.state_dict(), folder / "reference.pt")

    def load(self, folder: Path) -> None:
        """Restore master weights, moments and reference; who made this backend loaded the model.

        Raises: CheckpointError if the saved state does not fit the model, or another backend wrote it.
        """
        if not (folder / "deepspeed.json").exists():
            raise CheckpointError(f"{folder} was not written by train.backend=deepspeed; go on with the one that did")
        state = json.loads((folder / "deepspeed.json").read_text())
        if (folder / "reference.pt").exists():
            self.reference = frozen_copy(self.whole_model())
            self.reference.load_state_dict(torch.load(folder / "reference.pt", weights_only=True))
        if "config" in state:
            self.start(OptimizerConfig.model_validate(state["config"]), state["total_steps"])
            self._read_shards(folder, state["files"], state["num_updates"])
        self.num_updates = state["num_updates"]

    @property
    def _adamw(self) -> torch.optim.Optimizer:
        """Ours, inside DeepSpeed's wrapper."""
        outer = self.engine.optimizer
        found: torch.optim.Optimizer = getattr(outer, "optimizer", outer)
        return found

    def _clip(self, optimizer: OptimizerConfig) -> None:
        most = optimizer.max_grad_norm or 0.0
        self.engine._config.gradient_clipping = most
        if hasattr(self.engine.optimizer, "clip_grad"):
            self.engine.optimizer.clip_grad = most

    def _gathered(self) -> Iterator[tuple[str, Tensor]]:
        """The weights one by one, whole; every rank passes in step."""
        import deepspeed

        for name, p in self.model.named_parameters():
            with deepspeed.zero.GatheredParameters(
                [p], enabled=self.train_config.zero == 3 and self.engine is not None
            ):
                yield name, p.detach()

    def _full(self, p: Tensor, key: str) -> Tensor:
        """A parameter's float32 master weight ("fp32") or moment, whole, on every rank."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        if self._is_plain:
            state = self._adamw.state.get(p, {})
            return p.detach().float() if key == "fp32" else state.get(key, torch.zeros_like(p))
        if key != "fp32" and not self._adamw.state:
            return torch.zeros(getattr(p, "ds_shape", p.shape))
        found = safe_get_full_fp32_param(p) if key == "fp32" else safe_get_full_optimizer_state(p, key)
        if found is None:
            raise RunError(f"DeepSpeed gives no {key} of a parameter of shape {tuple(p.shape)}")
        full: Tensor = found
        return full

    @property
    def _is_plain(self) -> bool:
        """DeepSpeed left our AdamW over the model's own parameters (ZeRO 0 in float32)."""
        return self._adamw is self.engine.optimizer

    def _write_shards(self, folder: Path) -> list[str]:
        from safetensors.torch import save_file

        files: list[str] = []
        held: dict[str, Tensor] = {}
        names = list(self.model.named_parameters())
        for number, (name, p) in enumerate(names, 1):
            for key in ("fp32", *MOMENTS):
                full = self._full(p, key)  # every rank takes part, the first keeps it
                if self.ranks.is_first:
                    held[f"{name}/{key}"] = full.detach().cpu().contiguous().clone()
            size = sum(t.numel() * t.element_size() for t in held.values())
            if held and (size >= SHARD_BYTES or number == len(names)):
                files.append(f"optimizer-{len(files):05d}.safetensors")
                save_file(held, folder / files[-1])
                held = {}
        return files

    def _read_shards(self, folder: Path, files: list[str], num_updates: int) -> None:
        from safetensors import safe_open

        opened: list[Any] = [safe_open(folder / f, "pt") for f in files]
        where = {name: file for file in opened for name in list(file.keys())}

        def read(name: str) -> Tensor:
            tensor: Tensor = where[name].get_tensor(name)
            return tensor

        names = [name for name, _ in self.model.named_parameters()]
        if missing := [n for n in names if f"{n}/fp32" not in where]:
            raise CheckpointError(f"{folder}: no optimiser state of {missing[0]}; it is of another model")
        self._set_moments(read, num_updates)

    def _set_moments(self, read: Callable[[str], Tensor] | None, num_updates: int = 0) -> None:
        """AdamW's moments and the master weights as `read` gives them; without it, none and as they are."""
        if read is None:
            for state in self._adamw.state.values():
                for value in state.values():
                    value.zero_()
            return
        self._make_moments()
        for name, p in self.model.named_parameters():
            for key in ("fp32", *MOMENTS):
                self._put(p, key, read(f"{name}/{key}").to(self.model.device))
        for state in self._adamw.state.values():
            state["step"].fill_(float(num_updates))

    def _make_moments(self) -> None:
        """AdamW makes its moments at its first update; here they are needed before it."""
        masters = getattr(self.engine.optimizer, "fp32_partitioned_groups_flat", None)  # ZeRO 3 lends them for a step
        for p in masters or [p for group in self._adamw.param_groups for p in group["params"]]:
            if not self._adamw.state.get(p):
                self._adamw.state[p] = {
                    "step": torch.zeros((), device=p.device, dtype=torch.float32),
                    **{key: torch.zeros_like(p) for key in MOMENTS},
                }
        if hasattr(self.engine.optimizer, "_lazy_init_hp_params_optimizer_state"):  # as its first update would
            self.engine.optimizer._lazy_init_hp_params_optimizer_state()

    def _put(self, p: Tensor, key: str, value: Tensor) -> None:
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        if self._is_plain:
            with torch.no_grad():
                (p if key == "fp32" else self._adamw.state[p][key]).copy_(value)
        elif key == "fp32":
            safe_set_full_fp32_param(p, value)
        else:
            safe_set_full_optimizer_state(p, value, key)


class _Forward(torch.nn.Module):
    """The forward that DeepSpeed wraps: its hooks on the outermost call are what gathers sharded weights."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, where: Tensor, routing: Tensor | None, lengths: Sequence[int] | None
    ) -> Tensor:
        """Logits [N, V] of the tokens at `where`."""
        return logits_at(self.model, input_ids, where, routing, lengths=lengths)


def _engine(module: torch.nn.Module, optimizer: OptimizerConfig, config: TrainConfig) -> Any:
    """DeepSpeed's engine around `module` with our AdamW.

    Raises: ConfigError where DeepSpeed is not installed.
    """
    deepspeed = _library()
    zero: dict[str, Any] = {"stage": config.zero}
    if config.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    if config.offload == "all":
        zero["offload_param"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    first = next(module.parameters())
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,  # the update says when its last micro-batch was
        "gradient_clipping": optimizer.max_grad_norm or 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
        "bf16": {"enabled": first.dtype == torch.bfloat16},
    }
    engine, *_ = deepspeed.initialize(
        model=module, optimizer=adamw(module.parameters(), optimizer), config=settings, dist_init_required=False
    )
    engine.eval()
    return engine


def _library() -> Any:
    """DeepSpeed, over the process group that is there.

    On the CPU it would compile a shared-memory all-reduce for a minute; gloo does without.
    """
    os.environ.setdefault("LOCAL_RANK", "0")
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
    if not torch.cuda.is_available():
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if not torch.distributed.is_initialized():  # one process: DeepSpeed wants a group all the same
        from torch._C._distributed_c10d import HashStore

        torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=HashStore())
    deepspeed.init_distributed(verbose=False)
    return deepspeed
