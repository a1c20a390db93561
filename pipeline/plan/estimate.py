"""Estimate memory by part and seconds by phase of a recipe on some GPUs, and find settings that make it fit.

Nothing is run or measured: `memory.py` counts bytes, and `seconds.py` divides work by rates and by the shares of
`shares.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from verizero.pipeline.config.auto import for_machine, is_allowed, with_changes
from verizero.pipeline.config.episodes import has_episodes
from verizero.pipeline.config.load import parse
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.host.heap import has_tcmalloc
from verizero.pipeline.plan.choice import ROOM, by_plan, choices, fits, fits_everywhere, largest, leanest, views
from verizero.pipeline.plan.devices import CPU, DEVICES, Device
from verizero.pipeline.plan.memory import GIB, longest_of, peaks, shards_of
from verizero.pipeline.plan.seconds import Lengths, Share, Work, seconds
from verizero.pipeline.plan.shape import SHAPES, Shape, shape_of

PROCESS = 430 << 20
"""Bytes before the first tensor: `verizero train` on Linux when it has read the data, with torch 2.13 for CPUs."""
LOST = {"glibc": 1.6, "tcmalloc": 0.7}
"""Memory that an allocator keeps beyond tensors that come and go, as a share of these; measured with SmolLM2-135M."""
CARDS = (12, 16, 24, 48)
"""GiB of GPUs, for each of which a plan on one GPU names a model."""


def settings_that_save(config: RunConfig, shape: Shape, gpus: int, device: Device) -> Iterator[tuple[str, RunConfig]]:
    """Yield settings that save memory, cheapest in time first, each with the recipe that has it and all before it."""

    def changed(section: str = "train", **changes: Any) -> RunConfig:
        tree = config.model_dump(mode="json")
        tree[section] |= changes
        return parse(tree, source="plan")

    def engine(**changes: Any) -> RunConfig:
        return changed("rollout", vllm=config.rollout.vllm.model_dump(mode="json") | changes)

    while config.rollout.engine == "torch" and config.rollout.max_rows > 16:
        config = changed("rollout", max_rows=config.rollout.max_rows // 2)
        yield f"rollout.max_rows={config.rollout.max_rows}", config
    while config.rollout.engine == "vllm" and gpus % (2 * config.rollout.vllm.tensor_parallel) == 0:
        if config.rollout.vllm.tensor_parallel >= 8 or config.rollout.max_staleness > 0:
            break
        config = engine(tensor_parallel=2 * config.rollout.vllm.tensor_parallel)
        yield f"rollout.vllm.tensor_parallel={config.rollout.vllm.tensor_parallel}", config
    if config.rollout.engine == "vllm" and config.rollout.vllm.gpu_memory_share is not None:
        config = engine(gpu_memory_share=None)
        yield "rollout.vllm.gpu_memory_share=null", config
    if config.train.gradient_checkpointing is False:
        config = changed(gradient_checkpointing="auto")
        yield "train.gradient_checkpointing=auto", config
    if config.train.micro_batch_tokens != "auto":
        config = changed(micro_batch_tokens="auto")
        yield "train.micro_batch_tokens=auto", config
    at_once = config.train.logits_chunk_tokens
    if at_once is None or at_once == "auto" or at_once > 512:
        config = changed(logits_chunk_tokens=512)
        yield "train.logits_chunk_tokens=512", config
    if shards_of(config, shape, gpus, device) < gpus:
        config = changed(replicas=1)
        yield "train.replicas=1", config
    if config.train.backend == "fsdp" and config.train.offload == "none":
        config = changed(offload="optimizer")
        yield "train.offload=optimizer", config
    if not is_allowed(with_changes(config, "train", backend="deepspeed", zero=1)):
        return
    for zero in range(max(1, config.train.zero + 1), 4):
        if zero == 3 and gpus > 1 and config.train.backend != "fsdp":
            # Divides the reference too, which ZeRO 3 does not.
            yield "train.backend=fsdp", changed(backend="fsdp", zero=0, offload="none")
        config = changed(backend="deepspeed", zero=zero)
        yield f"train.backend=deepspeed train.zero={zero}", config
    for offload in ("optimizer", "all"):
        if config.train.offload != "all" and config.train.offload != offload:
            config = changed(offload=offload)
            yield f"train.offload={offload}", config


@dataclass(frozen=True, slots=True)
class Plan:
    """Memory and time of a recipe on `gpus` GPUs of a kind."""

    shape: Shape
    device: Device
    gpus: int
    peaks: dict[str, dict[str, float]]
    """Bytes on each GPU by part, while responses are generated and in the update; of the recipe as it is."""
    settings: tuple[str, ...] | None
    """Settings that make it fit: () if it fits as it is, None if no settings do."""
    peaks_with_settings: dict[str, dict[str, float]]
    """`peaks` with these settings."""
    phases: dict[str, float]
    """Seconds of a step by phase, with the settings that make it fit; empty without RL."""
    shares: dict[str, Share]
    """Shares of the device's rates by phase."""
    tokens: float
    """Tokens generated in a step."""
    largest_models: dict[int, str | None]
    """GiB of a GPU -> see `largest_models`; empty for more GPUs than one."""
    chosen: tuple[str, ...]
    """The choices in place of `auto`, as overrides."""
    note: str = ""
    """The way in which episodes are counted; empty without any."""

    @property
    def total(self) -> float:
        """All bytes on each GPU at the larger peak."""
        return largest(self.peaks)

    @property
    def fits(self) -> bool:
        """True if it fits without a change."""
        return self.settings == ()


def largest_models(config: RunConfig, device: Device) -> dict[int, str | None]:
    """Return, for one GPU of each size of CARDS in GiB, the largest dense model of SHAPES that fits; None if none does.

    The recipe is as it is, but for the model; `device`: what the GPU is apart from its memory.
    """
    dense = sorted((shape.parameters, name) for name, shape in SHAPES.items() if not shape.experts)

    def has_room(shape: Shape, card: Device) -> bool:
        return fits_everywhere(leanest(config, shape, 1, card), shape, 1, card)

    cards = {gib: replace(device, memory_gib=gib) for gib in CARDS}
    return {
        gib: next((name for _, name in reversed(dense) if has_room(SHAPES[name], card)), None)
        for gib, card in cards.items()
    }


def fitting(
    config: RunConfig, chosen: RunConfig, shape: Shape, gpus: int, device: Device
) -> tuple[tuple[str, ...] | None, RunConfig]:
    """Return the settings that make the recipe fit, and the recipe with them. `chosen`: it as the plan chose.

    The settings are () if it fits as it is, and None, with `chosen`, if no settings do.
    """
    if fits(chosen, shape, gpus, device):
        return (), chosen
    words: list[str] = []
    for word, changed in settings_that_save(config, shape, gpus, device):
        # A later value of a field replaces an earlier one.
        words = [*(w for w in words if not fields_of(w) & fields_of(word)), word]
        changed = by_plan(changed, shape, gpus, device)
        if fits(changed, shape, gpus, device):
            return tuple(words), changed
    return None, chosen


def fields_of(words: str) -> set[str]:
    """Return the fields that settings such as "train.backend=deepspeed train.zero=1" set."""
    return {word.split("=")[0] for word in words.split()}


def plans(
    config: RunConfig, gpus: int, gpu: str, mean_share: float = 0.5, mean_prompt: float | None = None
) -> dict[str, Plan]:
    """Return a plan of each RL stage by name; without RL, of the last stage, with memory and no times.

    mean_share: mean length of a response over the longest; mean_prompt: mean tokens of a prompt, None: as the longest.
    Raises: ConfigError for an unknown GPU or model.
    """
    if gpu not in DEVICES:
        raise ConfigError(f"--gpu {gpu!r} is not known; there are {', '.join(DEVICES)}")
    if gpus < 1:
        raise ConfigError(f"--gpus must be >= 1, got {gpus}")
    config = for_machine(config, gpus, "cuda", has_vllm=True)
    shape, device = shape_of(config), DEVICES[gpu]
    chosen = by_plan(config, shape, gpus, device)
    models = largest_models(config, device) if gpus == 1 else {}
    words, as_it_is, made = tuple(choices(config, chosen)), views(config), dict[str, Plan]()
    for name, view in views(chosen).items():
        settings, changed = fitting(as_it_is[name], view, shape, gpus, device)
        lengths = Lengths.of(view, mean_share, mean_prompt)
        phases: dict[str, float] = {}
        shares: dict[str, Share] = {}
        tokens = 0.0
        if view.rl is not None:
            work = Work(changed, shape, gpus, device, lengths)
            phases = seconds(work)
            shares = {p: work.share(p) for p in ("copy", "decode", "forward", "update", "link", "publish")}
            tokens = work.responses * lengths.response
        before, after = (peaks(c, shape, gpus, device) for c in (view, changed))
        made[name] = Plan(
            shape, device, gpus, before, settings, after, phases, shares, tokens, models, words, note_of(view)
        )
    return made


def plan(config: RunConfig, gpus: int, gpu: str, mean_share: float = 0.5, mean_prompt: float | None = None) -> Plan:
    """Return the plan of a recipe with at most one RL stage; the rest is as in `plans`."""
    (made,) = plans(config, gpus, gpu, mean_share, mean_prompt).values()
    return made


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


def plan_lines(plan: Plan) -> list[str]:
    """Return the plan as lines of text."""
    lines = [
        f"{plan.shape.parameters / 1e9:.2f} billion parameters on {plan.gpus} x {plan.device.name} "
        f"({plan.device.memory_gib:g} GiB each)",
        *([plan.note] if plan.note else []),
        *([f"chosen for auto: {' '.join(plan.chosen)}"] if plan.chosen else []),
        *memory_lines(plan.peaks),
    ]
    options = "--set " + " --set ".join(" ".join(plan.settings or ()).split())
    if plan.fits:
        lines.append("it fits")
    elif plan.settings is None:
        lines.append("it does not fit with any settings; use more or larger GPUs, or a smaller model")
    else:
        room = largest(plan.peaks_with_settings) / GIB
        lines.append(f"it does not fit; it would, with {room:.2f} GiB, with {options}")
    if plan.largest_models:
        named = ", ".join(f"{gib} GiB {name or 'none'}" for gib, name in plan.largest_models.items())
        lines.append(
            f"largest dense model that this recipe, as it is, fits on one GPU, of those whose sizes are known: {named}"
        )
    if not plan.phases:
        return [*lines, f"no RL stage, so there is no step to time; assumed: {ROOM:.0%} of the memory can be filled"]
    step = sum(plan.phases.values())
    how = " with these settings" if plan.settings else " if it fitted" if plan.settings is None else ""
    lines += [
        f"one step{how}: {plan.tokens:,.0f} tokens generated, {step:.1f} s ({plan.tokens / step:,.0f} tokens/s)",
        *(f"  {name:<16} {s:8.1f} s" for name, s in plan.phases.items()),
        f"1,000 steps: {1000 * step / 3600:,.1f} hours, {1000 * step * plan.gpus / 3600:,.0f} GPU-hours",
    ]
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


def _peaks(config: RunConfig, allocator: str) -> dict[str, dict[str, float]]:
    config = for_machine(config, 1, "cpu", has_vllm=False)
    if config.train.logits_chunk_tokens == "auto":  # here: all at once
        config = with_changes(config, "train", logits_chunk_tokens=None)
    by_peak = peaks(config, shape_of(config), 1, CPU)
    update = by_peak["update"]
    update["lost"] = LOST[allocator] * (update["activations"] + update["logits"])
    return {name: {"process": float(PROCESS)} | parts for name, parts in by_peak.items()}


def lines_on_cpu(config: RunConfig) -> list[str]:
    """Return the memory that each RL stage takes on the CPU, as lines of text; without RL, the last stage."""
    allocator = "tcmalloc" if has_tcmalloc() else "glibc"
    plans = {name: _peaks(view, allocator) for name, view in views(config).items()}
    lines: list[str] = []
    for name, plan in plans.items():
        lines += [f"stage {name}"] if len(plans) > 1 else []
        lines += memory_lines(plan, "the process")
    return [*lines, f"lost: what {allocator} keeps between tensors, estimated"]
