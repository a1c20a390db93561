"""The sections of a recipe. All are frozen, refuse unknown keys, and hold the defaults: there are none elsewhere."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    """Base: frozen, unknown keys and numbers that are not finite refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class CreateConfig(Section):
    """A base model made here, with random weights and a character tokenizer."""

    model_type: str = Field("qwen2", description="an architecture of transformers")
    config: dict[str, Any] = Field(description="arguments of that architecture's configuration class")
    characters: str = Field(description="the characters that the tokenizer knows, besides <pad> and <eos>")


class ModelConfig(Section):
    """The policy that the first stage starts from: exactly one of `path` and `create`."""

    path: str | None = Field(None, description="a Hugging Face folder, or a hub id (needs network)")
    revision: str | None = Field(None, description="of the hub id")
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
    decay_share: float = Field(0.2, gt=0, le=1, description="of all steps, for wsd")
    final_share: float = Field(0.1, ge=0, le=1, description="of the learning rate, where linear, cosine and wsd end")
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float | None = Field(1.0, gt=0, description="null: no clipping")


class VllmConfig(Section):
    """vLLM as the rollout engine, in this process (`vllm`) or as servers (`vllm_server`)."""

    max_model_tokens: int | None = Field(
        None, ge=1, description="prompt and response at most; null: the model's context"
    )
    tensor_parallel: int = Field(1, ge=1, description="devices that hold one copy of the model")
    gpu_memory_share: float = Field(0.4, gt=0, le=1, description="of a GPU's memory, for weights and cache")
    kv_cache_gib: float = Field(1.0, gt=0, description="cache of keys and values where the engine runs on the CPU")
    enforce_eager: bool = Field(True, description="no compiled graphs: a quick start, and slower on GPUs")
    sleep: bool = Field(True, description="colocated on a GPU: give memory back while the update runs")
    arguments: dict[str, Any] = Field({}, description="further arguments of vLLM's engine, by its own names")
    servers: int = Field(1, ge=1, description="vllm_server: how many this run starts, where `urls` names none")
    urls: tuple[str, ...] = Field((), description="vllm_server: servers that run already, http://host:port")
    transfer: Literal["gloo", "folder"] = Field(
        "gloo", description="vllm_server: how weights reach it; a folder must be one that the servers see too"
    )
    bucket_mib: int = Field(256, ge=1, description="vllm_server: weights are sent in pieces of this size")
    concurrency: int = Field(
        64, ge=1, description="vllm_server: responses asked for at once, of each server; by all ranks"
    )
    start_timeout_s: float = Field(600, gt=0, description="vllm_server: until it answers")
    request_timeout_s: float = Field(1200, gt=0, description="vllm_server: for one response or one piece of weights")
    health_timeout_s: float = Field(
        60,
        gt=0,
        description="vllm_server: one that was silent so long is asked for its health, and has as long to tell",
    )


class ParityConfig(Section):
    """At start the engine's log-probs of some responses are held against the trainer's of the same tokens."""

    action: Literal["auto", "off", "warn", "correct", "stop"] = Field(
        "auto",
        description="where they differ; correct: truncated importance sampling; auto: correct for vLLM, off for torch",
    )
    tolerance: float = Field(1e-3, gt=0, description="largest mean |difference|, in nats, that counts as equal")
    num_prompts: int = Field(8, ge=1, description="prompts that are answered once each")


class RolloutConfig(Section):
    """How responses are sampled while training."""

    engine: Literal["torch", "vllm", "vllm_server"] = Field(
        "torch", description="torch: embedded; vllm: in this process; vllm_server: one or several servers"
    )
    max_response_tokens: int = Field(ge=1)
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1, description="sample among the fewest tokens of this probability; 1: all")
    top_k: int = Field(0, ge=0, description="sample among this many most likely tokens; 0: all")
    max_kept: int = Field(
        1024, ge=1, description="with keep_sampling: most tokens of a recorded set, so most that top_p leaves"
    )
    publish_every: int = Field(
        1, ge=1, description="updates between hand-overs of weights to the engine; k: responses are up to k - 1 old"
    )
    max_staleness: int = Field(
        0, ge=0, description="responses are generated up to so many updates ahead, beside them; 0: between them"
    )
    in_flight: Literal["finish", "interrupt"] = Field(
        "finish", description="responses under way when new weights come: end with the old ones, or go on with the new"
    )
    interrupt_tokens: int | None = Field(
        None, ge=1, description="interrupt: tokens of a response that each version draws; the last draws all the rest"
    )
    max_rows: int = Field(
        1024, ge=1, description="responses decoded at once; the embedded engine takes those to prompts of like length"
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
                f"rollout.max_staleness={self.max_staleness} generates beside the update, and an engine over "
                f"rollout.vllm.tensor_parallel={self.vllm.tensor_parallel} ranks would meet its collectives; set "
                "tensor_parallel: 1, or max_staleness: 0"
            )
        return self


class LoraConfig(Section):
    """Low-rank adapters on frozen weights (2106.09685)."""

    rank: int = Field(16, ge=1)
    alpha: float = Field(32, gt=0, description="adapters are scaled by alpha / rank")
    targets: tuple[str, ...] = Field(
        (), description="names of linear layers, e.g. [q_proj, v_proj]; none: all but the output layer"
    )


class TrainConfig(Section):
    """Where and how the update is computed."""

    backend: Literal["torch", "deepspeed"] = Field(
        "torch", description="torch: each rank has the whole policy; deepspeed: ranks share it out (zero)"
    )
    zero: Literal[0, 1, 2, 3] = Field(
        0, description="deepspeed: what is shared out; 1: optimiser, 2: gradients too, 3: weights too"
    )
    offload: Literal["none", "optimizer", "all"] = Field(
        "none", description="deepspeed: what waits in the CPU's memory; all: with zero 3, the weights too"
    )
    sequence_parallel: int = Field(
        1, ge=1, description="neighbouring ranks that hold each sequence together, in pieces"
    )
    lora: LoraConfig | None = Field(None, description="train adapters, and keep the policy frozen; null: train all")
    gradient_checkpointing: bool = Field(False, description="compute activations again in the backward")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:0 …")
    threads: int | None = Field(None, ge=1, description="of the CPU; null: torch's choice")
    micro_batch_tokens: int = Field(4096, ge=1, description="tokens (with padding) of one forward and backward")
    logits_chunk_tokens: int | None = Field(
        None, ge=1, description="most tokens whose logits exist at once, made again in the backward; null: all"
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


class LaunchConfig(Section):
    """The processes that train together. Each has a log, and the end of one ends all."""

    kind: Literal["none", "local", "torchrun", "deepspeed", "slurm"] = Field(
        "none", description="none: one process, or ranks that were started already; local: on this machine"
    )
    nodes: int = Field(1, ge=1)
    gpus_per_node: int = Field(1, ge=1, description="ranks on each node, on the CPU too")
    hostfile: str | None = Field(None, description="lines `host slots=8`, the first host first; for deepspeed")
    address: str | None = Field(None, description="of the first node, for torchrun on several nodes")
    port: int = Field(29500, ge=1, le=65535, description="on the first node; `local` takes one that is free")
    phase_timeout_s: float = Field(
        1800,
        gt=0,
        description="a rank whose phase takes longer ends, and with it all; above what the longest one takes",
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
    """Raises: ValueError where ranks cannot be put together as the recipe says, or end before what they wait for."""
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

    k: int = Field(8, ge=1, description="samples a prompt; pass@k and maj@k are of k")
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1)
    every_rounds: int = Field(1, ge=1)
    limit: int | None = Field(None, ge=1, description="prompts a domain; null: all")
    before_training: bool = Field(True, description="evaluate the model that the first stage starts from")


class CheckpointConfig(Section):
    """Checkpoints of the whole training state."""

    every_steps: int = Field(10, ge=1)
    keep: int = Field(2, ge=1, description="newest ones kept, besides the last of each stage")


class ReportConfig(Section):
    """What is written for people."""

    trackers: tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...] = ("tensorboard",)
    samples_per_step: int = Field(4, ge=0, description="groups a step whose responses go to rollouts.jsonl")
    metrics_port: int | None = Field(
        None, ge=1, le=65535, description="serve /metrics for Prometheus here, on loopback, while the run goes on"
    )


class PrefectConfig(Section):
    """How the run shows in Prefect."""

    phases: Literal["tasks", "folded"] = Field("tasks", description="one task a phase, or one a step")
    start_timeout_s: float = Field(300, gt=0, description="for the embedded server")
