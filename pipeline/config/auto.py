"""Values for what a recipe leaves open: `auto`, by this machine, and null learning rates, by the table of rates."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

from verizero.pipeline.config.rates import learning_rate
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.sections import TrainConfig
from verizero.pipeline.config.stages import StageSection
from verizero.pipeline.config.yaml_reader import merge
from verizero.pipeline.errors import ConfigError


def for_machine(config: RunConfig, num_ranks: int, device: str, has_vllm: bool | None = None) -> RunConfig:
    """Return the recipe with a choice in place of each `auto`.

    On the CPU: torch's backend, float32, the embedded engine. On GPUs: FSDP for several ranks, bfloat16, and vLLM in
    the training process for a model that the recipe does not make; each only where the recipe's other fields allow it.
    `has_vllm`: None to look whether it is installed.
    """
    on_gpu = device.startswith("cuda")
    if config.train.backend == "auto":
        fsdp = with_changes(config, "train", backend="fsdp")
        # The embedded engine needs the bits of a quantised base whole; torch's backend computes with the same ones.
        is_whole = config.model.quantize is not None and config.rollout.engine in ("auto", "torch")
        divides = num_ranks > 1 and on_gpu and not is_whole and is_allowed(fsdp)
        config = fsdp if divides else with_changes(config, "train", backend="torch")
    if config.model.dtype == "auto":
        half = with_changes(config, "model", dtype="bfloat16")
        config = half if on_gpu and is_allowed(half) else with_changes(config, "model", dtype="float32")
    if config.rollout.engine == "auto":
        has_vllm = is_vllm_installed() if has_vllm is None else has_vllm
        config = with_changes(config, "rollout", engine="vllm" if has_vllm and wants_vllm(config, device) else "torch")
    return config


def wants_vllm(config: RunConfig, device: str) -> bool:
    """True if `auto` is vLLM for this recipe and device, where vLLM is installed."""
    # The embedded engine computes with the trainer's own bits; vLLM has them a second time.
    fits = device.startswith("cuda") and config.model.create is None and config.model.quantize is None
    return config.rollout.engine == "auto" and fits and is_allowed(with_changes(config, "rollout", engine="vllm"))


def is_vllm_installed() -> bool:
    return importlib.util.find_spec("vllm") is not None


def is_allowed(config: RunConfig) -> bool:
    """True if the sections of the recipe fit together."""
    try:
        config.check()
    except ValueError:
        return False
    return True


def with_changes(config: RunConfig, section: str, **changes: Any) -> RunConfig:
    """Return the recipe with other values of fields of a section."""
    return config.model_copy(update={section: getattr(config, section).model_copy(update=changes)})


STATE_BYTES = 16
"""Bytes of a parameter that FSDP trains: its float32 master, its gradient and two moments."""
STATE_SHARE = 0.25
"""The largest share of a GPU's memory for these: the rest is for activations, a reference, a critic and the engine."""


def num_replicas(train: TrainConfig, num_parameters: int, memory: float, num_ranks: int, per_node: int) -> int:
    """Return how many replicas FSDP has: as `train.replicas` says; for `auto` each on the fewest nodes that hold it.

    memory: bytes of a GPU, 0 without one; per_node: ranks of a node. Raises: ConfigError for a number that does not
    divide the ranks.
    """
    if train.replicas != "auto":
        if num_ranks % train.replicas:
            raise ConfigError(
                f"train.replicas={train.replicas} does not divide {num_ranks} ranks; set a divisor, or auto"
            )
        return train.replicas
    each = range(per_node, num_ranks, per_node)
    holds = (n for n in each if num_ranks % n == 0 and num_parameters * STATE_BYTES / n <= STATE_SHARE * memory)
    return num_ranks // next(holds, num_ranks)


FAR = 10.0
"""A rate that is more than so many times higher or lower than the table's is worth a word."""


def table_rate(config: RunConfig, section: StageSection, num_parameters: int) -> float:
    """Return the table's rate for what the stage trains: the whole model, or adapters of it."""
    # A reward model trains all weights of a copy, unless the base is quantised.
    is_whole = section.learns == "ranks" and config.model.quantize is None
    return learning_rate(section.learns, num_parameters, config.train.lora is not None and not is_whole)


def leaves_rates_open(config: RunConfig) -> bool:
    """True if a stage's learning rate is null."""
    return any(rate is None for stage in config.stages for _, rate in _rates(config.section_of(stage)))


def with_rates(config: RunConfig, num_parameters: int) -> RunConfig:
    """Return the recipe with the table's learning rates for those that are null. num_parameters: the policy's."""
    sections: dict[str, Any] = {}
    for kind in config.kinds():
        section = getattr(config, kind)
        if isinstance(section, StageSection):
            rate = table_rate(config, section, num_parameters)
            sections[kind] = section.model_copy(
                update={
                    field: getattr(section, field).model_copy(update={"learning_rate": rate})
                    for field, value in _rates(section)
                    if value is None
                }
            )
    config = config.model_copy(update=sections)
    stages = []
    for stage in config.stages:
        section = config.section_of(stage)
        rate = table_rate(config, section, num_parameters)
        missing = {field: {"learning_rate": rate} for field, value in _rates(section) if value is None}
        changes = merge(stage.changes, missing) if missing else stage.changes
        stages.append(stage.model_copy(update={"changes": changes}))
    return config.model_copy(update={"stages": tuple(stages)})


def far_rates(config: RunConfig, num_parameters: int) -> Iterator[tuple[str, str, float, float]]:
    """Yield (stage, its field, the rate there, the table's) for each rate that is far from the table."""
    for stage in config.stages:
        section = config.section_of(stage)
        near = table_rate(config, section, num_parameters)
        for field, rate in _rates(section):
            if field == "optimizer" and rate is not None and not near / FAR <= rate <= near * FAR:
                yield stage.name, f"{stage.kind}.{field}.learning_rate", rate, near


def _rates(section: StageSection) -> Iterator[tuple[str, float | None]]:
    for field, optimizer in section.optimizers():
        yield field, optimizer.learning_rate
