"""Access to names of DeepSpeed 0.19.8 that are not part of its interface, each with the reason for its use."""

from __future__ import annotations

from typing import Any


def master_weights(optimizer: Any) -> list[Any] | None:
    """Return the float32 shards that ZeRO 3 optimises; None for other stages, whose parameter groups hold them.

    ZeRO 3 lends one shard at a time to the parameter groups, for the step alone. To put moments into AdamW's state
    before its first step, as a resumed run must, the shards themselves are needed, and no call returns them.
    """
    shards: list[Any] | None = getattr(optimizer, "fp32_partitioned_groups_flat", None)
    return shards


def link_moments(optimizer: Any) -> None:
    """Make moments that were put into AdamW's state visible to `safe_get_full_optimizer_state` and its sisters.

    ZeRO 1 and 2 do so in their first step. A public function of the same purpose exists (`deepspeed.utils`), but it
    leaves the optimiser's flag unset, and the first step would link again.
    """
    if hasattr(optimizer, "_lazy_init_hp_params_optimizer_state"):
        optimizer._lazy_init_hp_params_optimizer_state()


def zero_stored_gradients(optimizer: Any) -> None:
    """Zero the gradients that DeepSpeed stores between updates: under ZeRO 3, and on the host under ZeRO 1 and 2.

    A parameter that an update, or its first micro-batch, does not use (an adapter that is off, a head) gets no new
    gradient, and its stored one would be applied again.
    """
    gradients = list(getattr(optimizer, "accumulated_grads_in_cpu", {}).values())
    if (buffer := getattr(optimizer, "grad_partitions_flat_buffer", None)) is not None:
        gradients.append(buffer)
    # With an optimiser on the host these are buffers of their own; otherwise DeepSpeed sets them before each step.
    for name in ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat"):
        gradients += [group.grad for group in getattr(optimizer, name, ()) if group.grad is not None]
    for gradient in gradients:
        gradient.zero_()


def forbid_shared_memory(deepspeed: Any) -> None:
    """Keep DeepSpeed from compiling a shared-memory all-reduce for the CPU, which takes a minute; gloo does without.

    Neither its configuration nor an environment variable forbids it: it asks this table alone.
    """
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
