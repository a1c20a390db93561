"""What a recipe would take on some GPUs: memory by part, seconds by phase, what does not fit and what would.

Memory is counted from the shapes of the model and from what this trainer keeps; tests hold it against measured peaks.
Times are a roofline's: work over the device's rate, at the shares of it that `ASSUMED` names. They are estimates of a
run that was not made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.config.load import parse
from pipeline.config.run import RunConfig, parts_of
from pipeline.errors import ConfigError
from pipeline.rl.logprobs import CHUNK_ELEMENTS

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU as its maker's data sheet has it: dense rates, memory, and links in one direction."""

    name: str
    tflops: float
    float32_tflops: float
    """Without TF32, which torch leaves off."""
    memory_gib: float
    memory_gb_s: float
    node_gb_s: float
    """To the other GPUs of its node (of `per_node`)."""
    network_gb_s: float
    """To other nodes, for each GPU."""
    per_node: int = 8

    def rate(self, width: int) -> float:
        """Operations a second on numbers of so many bytes."""
        return 1e12 * (self.tflops if width == 2 else self.float32_tflops)


DEVICES = {
    d.name: d
    for d in (
        Device("l4", 121, 30, 24, 300, 32, 3),
        Device("rtx4090", 165, 83, 24, 1008, 32, 3),
        Device("a100", 312, 19.5, 80, 2039, 300, 25),
        Device("h100", 989, 67, 80, 3350, 450, 50),
        Device("h200", 989, 67, 141, 4800, 450, 50),
        Device("b200", 2250, 80, 180, 8000, 900, 50),
    )
}
ASSUMED = {"training": 0.40, "prefill": 0.40, "decoding": 0.60, "links": 0.70, "memory": 0.92}
"""Share of the device's rate (of its memory: that may be filled) that is counted on."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder's sizes."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    experts: int = 0
    experts_per_token: int = 0
    qk_norm: bool = False
    qkv_bias: bool = False

    def _layer(self, experts: int) -> int:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 2 * self.hidden * queries + 2 * self.hidden * keys + (queries + 2 * keys) * self.qkv_bias
        router = self.hidden * self.experts
        norms = 2 * self.hidden + 2 * self.head_dim * self.qk_norm
        return attention + router + norms + 3 * self.hidden * self.intermediate * max(1, experts)

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.layers * self._layer(self.experts) + self.hidden + self.vocab * self.hidden * (2 - self.tied)

    @property
    def active(self) -> int:
        """Those that a token is multiplied with: of the experts its own, of the embeddings the output's."""
        return self.layers * self._layer(self.experts_per_token) + self.hidden * (1 + self.vocab)

    @property
    def largest_layer(self) -> int:
        """Parameters of what ZeRO 3 gathers at once: a block, or the embeddings."""
        return max(self._layer(self.experts), self.vocab * self.hidden)


SHAPES = {
    "Qwen/Qwen2.5-0.5B": Shape(896, 4864, 24, 14, 2, 64, 151936, True, qkv_bias=True),
    "Qwen/Qwen2.5-1.5B": Shape(1536, 8960, 28, 12, 2, 128, 151936, True, qkv_bias=True),
    "Qwen/Qwen2.5-7B": Shape(3584, 18944, 28, 28, 4, 128, 152064, False, qkv_bias=True),
    "Qwen/Qwen3-0.6B": Shape(1024, 3072, 28, 16, 8, 128, 151936, True, qk_norm=True),
    "Qwen/Qwen3-8B": Shape(4096, 12288, 36, 32, 8, 128, 151936, False, qk_norm=True),
    "Qwen/Qwen3-30B-A3B": Shape(2048, 768, 48, 32, 4, 128, 151936, False, 128, 8, qk_norm=True),
}
"""Models that recipes name, so that a plan needs no download; their bases and instruct forms have the same shape."""


def shape_of(config: RunConfig) -> Shape:
    """The sizes of the recipe's policy. Raises: ConfigError for a hub id that is not known here."""
    import transformers

    if config.model.create is not None:
        create = config.model.create
        settings: Any = transformers.AutoConfig.for_model(
            create.model_type, **{"vocab_size": len(create.characters) + 2, **create.config}
        )
        return from_settings(settings)
    name = str(config.model.path)
    known = name.removesuffix("-Base").removesuffix("-Instruct")
    if known in SHAPES:
        return SHAPES[known]
    try:
        return from_settings(transformers.AutoConfig.from_pretrained(name, local_files_only=True))
    except OSError as exc:
        raise ConfigError(
            f"model.path={name!r} is no folder here, and its sizes are not known; plan with a folder that holds its "
            f"config.json, or with one of {', '.join(SHAPES)}"
        ) from exc


def from_settings(settings: Any) -> Shape:
    """The sizes in a configuration of transformers."""
    heads = settings.num_attention_heads
    experts = next((n for a in ("num_experts", "num_local_experts") if (n := getattr(settings, a, None))), 0)
    return Shape(
        settings.hidden_size,
        (getattr(settings, "moe_intermediate_size", None) if experts else None) or settings.intermediate_size,
        settings.num_hidden_layers,
        heads,
        getattr(settings, "num_key_value_heads", None) or heads,
        getattr(settings, "head_dim", None) or settings.hidden_size // heads,
        settings.vocab_size,
        bool(getattr(settings, "tie_word_embeddings", False)),
        experts,
        getattr(settings, "num_experts_per_tok", 0) if experts else 0,
        qk_norm="qwen3" in settings.model_type,
        qkv_bias="qwen2" in settings.model_type,
    )


def memory(config: RunConfig, shape: Shape, gpus: int) -> dict[str, float]:
    """Bytes on each GPU by part, at the moment of a step that takes most: a backward with gradients accumulated."""
    train, width = config.train, 2 if config.model.dtype == "bfloat16" else 4
    sharded = train.backend == "deepspeed"
    zero = train.zero if sharded else 0
    num, share = shape.parameters, 1 / gpus
    masters = 4 if sharded and width == 2 else 0
    moments = 8 if sharded else 2 * width  # torch's AdamW keeps them in the weights' type
    parts: dict[str, float] = {
        "weights": num * width * (share if zero == 3 else 1.0),
        "gradients": num * width * (share if zero >= 2 else 1.0),
        "optimizer": num * (moments + masters) * (share if zero >= 1 else 1.0),
    }
    if zero == 3:
        parts["gathered layers"] = 2 * shape.largest_layer * width
        parts["whole copy"] = num * width  # what generates reads it
    if train.offload != "none":
        parts["optimizer"] = 0.0
    if train.offload == "all":
        parts["weights"] = 0.0
    if config.rl is not None:
        parts["reference"] = num * width
        if parts_of(config.rl).critic is not None:
            parts["critic"] = num * width * 4
    parts |= activations(config, shape, width)
    parts |= engine_memory(config, shape, width, gpus)
    return parts


def activations(config: RunConfig, shape: Shape, width: int) -> dict[str, float]:
    """Bytes that a backward of one micro-batch waits for, and its logits with their gradient."""
    tokens = config.train.micro_batch_tokens
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    norms = 2 * shape.hidden * (4 + 2 * width)  # float32 input, scaled, weighted
    if shape.qk_norm:
        norms += (queries + keys) * (4 + width)
    attention = width * (3 * queries + 2 * keys) + 4 * shape.heads
    mlp = 4 * shape.intermediate * width * max(1, shape.experts_per_token)
    block = norms + attention + mlp
    ends = shape.hidden * (4 + 3 * width)
    rows = min(CHUNK_ELEMENTS, tokens * shape.vocab)
    # of a chunk: twice in float32, and the gradient in its own type where that is another
    logits = 2 * tokens * shape.vocab * width + rows * (8 if width == 4 else 8 + width)
    kept = tokens * (shape.layers * block + ends)
    if config.train.gradient_checkpointing:  # a block is computed again when the logits are gone
        kept = tokens * (shape.layers * shape.hidden * width + ends) + max(0, tokens * block - logits)
    return {"activations": kept, "logits": logits}


def engine_memory(config: RunConfig, shape: Shape, width: int, gpus: int) -> dict[str, float]:
    """Bytes of the rollout engine in the training process; a server's are on its own device."""
    how = config.rollout
    if how.engine == "vllm_server":
        return {}
    length = how.max_response_tokens + (config.data.max_prompt_tokens or how.max_response_tokens // 4)
    cache = 2 * shape.layers * shape.kv_heads * shape.head_dim * width * length
    rows = how.max_rows
    if config.rl is not None:
        rows = min(rows, -(-config.rl.prompts_per_step // gpus) * config.rl.group_size)
    if how.engine == "vllm" and how.vllm.sleep:
        return {}
    return {"engine weights": shape.parameters * width, "KV cache": rows * cache}


def seconds(config: RunConfig, shape: Shape, gpus: int, device: Device, mean_share: float) -> dict[str, float]:
    """Seconds of one RL step by phase; responses are `mean_share` of the longest on average.

    Raises: ConfigError for a recipe without RL.
    """
    if config.rl is None:
        raise ConfigError("the recipe has no section rl; a plan is of RL steps")
    rl, parts = config.rl, parts_of(config.rl)
    width = 2 if config.model.dtype == "bfloat16" else 4
    most = config.rollout.max_response_tokens
    responses = rl.prompts_per_step * rl.group_size
    tokens = responses * (mean_share * most + (config.data.max_prompt_tokens or most // 4))
    rate = gpus * device.rate(width)
    forward = 2 * shape.active * tokens
    passes = parts.updates.num_epochs
    once = forward / (rate * ASSUMED["prefill"])
    out = {"generate": _decoding(config, shape, gpus, device, width, mean_share)}
    if parts.needs_old_logprobs and passes * parts.updates.num_minibatches > 1:
        out["old log-probs"] = once
    out["reference"] = once
    cost = 4 if config.train.gradient_checkpointing else 3
    out["update"] = passes * cost * forward / (rate * ASSUMED["training"])
    if gpus > 1:
        out["communication"] = _communication(config, shape, gpus, device, width, tokens)
    return out


def _decoding(config: RunConfig, shape: Shape, gpus: int, device: Device, width: int, mean_share: float) -> float:
    """Each token reads the weights once for all rows and every row's cache: the longest response counts."""
    assert config.rl is not None
    most = config.rollout.max_response_tokens
    rows = max(1.0, config.rl.prompts_per_step * config.rl.group_size / gpus)
    together = min(rows, config.rollout.max_rows)
    cache = 2 * shape.layers * shape.kv_heads * shape.head_dim * width * mean_share * most
    touched = shape.parameters if shape.experts and together * shape.experts_per_token > shape.experts else shape.active
    reading = (touched * width + together * cache) / (device.memory_gb_s * 1e9 * ASSUMED["decoding"])
    computing = 2 * shape.active * together / (device.rate(width) * ASSUMED["prefill"])
    return most * max(reading, computing) * max(1.0, rows / together)


def _communication(config: RunConfig, shape: Shape, gpus: int, device: Device, width: int, tokens: float) -> float:
    """Gradients once an optimiser step; with ZeRO 3 the weights twice for each micro-batch; one publish."""
    assert config.rl is not None
    updates = parts_of(config.rl).updates
    steps = updates.num_epochs * updates.num_minibatches
    one_pass = shape.parameters * width * (gpus - 1) / gpus
    moved = 2 * one_pass * steps
    if config.train.backend == "deepspeed" and config.train.zero == 3:
        micros = max(1.0, tokens * updates.num_epochs / gpus / config.train.micro_batch_tokens)
        moved = (2 * micros + micros) * one_pass + one_pass
    link = device.node_gb_s if gpus <= device.per_node else device.network_gb_s
    return moved / (link * 1e9 * ASSUMED["links"])


def knobs(config: RunConfig) -> Iterator[tuple[str, RunConfig]]:
    """What may be turned to make a recipe fit, cheapest first, each on top of those before."""

    def turned(**changes: Any) -> RunConfig:
        tree = config.model_dump(mode="json")
        tree["train"] |= {k: v for k, v in changes.items() if k != "max_rows"}
        tree["rollout"] |= {k: v for k, v in changes.items() if k == "max_rows"}
        return parse(tree, source="plan")

    while config.rollout.engine == "torch" and config.rollout.max_rows > 16:
        config = turned(max_rows=config.rollout.max_rows // 2)
        yield f"rollout.max_rows={config.rollout.max_rows}", config
    if not config.train.gradient_checkpointing:
        config = turned(gradient_checkpointing=True)
        yield "train.gradient_checkpointing=true", config
    while config.train.micro_batch_tokens > 2048:
        config = turned(micro_batch_tokens=config.train.micro_batch_tokens // 2)
        yield f"train.micro_batch_tokens={config.train.micro_batch_tokens}", config
    if config.rl is not None and parts_of(config.rl).critic is not None:
        return  # DeepSpeed shards no critic
    for zero in range(max(1, config.train.zero + 1), 4):
        config = turned(backend="deepspeed", zero=zero)
        yield f"train.backend=deepspeed train.zero={zero}", config
    for offload in ("optimizer", "all"):
        if config.train.offload != "all" and config.train.offload != offload:
            config = turned(offload=offload)
            yield f"train.offload={offload}", config


@dataclass(frozen=True, slots=True)
class Plan:
    """A recipe on so many GPUs of a kind."""

    shape: Shape
    device: Device
    gpus: int
    parts: dict[str, float]
    phases: dict[str, float]
    turned: tuple[str, ...] | None
    """What makes it fit: () as it is, None where nothing does."""
    scaling: dict[int, float]
    """Seconds a step on other numbers of GPUs."""
    tokens: float
    """Generated in a step."""

    @property
    def total(self) -> float:
        """Bytes on each GPU."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """It does as it is."""
        return self.turned == ()


def fitting(config: RunConfig, shape: Shape, gpus: int, device: Device) -> tuple[str, ...] | None:
    """The knobs that make it fit, of each kind the last; () if it fits as it is, None if none do."""
    room = device.memory_gib * GIB * ASSUMED["memory"]
    if sum(memory(config, shape, gpus).values()) <= room:
        return ()
    words: dict[str, str] = {}
    for word, turned in knobs(config):
        words[word.rsplit("=", 1)[0]] = word
        if sum(memory(turned, shape, gpus).values()) <= room:
            return tuple(words.values())
    return None


def plans(config: RunConfig, gpus: int, gpu: str, mean_share: float = 0.5) -> dict[str, Plan]:
    """Of each RL stage, by name; of a recipe without, of its last stage, with memory and no steps."""
    stages = [s.name for s in config.stages_of("rl")] or [config.stages[-1].name]
    return {name: plan(config.of_stage(name), gpus, gpu, mean_share) for name in stages}


def plan(config: RunConfig, gpus: int, gpu: str, mean_share: float = 0.5) -> Plan:
    """The plan of a recipe of one RL stage, or of none. Raises: ConfigError for an unknown GPU or model."""
    if gpu not in DEVICES:
        raise ConfigError(f"--gpu {gpu!r} is not known; there are {', '.join(DEVICES)}")
    if gpus < 1:
        raise ConfigError(f"--gpus must be >= 1, got {gpus}")
    shape, device = shape_of(config), DEVICES[gpu]
    if not config.stages_of("rl"):
        config = config.model_copy(update={"rl": None})
        return Plan(
            shape, device, gpus, memory(config, shape, gpus), {}, fitting(config, shape, gpus, device), {}, tokens=0
        )
    phases = seconds(config, shape, gpus, device, mean_share)
    scaling = {n: sum(seconds(config, shape, n, device, mean_share).values()) for n in (8 * 2**i for i in range(8))}
    assert config.rl is not None
    tokens = config.rl.prompts_per_step * config.rl.group_size * mean_share * config.rollout.max_response_tokens
    turned = fitting(config, shape, gpus, device)
    return Plan(shape, device, gpus, memory(config, shape, gpus), phases, turned, scaling, tokens)


def plan_lines(found: Plan, price: float | None = None) -> list[str]:
    """The plan for people; `price`: of one GPU for one hour."""
    device, step = found.device, sum(found.phases.values())
    hours = 1000 * step * found.gpus / 3600
    lines = [
        f"{found.shape.parameters / 1e9:.2f} billion parameters on {found.gpus} x {device.name} "
        f"({device.memory_gib:g} GiB each)",
        "memory of each GPU:",
        *(f"  {name:<16} {size / GIB:8.2f} GiB" for name, size in found.parts.items()),
        f"  {'in all':<16} {found.total / GIB:8.2f} GiB",
    ]
    if found.fits:
        lines.append("it fits")
    elif found.turned is None:
        lines.append("it does not fit, whatever is turned; take more or larger GPUs, or a smaller model")
    else:
        lines.append("it does not fit; it would with --set " + " --set ".join(" ".join(found.turned).split()))
    if not found.phases:
        return [
            *lines,
            f"no RL stage, so no step to time; assumed: {ASSUMED['memory']:.0%} of the memory can be filled",
        ]
    lines += [
        f"one step: {found.tokens:,.0f} tokens generated, {step:.1f} s ({found.tokens / step:,.0f} tokens/s)",
        *(f"  {name:<16} {s:8.1f} s" for name, s in found.phases.items()),
        f"1,000 steps: {1000 * step / 3600:,.1f} hours, {hours:,.0f} GPU-hours"
        + ("" if price is None else f", {hours * price:,.0f} at {price:g} an hour"),
        "seconds a step, and share of a perfect speed-up from 8:",
    ]
    base = found.scaling[8]
    lines += [f"  {n:5d} GPUs {s:9.2f} s  {base * 8 / (n * s):6.1%}" for n, s in found.scaling.items()]
    said = ", ".join(f"{name} {share:.0%}" for name, share in ASSUMED.items())
    return [*lines, f"estimated, not run; assumed shares of the device: {said}"]
