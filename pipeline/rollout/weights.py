"""The policy's weights for an engine: in pieces, with the names that they have in a saved folder.

And a process group over gloo for them, between a trainer and the workers of a server, next to the default group.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.host.network import address_towards, listen_at
from verizero.pipeline.models.saved_names import as_saved

ADAPTER_NAME, ADAPTER_NUMBER = "policy", 1
"""The name and the number of the adapters in vLLM."""
dist: Any = torch.distributed
Named = Iterable[tuple[str, Tensor]]
Weights = Callable[[], Named]
"""Yields all weights once, as whole tensors. If they are gathered from shards, all ranks must call it together."""


def weights_of(model: Any) -> Weights:
    """Return the weights of a transformers model, named and shaped as `save_pretrained` would write them.

    A tied tensor comes once. Tensors may be the model's own: copy them before the next update.
    """

    def named() -> Named:
        return as_saved(model, {name: p.detach() for name, p in model.named_parameters()}).items()

    return named


class CountedWeights:
    """Yields the weights of another iterable, and counts their bytes."""

    def __init__(self, weights: Named) -> None:
        self._weights = weights
        self.num_bytes = 0

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._weights:
            self.num_bytes += tensor.numel() * tensor.element_size()
            yield name, tensor


def buckets(weights: Named, max_bytes: int) -> Iterator[list[tuple[str, Tensor]]]:
    """Yield the weights in lists of at most `max_bytes`; a larger tensor comes alone."""
    bucket: list[tuple[str, Tensor]] = []
    num_bytes = 0
    for name, tensor in weights:
        size = tensor.numel() * tensor.element_size()
        if bucket and num_bytes + size > max_bytes:
            yield bucket
            # A new list, not a cleared one: the receiver may still use the old one.
            bucket, num_bytes = [], 0
        bucket.append((name, tensor))
        num_bytes += size
    if bucket:
        yield bucket


def rendezvous(host: str, port: int, world_size: int, timeout_s: float, is_host: bool) -> Any:
    """Return the store at which `world_size` processes meet; the host opens it, at a free port if port is 0."""
    timeout, descriptor = datetime.timedelta(seconds=timeout_s), None
    if is_host and (listener := listen_at(host, port)) is not None:  # torch would listen at all addresses
        port, descriptor = listener.getsockname()[1], listener.detach()
    # Without waiting: the host tells the others its port only after this returns.
    return dist.TCPStore(host, port, world_size, is_host, timeout, wait_for_workers=False, master_listen_fd=descriptor)


def join_group(store: Any, rank: int, world_size: int, timeout_s: float) -> Any:
    """Return the group of processes at `store` when all are there, each at its address on the route to it."""
    options = dist.ProcessGroupGloo._Options()
    options._timeout = datetime.timedelta(seconds=timeout_s)
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address_towards(store.host))]
    # Made directly: init_process_group would touch the default group, which the trainer and vLLM use.
    return dist.ProcessGroupGloo(dist.PrefixStore("weights", store), rank, world_size, options)


def begin_broadcast(members: Any, tensor: Tensor) -> Any:
    """Start to send rank 0's tensor to all members, in place, on the CPU; return the work to wait for."""
    options = dist.BroadcastOptions()
    options.rootRank = options.rootTensor = 0
    return members.broadcast([tensor], options)


def broadcast(members: Any, tensor: Tensor) -> None:
    """Send rank 0's tensor to all members, in place, on the CPU, and wait for its end."""
    begin_broadcast(members, tensor).wait()
