"""The `rollout` section of a recipe: the engine that samples, its devices, and how it gets new weights."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from verizero.pipeline.config.sections import LaunchConfig, Section, TrainConfig
from verizero.pipeline.config.servers import IN_PROCESS, VLLM_SERVER, ServerParams, check_engine, load_servers
from verizero.pipeline.environments.base import validated
from verizero.pipeline.errors import ConfigError

Transfer = Literal["auto", "gloo", "nccl"]
DTYPE_TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2}
"""Largest mean difference of log-probs between engine and trainer, in nats, that rounding explains. Measured on the
CPU: about 1e-6 in float32; 0.014 to 0.036 in bfloat16 with random weights, as the two sum in another order."""


class VllmConfig(ServerParams):
    """vLLM as the rollout engine, in the training process (`vllm`) or as servers (`vllm_server`)."""

    may_change: ClassVar[frozenset[str]] = ServerParams.may_change | {
        *("transfer", "gpu_memory_share", "kv_cache_gib", "sleep", "devices", "share_gpus")
    }
    max_model_tokens: int | None = Field(
        None,
        ge=1,
        description="most tokens of prompt and response together; null: the longest prompt and "
        "`rollout.max_response_tokens`, for episodes the model's context",
    )
    tensor_parallel: int = Field(1, ge=1, description="number of devices that share one copy of the model")
    gpu_memory_share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of a GPU's memory for weights and cache; null: 0.9 for servers on GPUs of their "
        "own; in process what the plan finds that the trainer leaves; else 0.4",
    )
    kv_cache_gib: float = Field(1.0, gt=0, description="size of the cache of keys and values on the CPU")
    enforce_eager: bool | None = Field(
        None, description="true: compile no graphs: starts faster, generates slower; null: true on the CPU alone"
    )
    sleep: bool = Field(
        True, description="vllm: the engine frees its GPU memory while the trainer computes and nothing is generated"
    )
    arguments: dict[str, Any] = Field({}, description="further arguments of vLLM's engine, by their names there")
    devices: tuple[tuple[int, ...], ...] = Field(
        (), description="vllm_server: the GPUs of each server that the run starts, e.g. [[6], [7]]; none on the CPU"
    )
    share_gpus: bool = Field(
        False, description="vllm_server: servers may be on GPUs of ranks, or of each other; lower `gpu_memory_share`"
    )
    transfer: Transfer = Field(
        "auto",
        description="vllm_server: transport of weights; gloo: through the CPU; nccl: between GPUs; auto: the faster "
        "that works",
    )

    @property
    def memory_share(self) -> float:
        """The share of a GPU's memory that an engine takes."""
        own = bool(self.devices) and not self.share_gpus
        return self.gpu_memory_share or (0.9 if own else 0.4)


class ParityConfig(Section):
    """A comparison of the engine's and the trainer's log-probs: of some responses at the start, then of each step's."""

    action: Literal["auto", "off", "warn", "correct", "stop"] = Field(
        "auto", description="if they differ; correct: truncated importance sampling; auto: off for torch in float32"
    )
    tolerance: float | None = Field(
        None,
        gt=0,
        description="largest mean absolute difference in nats that counts as equal; null: 1e-3, in bfloat16 0.05",
    )


class RolloutConfig(Section):
    """Sampling of responses in training."""

    engine: str = Field(
        "auto",
        description="torch: the built-in engine; vllm: in the training process; vllm_server: one or several servers; "
        "or the name of an installed package's servers; auto: vllm on a GPU where it is installed, for a model that "
        "the recipe does not make, else torch",
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
    max_staleness: int = Field(
        0, ge=0, description="generate responses up to so many updates ahead, during updates; 0: between updates"
    )
    max_rows: int = Field(
        1024,
        ge=1,
        description="most responses decoded at a time; on the fast path the next ones replace those that ended",
    )
    vllm: VllmConfig = VllmConfig()
    server: dict[str, Any] = Field({}, description="parameters of an installed package's servers")
    parity: ParityConfig = ParityConfig()

    def parity_action(self, dtype: str) -> str:
        """Return the action if engine and trainer differ, for a policy of this dtype: off, warn, correct or stop."""
        if self.parity.action != "auto":
            return self.parity.action
        # A recipe that leaves both to the machine is shown as it is on the CPU.
        return "off" if self.engine in ("auto", "torch") and dtype in ("auto", "float32") else "correct"

    def parity_tolerance(self, dtype: str) -> float:
        """Return the largest mean difference in nats that counts as equal, for a policy of this dtype."""
        return self.parity.tolerance or DTYPE_TOLERANCE[dtype]

    @property
    def servers(self) -> ServerParams | None:
        """The parameters of the servers that generate; None for an engine without servers. Raises: ValueError."""
        if self.engine in IN_PROCESS:
            return None
        if self.engine == VLLM_SERVER:
            return self.vllm
        try:
            return validated(load_servers(self.engine)[0], self.server, None, self.servers_field)
        except ConfigError as exc:
            raise ValueError(str(exc)) from exc

    @property
    def takes_adapters(self) -> bool:
        """True if the engine gets the adapters of `train.lora` by themselves, as files name them: vLLM."""
        return self.engine in ("vllm", VLLM_SERVER)

    @property
    def servers_field(self) -> str:
        """Field of the recipe with the parameters of the servers."""
        return "rollout.vllm" if self.engine == VLLM_SERVER else "rollout.server"

    _is_known = field_validator("engine")(check_engine)

    @model_validator(mode="after")
    def _server_fits(self) -> RolloutConfig:
        if self.server and self.engine in (*IN_PROCESS, VLLM_SERVER):
            raise ValueError(
                f"rollout.server={self.server} with rollout.engine={self.engine}, whose parameters are not there; name "
                "an installed package's servers as rollout.engine, or set rollout.vllm for vLLM"
            )
        _ = self.servers  # the property raises for wrong parameters of a package's servers
        return self

    @model_validator(mode="after")
    def _devices_fit(self) -> RolloutConfig:
        vllm = self.vllm
        if vllm.share_gpus and not vllm.devices:
            raise ValueError("rollout.vllm.share_gpus=true without rollout.vllm.devices; name each server's GPUs there")
        if not vllm.devices:
            return self
        if self.engine != VLLM_SERVER or vllm.urls:
            raise ValueError(
                f"rollout.vllm.devices={_as_lists(vllm.devices)} places servers that the run starts, and "
                "rollout.engine="
                f"{self.engine} " + ("has rollout.vllm.urls instead" if vllm.urls else "starts none") + "; drop devices"
            )
        if len(vllm.devices) != vllm.servers or any(len(gpus) != vllm.tensor_parallel for gpus in vllm.devices):
            raise ValueError(
                f"rollout.vllm.devices={_as_lists(vllm.devices)} is not one list for each of rollout.vllm.servers="
                f"{vllm.servers}, of rollout.vllm.tensor_parallel={vllm.tensor_parallel} GPUs each; make them agree"
            )
        gpus = [gpu for gpus in vllm.devices for gpu in gpus]
        has_repeats = any(len(set(gpus)) < len(gpus) for gpus in vllm.devices)
        if has_repeats or min(gpus) < 0 or (len(set(gpus)) < len(gpus) and not vllm.share_gpus):
            raise ValueError(
                f"rollout.vllm.devices={_as_lists(vllm.devices)} names a GPU twice, or one below 0; give each "
                "server GPUs of its own, or set rollout.vllm.share_gpus: true"
            )
        return self

    @model_validator(mode="after")
    def _ahead_fits(self) -> RolloutConfig:
        if self.max_staleness > 0 and self.vllm.tensor_parallel > 1:
            raise ValueError(
                f"rollout.max_staleness={self.max_staleness} generates during the update, and an engine over "
                f"rollout.vllm.tensor_parallel={self.vllm.tensor_parallel} ranks would meet its collectives; set "
                "tensor_parallel: 1, or max_staleness: 0"
            )
        return self


def check_older_weights(rollout: RolloutConfig, train: TrainConfig) -> None:
    """Raise ValueError for responses of older weights if no copy of these weights can be kept."""
    if rollout.max_staleness > 0 and train.lora is not None:
        raise ValueError(
            f"rollout.max_staleness={rollout.max_staleness} keeps a copy of the policy, which train.lora does not; "
            "leave it out, or train all weights (train.lora: null)"
        )


def check_launch(launch: LaunchConfig, train: TrainConfig, rollout: RolloutConfig) -> None:
    """Raise ValueError if the number of ranks does not fit, or ranks would time out before requests to servers."""
    servers = rollout.servers
    if rollout.engine == VLLM_SERVER:
        check_gpus(launch, train, rollout.vllm)
    if launch.kind == "none":
        return
    num_ranks, devices = launch.nodes.train * launch.gpus_per_node, rollout.vllm.tensor_parallel
    if rollout.engine in ("auto", "vllm") and num_ranks % devices:
        raise ValueError(
            f"rollout.vllm.tensor_parallel={devices} does not divide the {num_ranks} ranks of launch, which are "
            "the engines' devices; set it to a divisor of them"
        )
    if launch.generating:
        check_generating(launch, rollout)
    if servers is None:
        return
    if launch.nodes.train > 1 and not servers.urls and not launch.generating:
        raise ValueError(
            f"launch.nodes={launch.nodes.train} and rollout.engine={rollout.engine}: the servers that a run starts on "
            "rank 0's node answer to that node alone; give servers nodes of their own (launch.nodes: {train: "
            f"{launch.nodes.train}, generate: 1}}), or start them yourself, named in {rollout.servers_field}.urls"
        )
    request_timeout_s, phase_timeout_s = servers.request_timeout_s, launch.phase_timeout_s
    if request_timeout_s >= phase_timeout_s:
        raise ValueError(
            f"{rollout.servers_field}.request_timeout_s={request_timeout_s:g} and "
            f"launch.phase_timeout_s={phase_timeout_s:g}: a rank that "
            "waits for a server that hangs would be ended before it drops that server; set the first below the second"
        )


def check_generating(launch: LaunchConfig, rollout: RolloutConfig) -> None:
    """Raise ValueError unless the nodes that only generate can start the servers."""
    setting, servers, field = f"launch.nodes.generate={launch.nodes.generate}", rollout.servers, rollout.servers_field
    if servers is None:
        raise ValueError(
            f"{setting} and rollout.engine={rollout.engine}, which generates where it trains; set rollout.engine: "
            "vllm_server, or launch.nodes to the number of nodes that train"
        )
    devices = devices_each(servers)
    if launch.gpus_per_node % devices:
        raise ValueError(
            f"rollout.vllm.tensor_parallel={devices} does not divide launch.gpus_per_node={launch.gpus_per_node}, the "
            "GPUs of a node that generates; set it to a divisor"
        )
    too_much = {
        "urls": servers.urls,
        "devices": rollout.vllm.devices,
        "servers": servers.servers != 1 and servers.servers,
    }
    for name, value in too_much.items():
        if value:
            raise ValueError(
                f"{setting} and {field}.{name}={value}: a node that generates starts a server for each "
                f"{devices} of its launch.gpus_per_node GPUs; drop {field}.{name}, or launch.nodes.generate"
            )


def servers_of(launch: LaunchConfig, rollout: RolloutConfig) -> ServerParams | None:
    """Return the parameters of the servers that generate, with the number that this machine or each node starts."""
    servers = rollout.servers
    if servers is None or not launch.generating:
        return servers
    return servers.model_copy(update={"servers": launch.gpus_per_node // devices_each(servers)})


def devices_each(servers: ServerParams) -> int:
    """Return the number of devices of one server."""
    return servers.tensor_parallel if isinstance(servers, VllmConfig) else 1


def check_gpus(launch: LaunchConfig, train: TrainConfig, vllm: VllmConfig) -> None:
    """Raise ValueError if servers and ranks share GPUs without `share_gpus`, or `transfer` is not possible."""
    ranks = rank_gpus(launch, train)
    servers = {gpu for gpus in vllm.devices for gpu in gpus}
    if (shared := sorted(servers & set(ranks))) and not vllm.share_gpus:
        raise ValueError(
            f"rollout.vllm.devices={_as_lists(vllm.devices)} and the ranks of "
            f"launch.gpus_per_node={launch.gpus_per_node} "
            f"both use GPU {shared[0]}; give the servers others, or set rollout.vllm.share_gpus: true and a "
            "gpu_memory_share that leaves the ranks room"
        )
    if vllm.transfer != "nccl":
        return
    setting = f"rollout.vllm.transfer={vllm.transfer}"
    if train.device == "cpu":
        raise ValueError(f"{setting} moves weights between GPUs, and train.device is cpu; set transfer: gloo or auto")
    if ranks[0] in servers:
        raise ValueError(
            f"{setting} needs a GPU for each process, and rollout.vllm.devices={_as_lists(vllm.devices)} has the GPU "
            f"{ranks[0]} of rank 0, which sends; give the servers others, or set transfer: gloo"
        )


def rank_gpus(launch: LaunchConfig, train: TrainConfig) -> tuple[int, ...]:
    """Return the GPUs of the first node's ranks, in order; none on the CPU."""
    if train.device == "cpu":
        return ()
    if launch.kind == "none" and ":" in train.device:
        return (int(train.device.split(":")[1]),)
    return tuple(range(1 if launch.kind == "none" else launch.gpus_per_node))


def _as_lists(devices: tuple[tuple[int, ...], ...]) -> str:
    return str([list(gpus) for gpus in devices])
