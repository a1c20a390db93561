"""Estimate memory by part and seconds by phase of a recipe on some GPUs, and find settings that make it fit.

Times are a roofline's: work divided by the device's rate, of which a run is assumed to reach the shares in `ASSUMED`.
Nothing is run or measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.commands.plan.memory import Shape, adapters_of, memory, prompt_tokens, shape_of, width_of
from pipeline.config.load import parse
from pipeline.config.run import RunConfig, parts_of
from pipeline.errors import ConfigError

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU's data sheet: dense rates, memory, and bandwidths in one direction."""

    name: str
    tflops: float
    float32_tflops: float
    """Without TF32, which torch does not use by default."""
    memory_gib: float
    memory_gb_s: float
    node_gb_s: float
    """To the other GPUs of its node, which has `per_node`."""
    network_gb_s: float
    """To other nodes, per GPU."""
    per_node: int = 8

    def rate(self, width: int) -> float:
        """Return operations per second on numbers of `width` bytes."""
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
"""Share of the device's rate that each phase is assumed to reach; for memory, the share that may be filled."""


def seconds(config: RunConfig, shape: Shape, gpus: int, device: Device, mean_share: float) -> dict[str, float]:
    """Return the seconds of one RL step by phase; the mean response has `mean_share` of the longest's tokens."""
    assert config.rl is not None
    rl, parts = config.rl, parts_of(config.rl)
    width = width_of(config)
    most = config.rollout.max_response_tokens
    responses = rl.prompts_per_step * rl.group_size
    tokens = responses * (mean_share * most + prompt_tokens(config))
    rate = gpus * device.rate(width)
    # A multiplication and an addition for each weight and token; attention's own products are left out.
    forward = 2 * shape.active * tokens
    passes = parts.updates.num_epochs
    one_forward = forward / (rate * ASSUMED["prefill"])
    phases = {"generate": _decoding(config, shape, gpus, device, width, mean_share)}
    if parts.needs_old_logprobs and passes * parts.updates.num_minibatches > 1:
        phases["old log-probs"] = one_forward
    phases["reference"] = one_forward
    # a backward has two products for each of the forward's: for the inputs and, unless frozen, for the weights
    backward = 1 if config.train.lora is not None else 2
    # Checkpointing computes the forward a second time.
    cost = 1 + backward + config.train.gradient_checkpointing
    phases["update"] = passes * cost * forward / (rate * ASSUMED["training"])
    if gpus > 1:
        phases["communication"] = _communication(config, shape, gpus, device, width, tokens)
    return phases


def _decoding(config: RunConfig, shape: Shape, gpus: int, device: Device, width: int, mean_share: float) -> float:
    """Return the seconds of generation: as many passes over the weights as the longest response has tokens."""
    assert config.rl is not None
    most = config.rollout.max_response_tokens
    rows = max(1.0, config.rl.prompts_per_step * config.rl.group_size / gpus)
    together = min(rows, config.rollout.max_rows)
    # each pass reads the weights once for all rows, and the cache of each row; 2: keys and values
    cache = 2 * shape.layers * shape.kv_heads * shape.head_dim * width * mean_share * most
    # With enough rows together every expert is used by one of them, so all are read.
    touched = shape.parameters if shape.experts and together * shape.experts_per_token > shape.experts else shape.active
    reading = (touched * width + together * cache) / (device.memory_gb_s * 1e9 * ASSUMED["decoding"])
    computing = 2 * shape.active * together / (device.rate(width) * ASSUMED["prefill"])
    # A roofline: the slower of the two decides. Rows beyond max_rows wait for another wave.
    return most * max(reading, computing) * max(1.0, rows / together)


def _communication(config: RunConfig, shape: Shape, gpus: int, device: Device, width: int, tokens: float) -> float:
    """Return the seconds of all communication in a step.

    Counted are the gradients, once an optimiser step; with ZeRO 3 the weights, twice for each micro-batch and once for
    the engine; with sequence parallelism queries, keys, values and attention's outputs, there and back.
    """
    assert config.rl is not None
    updates = parts_of(config.rl).updates
    steps = updates.num_epochs * updates.num_minibatches
    adapters, train = adapters_of(config, shape), config.train
    one_pass = shape.parameters * width * (gpus - 1) / gpus
    gradients = one_pass if adapters is None else one_pass * adapters.parameters / shape.parameters
    moved = 2 * gradients * steps  # an all-reduce is a reduce-scatter and an all-gather
    if config.train.backend == "deepspeed" and config.train.zero == 3:
        micros = max(1.0, tokens * updates.num_epochs * train.sequence_parallel / gpus / train.micro_batch_tokens)
        # Gathered for forward and backward, gradients scattered, and once more for the engine.
        moved = micros * (2 * one_pass + gradients) + one_pass
    if train.sequence_parallel > 1:
        heads = 2 * (shape.heads + shape.kv_heads) * shape.head_dim
        passes = (2 + train.gradient_checkpointing) * updates.num_epochs
        sent = (train.sequence_parallel - 1) / train.sequence_parallel  # the rest stays on its rank
        moved += passes * sent * heads * width * shape.layers * tokens / gpus
    # Beyond one node the slowest link decides.
    link = device.node_gb_s if gpus <= device.per_node else device.network_gb_s
    return moved / (link * 1e9 * ASSUMED["links"])


def knobs(config: RunConfig) -> Iterator[tuple[str, RunConfig]]:
    """Yield settings that save memory, cheapest in time first, each with the recipe that has it and all before it."""

    def turned(section: str = "train", **changes: Any) -> RunConfig:
        tree = config.model_dump(mode="json")
        tree[section] |= changes
        return parse(tree, source="plan")

    while config.rollout.engine == "torch" and config.rollout.max_rows > 16:
        config = turned("rollout", max_rows=config.rollout.max_rows // 2)
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
    """Memory and time of a recipe on `gpus` GPUs of a kind."""

    shape: Shape
    device: Device
    gpus: int
    parts: dict[str, float]
    """Bytes on each GPU by part."""
    phases: dict[str, float]
    """Seconds of a step by phase; empty without RL."""
    turned: tuple[str, ...] | None
    """Settings that make it fit: () if it fits as it is, None if no settings do."""
    scaling: dict[int, float]
    """Number of GPUs -> seconds of a step."""
    tokens: float
    """Tokens generated in a step."""

    @property
    def total(self) -> float:
        """All bytes on each GPU."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """True if it fits without a change."""
        return self.turned == ()


def fitting(config: RunConfig, shape: Shape, gpus: int, device: Device) -> tuple[str, ...] | None:
    """Return the settings that make the recipe fit: () if it fits as it is, None if no settings do."""
    room = device.memory_gib * GIB * ASSUMED["memory"]
    if sum(memory(config, shape, gpus).values()) <= room:
        return ()
    words: dict[str, str] = {}
    for word, turned in knobs(config):
        words[word.rsplit("=", 1)[0]] = word  # a later value of a field replaces an earlier one
        if sum(memory(turned, shape, gpus).values()) <= room:
            return tuple(words.values())
    return None


def plans(config: RunConfig, gpus: int, gpu: str, mean_share: float = 0.5) -> dict[str, Plan]:
    """Return a plan of each RL stage by name; without RL, of the last stage, with memory and no times."""
    stages = [s.name for s in config.stages_of("rl")] or [config.stages[-1].name]
    return {name: plan(config.of_stage(name), gpus, gpu, mean_share) for name in stages}


def plan(config: RunConfig, gpus: int, gpu: str, mean_share: float = 0.5) -> Plan:
    """Return the plan of a recipe with at most one RL stage. Raises: ConfigError for an unknown GPU or model."""
    if gpu not in DEVICES:
        raise ConfigError(f"--gpu {gpu!r} is not known; there are {', '.join(DEVICES)}")
    if gpus < 1:
        raise ConfigError(f"--gpus must be >= 1, got {gpus}")
    shape, device = shape_of(config), DEVICES[gpu]
    phases: dict[str, float] = {}
    scaling: dict[int, float] = {}
    tokens = 0.0
    if not config.stages_of("rl"):
        config = config.model_copy(update={"rl": None})  # the section of a stage that is not done takes no memory
    elif config.rl is not None:
        phases = seconds(config, shape, gpus, device, mean_share)
        scaling = {n: sum(seconds(config, shape, n, device, mean_share).values()) for n in (8 * 2**i for i in range(8))}
        tokens = config.rl.prompts_per_step * config.rl.group_size * mean_share * config.rollout.max_response_tokens
    turned = fitting(config, shape, gpus, device)
    return Plan(shape, device, gpus, memory(config, shape, gpus), phases, turned, scaling, tokens)


def plan_lines(plan: Plan, price: float | None = None) -> list[str]:
    """Return the plan as lines of text; `price` is that of one GPU for one hour."""
    device, step = plan.device, sum(plan.phases.values())
    lines = [
        f"{plan.shape.parameters / 1e9:.2f} billion parameters on {plan.gpus} x {device.name} "
        f"({device.memory_gib:g} GiB each)",
        "memory of each GPU:",
        *(f"  {name:<16} {size / GIB:8.2f} GiB" for name, size in plan.parts.items()),
        f"  {'in all':<16} {plan.total / GIB:8.2f} GiB",
    ]
    if plan.fits:
        lines.append("it fits")
    elif plan.turned is None:
        lines.append("it does not fit with any settings; use more or larger GPUs, or a smaller model")
    else:
        lines.append("it does not fit; it would with --set " + " --set ".join(" ".join(plan.turned).split()))
    if not plan.phases:
        share = f"{ASSUMED['memory']:.0%}"
        return [*lines, f"no RL stage, so there is no step to time; assumed: {share} of the memory can be filled"]
    hours = 1000 * step * plan.gpus / 3600
    cost = "" if price is None else f", {hours * price:,.0f} at {price:g} an hour"
    lines += [
        f"one step: {plan.tokens:,.0f} tokens generated, {step:.1f} s ({plan.tokens / step:,.0f} tokens/s)",
        *(f"  {name:<16} {s:8.1f} s" for name, s in plan.phases.items()),
        f"1,000 steps: {1000 * step / 3600:,.1f} hours, {hours:,.0f} GPU-hours{cost}",
        "seconds of a step, and share of a perfect speed-up from 8 GPUs:",
    ]
    base = plan.scaling[8]
    lines += [f"  {n:5d} GPUs {s:9.2f} s  {base * 8 / (n * s):6.1%}" for n, s in plan.scaling.items()]
    shares = ", ".join(f"{name} {share:.0%}" for name, share in ASSUMED.items())
    return [*lines, f"estimated, not measured; assumed shares of the device's rates: {shares}"]
