"""Estimate memory by part and seconds by phase of a recipe on some GPUs, and find settings that make it fit.

Nothing is run or measured: `memory.py` counts bytes, and `seconds.py` divides work by rates and by the shares of
`shares.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from verizero.pipeline.commands.plan.devices import DEVICES, Device
from verizero.pipeline.commands.plan.memory import GIB, engine_needs, longest_of, peaks
from verizero.pipeline.commands.plan.seconds import Lengths, Work, seconds
from verizero.pipeline.commands.plan.shape import SHAPES, Shape, shape_of
from verizero.pipeline.commands.plan.shares import Share
from verizero.pipeline.config.episodes import has_episodes
from verizero.pipeline.config.load import parse
from verizero.pipeline.config.machine import for_machine
from verizero.pipeline.config.rl import RlConfig
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import ConfigError

SCALES = tuple(8 * 2**i for i in range(8))
"""Numbers of GPUs of which a plan shows the time."""
ROOM = 0.92
"""Share of a GPU's memory that may be filled: the rest is the driver's, the libraries' and lost between tensors."""

CARDS = (12, 16, 24, 48)
"""GiB of GPUs, for each of which a plan on one GPU names a model."""


def knobs(config: RunConfig, gpus: int) -> Iterator[tuple[str, RunConfig]]:
    """Yield settings that save memory, cheapest in time first, each with the recipe that has it and all before it."""

    def with_knobs_turned(section: str = "train", **changes: Any) -> RunConfig:
        tree = config.model_dump(mode="json")
        tree[section] |= changes
        return parse(tree, source="plan")

    def engine(**changes: Any) -> RunConfig:
        return with_knobs_turned("rollout", vllm=config.rollout.vllm.model_dump(mode="json") | changes)

    while config.rollout.engine == "torch" and config.rollout.max_rows > 16:
        config = with_knobs_turned("rollout", max_rows=config.rollout.max_rows // 2)
        yield f"rollout.max_rows={config.rollout.max_rows}", config
    while config.rollout.engine == "vllm" and gpus % (2 * config.rollout.vllm.tensor_parallel) == 0:
        if config.rollout.vllm.tensor_parallel >= 8 or config.rollout.max_staleness > 0:
            break
        config = engine(tensor_parallel=2 * config.rollout.vllm.tensor_parallel)
        yield f"rollout.vllm.tensor_parallel={config.rollout.vllm.tensor_parallel}", config
    for share in (0.3, 0.2):
        if config.rollout.engine == "vllm" and config.rollout.vllm.memory_share > share:
            config = engine(gpu_memory_share=share)
            yield f"rollout.vllm.gpu_memory_share={share}", config
    if not config.train.gradient_checkpointing:
        config = with_knobs_turned(gradient_checkpointing=True)
        yield "train.gradient_checkpointing=true", config
    at_once = config.train.logits_chunk_tokens
    if at_once is None or at_once == "auto" or at_once > 512:
        config = with_knobs_turned(logits_chunk_tokens=512)
        yield "train.logits_chunk_tokens=512", config
    while config.train.micro_batch_tokens > 2048:
        config = with_knobs_turned(micro_batch_tokens=config.train.micro_batch_tokens // 2)
        yield f"train.micro_batch_tokens={config.train.micro_batch_tokens}", config
    if config.train.backend == "fsdp" and config.train.offload == "none":
        config = with_knobs_turned(offload="optimizer")
        yield "train.offload=optimizer", config
    if not _is_allowed(config, backend="deepspeed", zero=1):
        return
    for zero in range(max(1, config.train.zero + 1), 4):
        if zero == 3 and gpus > 1 and config.train.backend != "fsdp":
            # Divides the reference too, which ZeRO 3 does not.
            yield "train.backend=fsdp", with_knobs_turned(backend="fsdp", zero=0, offload="none")
        config = with_knobs_turned(backend="deepspeed", zero=zero)
        yield f"train.backend=deepspeed train.zero={zero}", config
    for offload in ("optimizer", "all"):
        if config.train.offload != "all" and config.train.offload != offload:
            config = with_knobs_turned(offload=offload)
            yield f"train.offload={offload}", config


def _is_allowed(config: RunConfig, **train: Any) -> bool:
    """True if the recipe may have these settings of `train`."""
    try:
        config.model_copy(update={"train": config.train.model_copy(update=train)}).check()
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Plan:
    """Memory and time of a recipe on `gpus` GPUs of a kind."""

    shape: Shape
    device: Device
    gpus: int
    peaks: dict[str, dict[str, float]]
    """Bytes on each GPU by part, while responses are generated and in the update; of the recipe as it is."""
    with_knobs_turned: tuple[str, ...] | None
    """Settings that make it fit: () if it fits as it is, None if no settings do."""
    turned_peaks: dict[str, dict[str, float]]
    """`peaks` with these settings."""
    phases: dict[str, float]
    """Seconds of a step by phase, with the settings that make it fit; empty without RL."""
    scaling: dict[int, float]
    """Number of GPUs -> seconds of a step."""
    shares: dict[str, Share]
    """Shares of the device's rates by phase."""
    tokens: float
    """Tokens generated in a step."""
    largest_models: dict[int, str | None]
    """GiB of a GPU -> see `largest_models`; empty for more GPUs than one."""
    note: str = ""
    """The way in which episodes are counted; empty without any."""

    @property
    def total(self) -> float:
        """All bytes on each GPU at the larger peak."""
        return largest(self.peaks)

    @property
    def fits(self) -> bool:
        """True if it fits without a change."""
        return self.with_knobs_turned == ()


def largest(peaks: dict[str, dict[str, float]]) -> float:
    """Return the bytes of the larger peak."""
    return max(sum(parts.values()) for parts in peaks.values())


def fits(config: RunConfig, shape: Shape, gpus: int, device: Device) -> bool:
    """True if both peaks have room, and vLLM's share has room for its part of the weights."""
    how, whole = config.rollout, device.memory_gib * GIB
    if config.rl is not None and how.engine == "vllm" and engine_needs(config, shape) > how.vllm.memory_share * whole:
        return False
    return largest(peaks(config, shape, gpus, device)) <= whole * ROOM


def largest_models(config: RunConfig, device: Device) -> dict[int, str | None]:
    """Return, for one GPU of each size of CARDS in GiB, the largest dense model of SHAPES that fits; None if none does.

    The recipe is as it is, but for the model; `device`: what the GPU is apart from its memory.
    """
    dense = sorted((shape.parameters, name) for name, shape in SHAPES.items() if not shape.experts)
    cards = {gib: replace(device, memory_gib=gib) for gib in CARDS}
    return {
        gib: next((name for _, name in reversed(dense) if fits(config, SHAPES[name], 1, card)), None)
        for gib, card in cards.items()
    }


def fitting(config: RunConfig, shape: Shape, gpus: int, device: Device) -> tuple[tuple[str, ...] | None, RunConfig]:
    """Return the settings that make the recipe fit, and the recipe with them.

    The settings are () if it fits as it is, and None, with the recipe as it is, if no settings do.
    """
    if fits(config, shape, gpus, device):
        return (), config
    words: list[str] = []
    for word, with_knobs_turned in knobs(config, gpus):
        # A later value of a field replaces an earlier one.
        words = [*(w for w in words if not fields_of(w) & fields_of(word)), word]
        if fits(with_knobs_turned, shape, gpus, device):
            return tuple(words), with_knobs_turned
    return None, config


def fields_of(words: str) -> set[str]:
    """Return the fields that settings such as "train.backend=deepspeed train.zero=1" set."""
    return {word.split("=")[0] for word in words.split()}


def plans(
    config: RunConfig, gpus: int, gpu: str, mean_share: float = 0.5, mean_prompt: float | None = None
) -> dict[str, Plan]:
    """Return a plan of each RL stage by name; without RL, of the last stage, with memory and no times."""
    stages = list(config.sections_of(RlConfig)) or [config.stages[-1].name]
    return {name: plan(config.of_stage(name), gpus, gpu, mean_share, mean_prompt) for name in stages}


def plan(config: RunConfig, gpus: int, gpu: str, mean_share: float = 0.5, mean_prompt: float | None = None) -> Plan:
    """Return the plan of a recipe with at most one RL stage. Raises: ConfigError for an unknown GPU or model.

    mean_share: mean length of a response over the longest; mean_prompt: mean tokens of a prompt, None: as the longest.
    """
    if gpu not in DEVICES:
        raise ConfigError(f"--gpu {gpu!r} is not known; there are {', '.join(DEVICES)}")
    if gpus < 1:
        raise ConfigError(f"--gpus must be >= 1, got {gpus}")
    config = for_machine(config, gpus, "cuda", has_vllm=True)
    # The section of a stage that is not done takes no memory.
    config = config.model_copy(update={"rl": next(iter(config.sections_of(RlConfig).values()), None)})
    shape, device = shape_of(config), DEVICES[gpu]
    with_knobs_turned, changed = fitting(config, shape, gpus, device)
    phases: dict[str, float] = {}
    scaling: dict[int, float] = {}
    shares: dict[str, Share] = {}
    tokens = 0.0
    if config.rl is not None:
        lengths = Lengths.of(config, mean_share, mean_prompt)
        works = {n: Work(changed, shape, n, device, lengths) for n in (gpus, *SCALES)}
        phases = seconds(works[gpus])
        scaling = {n: sum(seconds(works[n]).values()) for n in SCALES}
        shares = {p: works[gpus].share(p) for p in ("copy", "decode", "forward", "update", "link", "publish")}
        tokens = works[gpus].responses * lengths.response
    before, after = (peaks(c, shape, gpus, device) for c in (config, changed))
    models = largest_models(config, device) if gpus == 1 else {}
    note = note_of(config)
    return Plan(shape, device, gpus, before, with_knobs_turned, after, phases, scaling, shares, tokens, models, note)


def note_of(config: RunConfig) -> str:
    """Return in words how episodes are counted; empty for a recipe that names none."""
    if not has_episodes(config.data, config.episodes):
        return ""
    how, most = config.episodes, longest_of(config)
    limit = "episodes.max_tokens" if most == how.max_tokens else "episodes.max_turns x rollout.max_response_tokens"
    return (
        f"a response is an episode of {how.max_turns} turns and at most {most:,} sampled tokens ({limit}); each turn "
        "computes those before it again; what environments answer is not counted"
    )


def plan_lines(plan: Plan, price: float | None = None) -> list[str]:
    """Return the plan as lines of text; `price` is that of one GPU for one hour."""
    lines = [
        f"{plan.shape.parameters / 1e9:.2f} billion parameters on {plan.gpus} x {plan.device.name} "
        f"({plan.device.memory_gib:g} GiB each)",
        *([plan.note] if plan.note else []),
        *memory_lines(plan.peaks),
    ]
    settings = "--set " + " --set ".join(" ".join(plan.with_knobs_turned or ()).split())
    if plan.fits:
        lines.append("it fits")
    elif plan.with_knobs_turned is None:
        lines.append("it does not fit with any settings; use more or larger GPUs, or a smaller model")
    else:
        room = largest(plan.turned_peaks) / GIB
        lines.append(f"it does not fit; it would, with {room:.2f} GiB, with {settings}")
    if plan.largest_models:
        named = ", ".join(f"{gib} GiB {name or 'none'}" for gib, name in plan.largest_models.items())
        lines.append(
            f"largest dense model that this recipe, as it is, fits on one GPU, of those whose sizes are known: {named}"
        )
    if not plan.phases:
        return [*lines, f"no RL stage, so there is no step to time; assumed: {ROOM:.0%} of the memory can be filled"]
    step = sum(plan.phases.values())
    hours = 1000 * step * plan.gpus / 3600
    cost = "" if price is None else f", {hours * price:,.0f} at {price:g} an hour"
    how = (
        " with these settings" if plan.with_knobs_turned else " if it fitted" if plan.with_knobs_turned is None else ""
    )
    lines += [
        f"one step{how}: {plan.tokens:,.0f} tokens generated, {step:.1f} s ({plan.tokens / step:,.0f} tokens/s)",
        *(f"  {name:<16} {s:8.1f} s" for name, s in plan.phases.items()),
        f"1,000 steps: {1000 * step / 3600:,.1f} hours, {hours:,.0f} GPU-hours{cost}",
        "seconds of a step, and share of a perfect speed-up from 8 GPUs (no rank waits for a slower one):",
    ]
    base = plan.scaling[8]
    lines += [f"  {n:5d} GPUs {s:9.2f} s  {base * 8 / (n * s):6.1%}" for n, s in plan.scaling.items()]
    shares = ", ".join(f"{name} {share.value:.0%} ({share.source})" for name, share in plan.shares.items())
    return [*lines, f"estimated; shares of the device's rates: {shares}; memory that can be filled {ROOM:.0%}"]


def memory_lines(peaks: dict[str, dict[str, float]], of: str = "each GPU") -> list[str]:
    """Return the parts of each peak, one column a peak; `of`: whose memory it is."""
    names = dict.fromkeys(name for parts in peaks.values() for name in parts)
    heading = "".join(f"{peak:>14}" for peak in peaks)
    rows = {name: [parts.get(name, 0.0) for parts in peaks.values()] for name in names}
    rows["in all"] = [sum(parts.values()) for parts in peaks.values()]
    lines = [f"  {name:<16}" + "".join(f" {size / GIB:9.2f} GiB" for size in sizes) for name, sizes in rows.items()]
    return [f"{f'memory of {of}':<18}{heading}", *lines]
