"""Choose the backend for `train.backend: auto`."""

from __future__ import annotations

from verizero.pipeline.config.run import RunConfig


def with_backend(config: RunConfig, num_ranks: int, device: str) -> RunConfig:
    """Return the recipe with a backend in place of `auto`: FSDP for several ranks on GPUs, torch's for all else.

    `rollout.publish_every` above 1 needs a copy of the policy, which FSDP does not keep: then it is torch's too.
    """
    if config.train.backend != "auto":
        return config
    divides = num_ranks > 1 and device.startswith("cuda") and config.rollout.publish_every == 1
    train = config.train.model_copy(update={"backend": "fsdp" if divides else "torch"})
    return config.model_copy(update={"train": train})
