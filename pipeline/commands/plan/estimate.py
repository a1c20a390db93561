"""What a recipe would take on some GPUs: memory by part, seconds by phase, what does not fit and what would.

Memory is counted by `plan_memory`. Times are a roofline's: work over the device's rate, at the shares of it that
`ASSUMED` names. They are estimates of a run that was not made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.config.load import parse
from pipeline.config.run import RunConfig, parts_of
from pipeline.errors import ConfigError
from pipeline.commands.plan.memory import Shape, adapters_of, memory, shape_of

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
    backward = 1 if config.train.lora is not None else 2  # frozen weights have no gradient
    cost = 1 + backward + config.train.gradient_checkpointing
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
    """Gradients once an optimiser step; with ZeRO 3 the weights twice for each micro-batch; one publish.

    Where ranks hold sequences together: queries, keys, values and what was attended, forth and back.
    """
    assert config.rl is not None
    updates = parts_of(config.rl).updates
    steps = updates.num_epochs * updates.num_minibatches
    adapters, train = adapters_of(config, shape), config.train
    one_pass = shape.parameters * width * (gpus - 1) / gpus
    learning = one_pass if adapters is None else one_pass * adapters.parameters / shape.parameters
    moved = 2 * learning * steps
    if config.train.backend == "deepspeed" and config.train.zero == 3:
        micros = max(1.0, tokens * updates.num_epochs * train.sequence_parallel / gpus / train.micro_batch_tokens)
        moved = micros * (2 * one_pass + learning) + one_pass
    if train.sequence_parallel > 1:
        heads = 2 * (shape.heads + shape.kv_heads) * shape.head_dim
        passes = (2 + train.gradient_checkpointing) * updates.num_epochs
        away = (train.sequence_parallel - 1) / train.sequence_parallel
        moved += passes * away * heads * width * shape.layers * tokens / gpus
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
    if (config.train.logits_chunk_tokens or 1 << 30) > 512:
        config = turned(logits_chunk_tokens=512)
        yield "train.logits_chunk_tokens=512", config
    while config.train.micro_batch_tokens > 2048:
        config = turned(micro_batch_tokens=config.train.micro_batch_tokens // 2)
        yield f"train.micro_batch_tokens={config.train.micro_batch_tokens}", config
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
