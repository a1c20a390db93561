"""Sections of a recipe. All are frozen, refuse unknown keys, and are the only place of the defaults."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    """Base of all sections: frozen; refuses unknown keys and numbers that are not finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class CreateConfig(Section):
    """A new base model with random weights and a character tokenizer."""

    model_type: str = Field("qwen2", description="an architecture of the transformers library")
    config: dict[str, Any] = Field(description="arguments of that architecture's configuration class")
    characters: str = Field(description="the characters that the tokenizer knows, besides <pad> and <eos>")


class ModelConfig(Section):
    """The policy that the first stage starts from: exactly one of `path` and `create`."""

    path: str | None = Field(None, description="a Hugging Face folder, or a hub id (needs network)")
    revision: str | None = Field(None, description="commit or tag of the hub id")
    create: CreateConfig | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"

    @model_validator(mode="after")
    def _one(self) -> ModelConfig:
        if (self.path is None) == (self.create is None):
            raise ValueError("give exactly one of model.path (a folder or hub id) and model.create (a new model)")
        return self


class OptimizerConfig(Section):
    """AdamW and its schedule."""

    learning_rate: float = Field(gt=0)
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


class VllmConfig(Section):
    """vLLM as the rollout engine, in the training process (`vllm`) or as servers (`vllm_server`)."""

    max_model_tokens: int | None = Field(
        None, ge=1, description="most tokens of prompt and response together; null: the model's context"
    )
    tensor_parallel: int = Field(1, ge=1, description="number of devices that share one copy of the model")
    gpu_memory_share: float = Field(0.4, gt=0, le=1, description="share of a GPU's memory for weights and cache")
    kv_cache_gib: float = Field(1.0, gt=0, description="size of the cache of keys and values on the CPU")
    enforce_eager: bool = Field(True, description="compile no graphs: starts faster, generates slower on GPUs")
    sleep: bool = Field(
        True, description="engine and trainer on one GPU: the engine frees its memory during the update"
    )
    arguments: dict[str, Any] = Field({}, description="further arguments of vLLM's engine, by their names there")
    servers: int = Field(1, ge=1, description="vllm_server: number of servers that the run starts, if `urls` is empty")
    urls: tuple[str, ...] = Field((), description="vllm_server: addresses http://host:port of servers that already run")
    transfer: Literal["gloo", "folder"] = Field(
        "gloo", description="vllm_server: transport of weights; a folder must be shared with the servers"
    )
    bucket_mib: int = Field(256, ge=1, description="vllm_server: size of the pieces that weights are sent in")
    concurrency: int = Field(64, ge=1, description="vllm_server: most open requests to each server, over all ranks")
    start_timeout_s: float = Field(600, gt=0, description="vllm_server: seconds to wait for a started server to answer")
    request_timeout_s: float = Field(
        1200, gt=0, description="vllm_server: seconds to wait for one response or one piece of weights"
    )
    health_timeout_s: float = Field(
        60,
        gt=0,
        description="vllm_server: seconds of silence before the server's health is checked; the check may take as long",
    )


class ParityConfig(Section):
    """At start, the engine's log-probs of some responses are compared to the trainer's of the same tokens."""

    action: Literal["auto", "off", "warn", "correct", "stop"] = Field(
        "auto",
        description="if they differ; correct: truncated importance sampling; auto: correct for vLLM, off for torch",
    )
    tolerance: float = Field(1e-3, gt=0, description="largest mean absolute difference in nats that counts as equal")
    num_prompts: int = Field(8, ge=1, description="number of prompts, each answered once")


class RolloutConfig(Section):
    """Sampling of responses in training."""

    engine: Literal["torch", "vllm", "vllm_server"] = Field(
        "torch",
        description="torch: the built-in engine; vllm: in the training process; vllm_server: one or several servers",
    )
    max_response_tokens: int = Field(ge=1)
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(
        1.0, gt=0, le=1, description="sample from the smallest set of tokens with this probability; 1: all tokens"
    )
    top_k: int = Field(0, ge=0, description="sample from so many most likely tokens; 0: all tokens")
    max_kept: int = Field(
        1024, ge=1, description="with keep_sampling: most tokens in a recorded set, and so the most that top_p keeps"
    )
    publish_every: int = Field(
        1,
        ge=1,
        description="updates between publications of weights to the engine; k: responses are up to k - 1 updates old",
    )
    max_staleness: int = Field(
        0, ge=0, description="generate responses up to so many updates ahead, during updates; 0: between updates"
    )
    in_flight: Literal["finish", "interrupt"] = Field(
        "finish",
        description="unfinished responses when new weights arrive: finish with the old, or continue with the new",
    )
    interrupt_tokens: int | None = Field(
        None,
        ge=1,
        description="interrupt: tokens of a response that each version of the weights draws; the last draws the rest",
    )
    max_rows: int = Field(
        1024, ge=1, description="most responses decoded at a time; the built-in engine groups prompts of similar length"
    )
    vllm: VllmConfig = VllmConfig()
    parity: ParityConfig = ParityConfig()

    @model_validator(mode="after")
    def _ahead_fits(self) -> RolloutConfig:
        interrupts = self.in_flight == "interrupt"
        if interrupts != (self.interrupt_tokens is not None):
            verb = "needs" if interrupts else "has no use for"
            raise ValueError(f"rollout.in_flight={self.in_flight} {verb} rollout.interrupt_tokens")
        if self.max_staleness == 0 and interrupts:
            raise ValueError(
                "rollout.in_flight=interrupt with rollout.max_staleness=0: nothing is under way when weights come; set "
                "max_staleness: 1 or more"
            )
        if self.max_staleness > 0 and self.publish_every > 1:
            raise ValueError(
                f"rollout.publish_every={self.publish_every} would make responses older than rollout.max_staleness="
                f"{self.max_staleness}; set publish_every: 1"
            )
        if self.max_staleness > 0 and self.vllm.tensor_parallel > 1:
            raise ValueError(
                f"rollout.max_staleness={self.max_staleness} generates during the update, and an engine over "
                f"rollout.vllm.tensor_parallel={self.vllm.tensor_parallel} ranks would meet its collectives; set "
                "tensor_parallel: 1, or max_staleness: 0"
            )
        return self


class LoraConfig(Section):
    """Low-rank adapters on frozen weights (2106.09685)."""

    rank: int = Field(16, ge=1)
    alpha: float = Field(32, gt=0, description="adapters are scaled by alpha / rank")
    targets: tuple[str, ...] = Field(
        (), description="names of linear layers, e.g. [q_proj, v_proj]; empty: all but the output layer"
    )


class TrainConfig(Section):
    """Computation of the update."""

    backend: Literal["torch", "deepspeed"] = Field(
        "torch", description="torch: each rank holds the whole policy; deepspeed: ranks divide it (see zero)"
    )
    zero: Literal[0, 1, 2, 3] = Field(
        0, description="deepspeed: divided among ranks; 1: optimiser state, 2: gradients too, 3: weights too"
    )
    offload: Literal["none", "optimizer", "all"] = Field(
        "none", description="deepspeed: kept in CPU memory; optimizer: its state; all: the weights too (needs zero: 3)"
    )
    sequence_parallel: int = Field(1, ge=1, description="number of neighbouring ranks that divide each sequence")
    lora: LoraConfig | None = Field(None, description="train adapters on a frozen policy; null: train all weights")
    gradient_checkpointing: bool = Field(
        False, description="compute activations again in the backward pass, to save memory"
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:0 …")
    threads: int | None = Field(None, ge=1, description="CPU threads; null: torch's choice")
    micro_batch_tokens: int = Field(
        4096, ge=1, description="most tokens, padding included, in one forward and backward pass"
    )
    logits_chunk_tokens: int | None = Field(
        None,
        ge=1,
        description="most tokens whose logits are in memory at a time, computed again in the backward pass; null: all",
    )

    @model_validator(mode="after")
    def _deepspeed_only(self) -> TrainConfig:
        if self.backend == "torch" and (self.zero > 0 or self.offload != "none"):
            name = "zero" if self.zero > 0 else "offload"
            raise ValueError(
                f"train.{name}={getattr(self, name)} with train.backend=torch; set train.backend: deepspeed"
            )
        if self.offload == "all" and self.zero < 3:
            raise ValueError(f"train.offload=all with train.zero={self.zero}; set train.zero: 3, or offload: optimizer")
        if self.offload == "optimizer" and self.zero < 1:
            raise ValueError("train.offload=optimizer with train.zero=0; set train.zero: 1, 2 or 3")
        return self


def check_older_weights(rollout: RolloutConfig, train: TrainConfig) -> None:
    """Refuse responses of older weights where the engine cannot keep a copy of these. Raises: ValueError."""
    if rollout.publish_every == 1 and rollout.max_staleness == 0:
        return
    asked = "publish_every" if rollout.publish_every > 1 else "max_staleness"
    asked = f"rollout.{asked}={getattr(rollout, asked)}"
    if rollout.publish_every > 1 and train.backend != "torch":
        raise ValueError(
            f"{asked} keeps a copy of the policy, which train.backend={train.backend!r} does not; set it to 1, or "
            "train.backend: torch"
        )
    if train.lora is not None:
        raise ValueError(
            f"{asked} keeps a copy of the policy, which train.lora does not; leave it out, or train all weights "
            "(train.lora: null)"
        )


class LaunchConfig(Section):
    """The processes that train together. Each has a log; if one ends, all end."""

    kind: Literal["none", "local", "torchrun", "deepspeed", "slurm"] = Field(
        "none", description="none: one process, or ranks that something else has started; local: ranks on this machine"
    )
    nodes: int = Field(1, ge=1)
    gpus_per_node: int = Field(1, ge=1, description="ranks on each node (also without GPUs)")
    hostfile: str | None = Field(
        None, description="deepspeed: file with lines `host slots=8`, the node of rank 0 first"
    )
    address: str | None = Field(None, description="torchrun on several nodes: address of the first node")
    port: int = Field(29500, ge=1, le=65535, description="port on the first node; `local` takes a free one")
    phase_timeout_s: float = Field(
        1800,
        gt=0,
        description="a rank whose phase takes longer ends, and with it all ranks; set it above the longest phase",
    )

    @model_validator(mode="after")
    def _fits(self) -> LaunchConfig:
        if self.kind in ("none", "local") and self.nodes > 1:
            raise ValueError(
                f"launch.nodes={self.nodes} with launch.kind={self.kind}; use torchrun, deepspeed or slurm for several"
            )
        if self.kind == "torchrun" and self.nodes > 1 and self.address is None:
            raise ValueError(f"launch.nodes={self.nodes} with torchrun needs launch.address, the first node's")
        if self.kind == "deepspeed" and self.nodes > 1 and self.hostfile is None:
            raise ValueError(f"launch.nodes={self.nodes} with deepspeed needs launch.hostfile")
        return self


def check_launch(launch: LaunchConfig, train: TrainConfig, rollout: RolloutConfig) -> None:
    """Raise ValueError if the ranks cannot be combined as the recipe asks, or would end before a server's timeout."""
    if launch.kind == "none":
        return
    num, together = launch.nodes * launch.gpus_per_node, train.sequence_parallel
    if num % together:
        raise ValueError(
            f"train.sequence_parallel={together} does not divide the {num} ranks of launch; set it to a divisor of them"
        )
    devices = rollout.vllm.tensor_parallel
    if rollout.engine == "vllm" and num % devices:
        raise ValueError(
            f"rollout.vllm.tensor_parallel={devices} does not divide the {num} ranks of launch, which are the engines' "
            "devices; set it to a divisor of them"
        )
    if rollout.engine == "vllm_server" and launch.nodes > 1 and not rollout.vllm.urls:
        raise ValueError(
            f"launch.nodes={launch.nodes} and rollout.engine=vllm_server: the servers that a run starts answer to the "
            "node of rank 0 alone; start them yourself (docs/engines.md) and name them in rollout.vllm.urls"
        )
    waits, most = rollout.vllm.request_timeout_s, launch.phase_timeout_s
    if rollout.engine == "vllm_server" and waits >= most:
        raise ValueError(
            f"rollout.vllm.request_timeout_s={waits:g} and launch.phase_timeout_s={most:g}: a rank that waits for a "
            "server that hangs would be ended before it drops that server; set the first below the second"
        )


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

    every_steps: int = Field(10, ge=1)
    keep: int = Field(2, ge=1, description="number of newest checkpoints kept, besides the last of each stage")


class ReportConfig(Section):
    """Reports and trackers."""

    trackers: tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...] = ("tensorboard",)
    samples_per_step: int = Field(
        4, ge=0, description="groups of each step whose responses are written to rollouts.jsonl"
    )
    metrics_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="port on loopback that serves /metrics for Prometheus during the run; null: none",
    )


class PrefectConfig(Section):
    """The run in Prefect."""

    phases: Literal["tasks", "folded"] = Field(
        "tasks", description="tasks: one task for each phase; folded: one for each step"
    )
    start_timeout_s: float = Field(300, gt=0, description="seconds to wait for the embedded server")
