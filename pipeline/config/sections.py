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


TEXT_TYPES = (".txt", ".jsonl", ".ndjson", ".json", ".parquet")


class TextSource(Section):
    """Unlabelled text of one file: a .txt is one text, every row of the others is one."""

    file: str = Field(description="path of .txt, .jsonl, .json or .parquet, from the recipe's folder")
    column: str = Field("text", min_length=1, description="of rows; a.b steps into objects")
    limit: int | None = Field(None, ge=1, description="texts")
    on_bad_row: Literal["error", "skip"] = Field("error", description="skip: counted and reported")

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, value: Any) -> Any:
        return {"file": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _known(self) -> TextSource:
        if not self.file.lower().endswith(TEXT_TYPES):
            raise ValueError(f"a file of text must end in {', '.join(TEXT_TYPES)}, got {self.file!r}")
        return self


def check_one_length(name: str, steps: int | None, epochs: float | None) -> None:
    """Raises: ValueError unless exactly one says how long the stage is."""
    if (steps is None) == (epochs is None):
        raise ValueError(f"give exactly one of {name}.steps and {name}.epochs, got steps {steps} and epochs {epochs}")


class PretrainConfig(Section):
    """Next-token training on unlabelled text: of a base made here that skips SFT (R1-Zero), or on files of a domain."""

    steps: int | None = Field(None, ge=1)
    epochs: float | None = Field(None, gt=0, description="through the texts, in place of steps")
    batch_size: int = Field(64, ge=1, description="texts a step")
    packing: bool = Field(False, description="compute no padding: the same loss and gradient, in less time")
    text: tuple[TextSource, ...] = Field(
        (), description="files; what is longer than the context is cut into pieces. Empty: lines of the generators"
    )
    num_lines: int = Field(20_000, ge=1, description="lines of text drawn from the generators of data.train")
    evaluate_every: int | None = Field(None, ge=1, description="steps between evaluations; null: after the stage only")
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=2e-3, schedule="cosine", warmup_steps=30)

    @model_validator(mode="after")
    def _one_length(self) -> PretrainConfig:
        check_one_length("pretrain", self.steps, self.epochs)
        return self


class SftConfig(Section):
    """Supervised fine-tuning on the demonstrations among the training rows."""

    steps: int | None = Field(None, ge=1)
    epochs: float | None = Field(None, gt=0, description="through the demonstrations, in place of steps")
    batch_size: int = Field(64, ge=1, description="demonstrations a step")
    packing: bool = Field(False, description="compute no padding: the same loss and gradient, in less time")
    evaluate_every: int | None = Field(None, ge=1, description="steps between evaluations; null: after the stage only")
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=2e-3, schedule="cosine", warmup_steps=30)

    @model_validator(mode="after")
    def _one_length(self) -> SftConfig:
        check_one_length("sft", self.steps, self.epochs)
        return self


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
    concurrency: int = Field(64, ge=1, description="vllm_server: responses asked for at once, of each server")
    start_timeout_s: float = Field(600, gt=0, description="vllm_server: until it answers")
    request_timeout_s: float = Field(1800, gt=0, description="vllm_server: for one response or one piece of weights")


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
    max_rows: int = Field(1024, ge=1, description="responses decoded at once")
    vllm: VllmConfig = VllmConfig()
    parity: ParityConfig = ParityConfig()


class ReferenceConfig(Section):
    """When the reference becomes the present policy."""

    schedule: Literal["frozen", "every_round", "every_n_steps", "ema", "on_kl", "on_plateau", "none"] = Field(
        "every_round", description="none: no reference is held and no KL to it measured"
    )
    every: int | None = Field(None, ge=1, description="steps between refreshes, for every_n_steps")
    alpha: float | None = Field(None, gt=0, le=1, description="weight of the policy, for ema (2404.09656)")
    kl: float | None = Field(None, gt=0, description="mean k3 past which it moves, for on_kl")
    patience: int | None = Field(None, ge=1, description="steps without a better mean reward, for on_plateau")

    @model_validator(mode="after")
    def _fits(self) -> ReferenceConfig:
        needs = {"every_n_steps": "every", "ema": "alpha", "on_kl": "kl", "on_plateau": "patience"}
        for schedule, name in needs.items():
            given = getattr(self, name) is not None
            if given != (self.schedule == schedule):
                verb = "needs" if self.schedule == schedule else "has no use for"
                raise ValueError(f"reference.schedule={self.schedule} {verb} reference.{name}")
        return self


class SelectConfig(Section):
    """Dynamic sampling (2503.14476): which groups train, and how the batch is filled."""

    keep: Literal["auto", "informative", "all"] = Field(
        "auto", description="informative: rewards are not all equal; auto: as the algorithm has it"
    )
    max_refills: int = Field(3, ge=0, description="further generations a step, when too few groups were kept")
    fallback: Literal["train_short", "skip"] = Field("train_short", description="when the batch is still not full")
    carry_over: bool = Field(True, description="kept groups beyond the batch train in the next step")
    min_groups: int = Field(1, ge=1, description="fewer kept groups than this skip the update")


class RlConfig(Section):
    """Rounds of generate, verify, select, update."""

    algorithm: dict[str, Any] = Field(description="{name: grpo, …}: a preset and its parameters")
    rounds: int = Field(ge=1)
    steps_per_round: int = Field(ge=1)
    prompts_per_step: int = Field(ge=1, description="groups in one batch")
    group_size: int = Field(ge=1, description="responses a prompt")
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=3e-4)
    ptx_batch_size: int = Field(16, ge=1, description="demonstrations in each update, where ptx_coef is above 0")
    critic: OptimizerConfig | None = Field(
        None, description="the critic's; null: `optimizer`, at the algorithm's critic_learning_rate where it has one"
    )
    reference: ReferenceConfig | None = Field(None, description="null: as the algorithm has it")
    select: SelectConfig = SelectConfig()
    max_tokens: int | None = Field(
        None, ge=1, description="RL ends before a step that might generate more than so many in all; null: never"
    )
    max_bad_steps: int = Field(3, ge=1, description="refused (non-finite) updates in a row that end the run")


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
        1800, gt=0, description="a rank whose phase (or one collective in it) takes longer ends, and with it all"
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
    keep: int = Field(2, ge=1, description="newest ones kept, besides the last of each stage's model")


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
