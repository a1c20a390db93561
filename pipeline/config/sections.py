"""Sections of a recipe. They are frozen, refuse unknown keys, and have all defaults."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from verizero.pipeline import registry

DEVICES = re.compile(r"auto|cpu|cuda(:[0-9]+)?")


def check_device(name: str) -> str:
    """Return the name of a device. Raises: ValueError unless a policy can be on it."""
    if not DEVICES.fullmatch(name):
        raise ValueError(f"{name!r} is no device that models run on here; give auto, cpu, cuda or cuda:N")
    return name


ModelPath = Annotated[str | None, AfterValidator(lambda path: path and os.path.expanduser(path))]
"""A model's folder (`~` is the user's home), its file, or its id on the hub."""


class Section(BaseModel):
    """Base of all sections: frozen; refuses unknown keys and numbers that are not finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class CreateConfig(Section):
    """A new base model with random weights and a character tokenizer."""

    model_type: str = Field("qwen2", description="an architecture of the transformers library")
    config: dict[str, Any] = Field(description="arguments of that architecture's configuration class")
    characters: str = Field(description="the characters that the tokenizer knows, besides <pad> and <eos>")


class ModelConfig(Section):
    """The model from which the first stage starts: exactly one of `path` and `create`."""

    path: ModelPath = Field(
        None, description="a Hugging Face folder, a hub id (needs network), a file x.gguf, or package:NAME/x.gguf"
    )
    revision: str | None = Field(None, description="commit or tag of the hub id")
    create: CreateConfig | None = None
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="of the weights that compute; the optimiser moves float32 masters of them in any case; auto: "
        "bfloat16 on a GPU, but float32 with reference.schedule: ema",
    )

    quantize: Literal["nf4"] | None = Field(
        None,
        description="nf4: linear layers, but not the output layer, are in 4 bits, by bitsandbytes, and frozen under "
        "train.lora",
    )

    @model_validator(mode="after")
    def _one(self) -> ModelConfig:
        if (self.path is None) == (self.create is None):
            raise ValueError("give exactly one of model.path (a folder or hub id) and model.create (a new model)")
        return self


class OptimizerConfig(Section):
    """AdamW and its schedule."""

    kind: Literal["adamw", "adamw_8bit", "paged_adamw_8bit"] = Field(
        "adamw",
        description="adamw_8bit: moments in 8 bits, by bitsandbytes, with train.backend: torch; paged_adamw_8bit: and "
        "on a GPU that is full they move to the CPU's memory",
    )
    learning_rate: float | None = Field(
        None, gt=0, description="null: by what is trained and the number of parameters, see pipeline/config/rates.py"
    )
    schedule: Literal["constant", "linear", "cosine", "wsd"] = Field(
        "constant", description="wsd: warm-up, stable, then a linear decay over the last `decay_share` of the steps"
    )
    warmup_steps: int = Field(0, ge=0)
    decay_share: float = Field(0.2, gt=0, le=1, description="wsd: share of the steps in which the rate decays")
    final_share: float = Field(
        0.1, ge=0, le=1, description="linear, cosine, wsd: last learning rate, as a share of `learning_rate`"
    )
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float | None = Field(1.0, gt=0, description="null: no clipping")

    @property
    def rate(self) -> float:
        """The learning rate; a run chooses one that is null before it begins."""
        assert self.learning_rate is not None
        return self.learning_rate


class LoraConfig(Section):
    """Low-rank adapters on frozen weights (2106.09685)."""

    rank: int = Field(16, ge=1)
    alpha: float = Field(32, gt=0, description="adapters are scaled by alpha / rank")
    targets: tuple[str, ...] = Field(
        (),
        description="names, or their ends, of linear layers and of a mixture's experts, e.g. [q_proj, "
        "experts.gate_up_proj, experts.down_proj]; empty: all but the output layer and routers",
    )


class TrainConfig(Section):
    """Computation of the update."""

    backend: Literal["auto", "torch", "fsdp", "deepspeed"] = Field(
        "auto",
        description="torch: each rank holds the whole policy; fsdp: ranks divide it; deepspeed: as zero says; auto: "
        "fsdp for several ranks on GPUs, unless the embedded engine needs a quantised base whole, else torch",
    )
    zero: Literal[0, 1, 2, 3] = Field(
        0, description="deepspeed: divided among ranks; 1: optimiser state, 2: gradients too, 3: weights too"
    )
    offload: Literal["none", "optimizer", "all"] = Field(
        "none",
        description="fsdp, deepspeed: kept in the CPU's memory with the reference; optimizer: its state; all: weights "
        "too (deepspeed with zero: 3)",
    )
    replicas: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description="fsdp: copies of the policy, each divided among as many ranks, whose gradients are added once an "
        "update (HSDP); auto: on GPUs each on the fewest nodes that hold it, on the CPU 1",
    )
    lora: LoraConfig | None = Field(None, description="train adapters on a frozen policy; null: train all weights")
    gradient_checkpointing: bool | Literal["auto"] = Field(
        "auto",
        description="compute activations again in the backward pass, to save memory; auto: on GPUs where the "
        "plan finds no room without it",
    )
    device: Annotated[str, AfterValidator(check_device)] = Field("auto", description="auto, cpu, cuda or cuda:N")
    deterministic: bool = Field(
        True,
        description="on a GPU, kernels that give the same bytes each time, which may be slower; the CPU's always do",
    )
    threads: int | None = Field(None, ge=1, description="CPU threads; null: torch's choice")
    micro_batch_tokens: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description="most tokens, padding included, in one forward and backward pass; auto: 4096, on GPUs up to 16384 "
        "as the plan finds room",
    )
    packing: Literal["auto", "on", "off"] = Field(
        "auto",
        description="rows one after another without padding between them, on a GPU in micro-batches of one fixed "
        "number of tokens, and tokens with which several rows begin computed once; auto: where they are a tenth of all "
        "tokens, on a GPU a quarter, for texts also where padding is, and on CUDA in bfloat16 always, if the policy "
        "passes a test",
    )
    compile: Literal["auto", "on", "off"] = Field(
        "auto",
        description="blocks by torch.compile; auto: of packed rows on CUDA, where a block computes the same by it; not "
        "with deepspeed",
    )
    logits_chunk_tokens: Annotated[int, Field(ge=1)] | Literal["auto"] | None = Field(
        "auto",
        description="most tokens whose logits are in memory at a time, computed again in the backward pass; null: all; "
        "auto: 1024 on a GPU for a policy whose logits are one product, else all",
    )

    @property
    def recomputes(self) -> bool:
        """Activations are computed again in the backward pass; `auto` is no where no plan decides, as on the CPU."""
        return self.gradient_checkpointing is True

    @property
    def most_tokens(self) -> int:
        """Tokens of a full micro-batch; `auto` is 4096 where no plan decides."""
        return 4096 if self.micro_batch_tokens == "auto" else self.micro_batch_tokens

    @model_validator(mode="after")
    def _backend_can(self) -> TrainConfig:
        if self.compile == "on" and self.backend == "deepspeed":
            raise ValueError(
                "train.compile=on with train.backend=deepspeed, which works within blocks; set train.compile: auto"
            )
        if self.backend != "deepspeed" and self.zero > 0:
            raise ValueError(f"train.zero={self.zero} with train.backend={self.backend}; set train.backend: deepspeed")
        if self.backend in ("auto", "torch") and self.offload != "none":
            raise ValueError(
                f"train.offload={self.offload} with train.backend={self.backend}; set train.backend: fsdp or deepspeed"
            )
        if self.replicas not in ("auto", 1) and self.backend not in ("auto", "fsdp"):
            raise ValueError(
                f"train.replicas={self.replicas} with train.backend={self.backend}; set train.backend: fsdp"
            )
        if self.backend == "deepspeed" and self.zero == 0:
            raise ValueError(
                "train.zero=0 with train.backend=deepspeed divides nothing; set train.zero: 1, 2 or 3, or "
                "train.backend: torch"
            )
        if self.backend == "fsdp":
            if self.offload == "all":
                raise ValueError(
                    "train.offload=all with train.backend=fsdp, which keeps weights on the GPU; set train.offload: "
                    "optimizer, or train.backend: deepspeed with train.zero: 3"
                )
            return self
        if self.offload == "all" and self.zero < 3:
            raise ValueError(f"train.offload=all with train.zero={self.zero}; set train.zero: 3, or offload: optimizer")
        return self


class NodesConfig(Section):
    """The number of nodes of each kind. `nodes: 2` reads as `{train: 2}`."""

    train: int = Field(1, ge=1, description="nodes that train, and generate unless others do")
    generate: int = Field(
        0, ge=0, description="further nodes, numbered after those, with nothing but servers; their number may change"
    )


class LaunchConfig(Section):
    """The processes that train together. If one ends, all end."""

    kind: Literal["none", "torchrun", "slurm"] = Field(
        "none",
        description="none: one process, or ranks that something else has started; torchrun: here, or on each node",
    )
    nodes: Annotated[NodesConfig, BeforeValidator(lambda n: {"train": n} if isinstance(n, int) else n)] = NodesConfig()
    gpus_per_node: int = Field(
        1, ge=1, description="ranks on each node (also without GPUs); on one that generates, GPUs of its servers"
    )
    address: str | None = Field(None, description="torchrun on several nodes: address of the first node")
    port: int = Field(
        29500, ge=1, le=65535, description="port on the first node; torchrun on one node takes a free one"
    )
    phase_timeout_s: float = Field(
        1800,
        gt=0,
        description="a rank whose phase takes longer ends, and with it all ranks; set it above the longest phase",
    )

    @model_validator(mode="after")
    def _fits(self) -> LaunchConfig:
        if self.kind == "none" and self.num_nodes > 1:
            raise ValueError(f"launch.nodes={self.num_nodes} with launch.kind=none; use torchrun or slurm for several")
        if self.kind == "torchrun" and self.num_nodes > 1 and self.address is None:
            raise ValueError(f"launch.nodes={self.num_nodes} with torchrun needs launch.address, the first node's")
        return self

    @property
    def num_nodes(self) -> int:
        """The number of all nodes."""
        return self.nodes.train + self.nodes.generate

    @property
    def generating(self) -> range:
        """The numbers of the nodes that only generate."""
        return range(self.nodes.train, self.num_nodes)


class EvaluationConfig(Section):
    """Held-out evaluation, before and after each stage."""

    k: int = Field(8, ge=1, description="samples for each prompt; also the k of pass@k and maj@k")
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1)
    every_rounds: int = Field(1, ge=1)
    limit: int | None = Field(None, ge=1, description="most prompts of a domain; null: all")
    before_training: bool = Field(True, description="evaluate the model that the first stage starts from")


class CheckpointConfig(Section):
    """Checkpoints of the whole training state."""

    every_steps: int = Field(10, ge=1, description="a run's first step has one too")
    keep: int = Field(2, ge=1, description="number of newest checkpoints kept, besides the last of each stage")


class ReportConfig(Section):
    """Reports and trackers."""

    trackers: tuple[str, ...] = Field(
        ("tensorboard",),
        description="names: tensorboard, wandb, mlflow, those of plug-ins; or file.py:Class from the recipe's folder",
    )
    samples_per_step: int = Field(
        4, ge=0, description="groups of each step whose responses are written to rollouts.jsonl"
    )

    @field_validator("trackers")
    @classmethod
    def _known(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        base = (info.context or {}).get("base") or Path.cwd()
        for name in value:
            if ".py:" not in name:
                registry.find("trackers", name)
        # Absolute, so that it is right in the run's own recipe.yaml too.
        return tuple(str(base / name) if ".py:" in name else name for name in value)


def check_optimizer(where: str, kind: str, train: TrainConfig) -> None:
    """Raise ValueError for a kind of optimiser that the training backend or the device does not have."""
    if kind == "adamw":
        return
    if train.backend in ("fsdp", "deepspeed"):
        why = (
            "whose ranks divide moments by rows, which blocks of 8-bit numbers do not follow"
            if train.backend == "fsdp"
            else "which has an AdamW of its own"
        )
        raise ValueError(
            f"{where}.kind={kind} with train.backend={train.backend}, {why}; set train.backend: torch, or "
            f"{where}.kind: adamw"
        )
    if kind == "paged_adamw_8bit" and train.device == "cpu":
        raise ValueError(
            f"{where}.kind={kind} moves moments from a full GPU to the CPU's memory, and train.device is cpu; set "
            f"{where}.kind: adamw_8bit"
        )
