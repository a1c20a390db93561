"""Choices on GPUs in place of `auto`: the settings that take the least time of those whose memory fits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from verizero.pipeline.config.auto import with_changes
from verizero.pipeline.config.rl import RlConfig, parts_of
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.plan.devices import Device
from verizero.pipeline.plan.memory import GIB, VLLM, engine_needs, peaks
from verizero.pipeline.plan.seconds import Lengths, Work, seconds
from verizero.pipeline.plan.shape import Shape

ROOM = 0.92
"""Share of a GPU's memory that may be filled: the rest is the driver's, the libraries' and lost between tensors."""
TOKENS = range(16384, 2047, -1024)
"""Sizes of micro-batches that `auto` chooses from."""
MOST_SHARE = 0.8
"""The largest share of a GPU's memory that vLLM gets."""


def by_plan(config: RunConfig, shape: Shape, gpus: int, device: Device) -> RunConfig:
    """Return the recipe with a choice in place of each `auto` that memory decides, and of vLLM's share.

    Of settings that fit in every stage those whose steps take the least time; where times are equal, and without RL,
    which alone is timed, large micro-batches. If none fit, those that take the least memory.
    """
    candidates = (_chosen(config, *choice, shape, gpus, device) for choice in _open_choices(config))
    fitting = [c for c in candidates if fits_everywhere(c, shape, gpus, device)]
    least = leanest(config, shape, gpus, device)
    return min(fitting, key=lambda chosen: _seconds(chosen, shape, gpus, device), default=least)


def leanest(config: RunConfig, shape: Shape, gpus: int, device: Device) -> RunConfig:
    """Return the recipe with the choices that take the least memory."""
    return _chosen(config, *_open_choices(config)[-1], shape, gpus, device)


def fits_everywhere(config: RunConfig, shape: Shape, gpus: int, device: Device) -> bool:
    """True if every stage of the recipe fits."""
    return all(fits(view, shape, gpus, device) for view in views(config).values())


def _open_choices(config: RunConfig) -> list[tuple[bool, int]]:
    """Return whether activations may be computed again, with the sizes of micro-batches; least memory comes last."""
    train = config.train
    keeps_routes = any(parts_of(rl).params.keep_routing for rl in config.sections_of(RlConfig).values())
    again = [False] if keeps_routes else [False, True]  # computed again, experts would be chosen again
    again = again if train.gradient_checkpointing == "auto" else [train.gradient_checkpointing]
    return list(product(again, TOKENS if train.micro_batch_tokens == "auto" else [train.micro_batch_tokens]))


def _chosen(config: RunConfig, again: bool, tokens: int, shape: Shape, gpus: int, device: Device) -> RunConfig:
    changed = with_changes(config, "train", gradient_checkpointing=again, micro_batch_tokens=tokens)
    return _with_share(changed, shape, gpus, device)


def _seconds(config: RunConfig, shape: Shape, gpus: int, device: Device) -> float:
    """Return the seconds of a step of each RL stage together."""
    timed = [view for view in views(config).values() if view.rl is not None]
    works = (Work(view, shape, gpus, device, Lengths.of(view, 0.5, None)) for view in timed)
    return sum(sum(seconds(work).values()) for work in works)


def views(config: RunConfig) -> dict[str, RunConfig]:
    """Return the recipe of each RL stage alone by the stage's name; without RL, of the last stage.

    A stage that is not done takes no memory, so there the section of RL is gone.
    """
    sections = dict(config.sections_of(RlConfig))
    names = list(sections) or [config.stages[-1].name]
    return {name: config.of_stage(name).model_copy(update={"rl": sections.get(name)}) for name in names}


def largest(peaks: dict[str, dict[str, float]]) -> float:
    """Return the bytes of the larger peak."""
    return max(sum(parts.values()) for parts in peaks.values())


def fits(config: RunConfig, shape: Shape, gpus: int, device: Device) -> bool:
    """True if both peaks have room, and vLLM's share has room for its part of the weights. config: of `views`."""
    how, whole = config.rollout, device.memory_gib * GIB
    if config.rl is not None and how.engine == "vllm" and engine_needs(config, shape) > how.vllm.memory_share * whole:
        return False
    return largest(peaks(config, shape, gpus, device)) <= whole * ROOM


def _with_share(config: RunConfig, shape: Shape, gpus: int, device: Device) -> RunConfig:
    """Return the recipe with what the trainer leaves of a GPU as vLLM's share, if the recipe says none."""
    if config.rollout.engine != "vllm" or config.rollout.vllm.gpu_memory_share is not None:
        return config
    rest = max(_beside_vllm(config, shape, gpus, device), default=None)
    if rest is None:
        return config
    # In steps of 5%, so that a plan and a run of a GPU that has a little less memory say the same.
    share = math.floor(20 * (ROOM - rest / (device.memory_gib * GIB))) / 20
    vllm = config.rollout.vllm.model_copy(update={"gpu_memory_share": min(MOST_SHARE, share)})
    return with_changes(config, "rollout", vllm=vllm) if share > 0 else config


def _beside_vllm(config: RunConfig, shape: Shape, gpus: int, device: Device) -> Iterator[float]:
    """Yield the bytes of all other parts at each peak at which vLLM has its share."""
    for view in views(config).values():
        for parts in peaks(view, shape, gpus, device).values():
            if VLLM in parts:
                yield sum(parts.values()) - parts[VLLM]


CHOSEN = ("train.gradient_checkpointing", "train.micro_batch_tokens", "rollout.vllm.gpu_memory_share")


def choices(config: RunConfig, chosen: RunConfig) -> list[str]:
    """Return what `by_plan` chose for the recipe, as overrides such as "train.micro_batch_tokens=16384"."""
    return [f"{name}={after}" for name in CHOSEN if (after := _value(chosen, name)) != _value(config, name)]


def _value(config: RunConfig, name: str) -> str:
    value: object = config
    for part in name.split("."):
        value = getattr(value, part)
    return str(value).lower() if isinstance(value, bool) else str(value)
