"""A process group over gloo for weights, between a trainer and the workers of a server, next to the default group."""

from __future__ import annotations

import datetime
from typing import Any

import torch
from torch import Tensor

from verizero.pipeline.listening import address_towards, listen_at

dist: Any = torch.distributed


def rendezvous(host: str, port: int, world_size: int, timeout_s: float, is_host: bool) -> Any:
    """Return the store at which `world_size` processes meet; the host opens it, at a free port if port is 0."""
    timeout, descriptor = datetime.timedelta(seconds=timeout_s), None
    if is_host and (listener := listen_at(host, port)) is not None:  # torch would listen at all addresses
        port, descriptor = listener.getsockname()[1], listener.detach()
    # Without waiting: the host tells the others its port only after this returns.
    return dist.TCPStore(host, port, world_size, is_host, timeout, wait_for_workers=False, master_listen_fd=descriptor)


def join_group(store: Any, rank: int, world_size: int, timeout_s: float) -> Any:
    """Return the group of `world_size` processes that meet at `store`, once all of them are there.

    Each of them listens at its address on the route to the store.
    """
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
