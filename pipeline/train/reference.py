"""The reference of a policy: a separate model, or while only adapters train the policy without them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from verizero.pipeline.models.load import frozen_copy
from verizero.pipeline.models.lora import Adapted, GatherParameters, as_they_are


@torch.no_grad()
def refreshed(
    reference: Any, policy: Any, alpha: float, adapted: Adapted | None = None, whole: GatherParameters = as_they_are
) -> Any:
    """Return alpha * policy + (1 - alpha) * reference, a frozen model; without a reference, a copy of the policy.

    With untrained adapters the first reference is `adapted` itself, the policy without them, which costs no memory.
    From the second refresh on it is a separate model.
    """
    if reference is None:
        return adapted if adapted is not None and adapted.is_fresh(whole) else frozen_copy(policy)
    if isinstance(reference, Adapted):
        reference = reference.base_copy(whole)
    for ours, theirs in zip(reference.parameters(), policy.parameters(), strict=True):
        theirs = theirs.to(ours.device, ours.dtype)
        # lerp at 1 may round; a refresh must be exact.
        ours.lerp_(theirs, alpha) if alpha < 1 else ours.copy_(theirs)
    return reference


def as_base(reference: Any) -> AbstractContextManager[None]:
    """Return a context with the adapters off, if the reference is the policy without them."""
    return reference.without() if isinstance(reference, Adapted) else nullcontext()
