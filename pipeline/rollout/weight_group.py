"""A process group over gloo beside the default one: for weights, between a trainer and the workers of a server."""

from __future__ import annotations

import datetime
from typing import Any

import torch
from torch import Tensor

dist: Any = torch.distributed


def meeting(host: str, port: int, world_size: int, timeout_s: float, is_host: bool) -> Any:
    """The place where `world_size` processes find each other; its host opens it, at a free port where `port` is 0."""
    timeout = datetime.timedelta(seconds=timeout_s)
    return dist.TCPStore(host, port, world_size, is_host, timeout, wait_for_workers=False)


def group(store: Any, rank: int, world_size: int, timeout_s: float) -> Any:
    """A group of `world_size` processes that meet at `store`; it waits for all of them."""
    timeout = datetime.timedelta(seconds=timeout_s)
    return dist.ProcessGroupGloo(dist.PrefixStore("weights", store), rank, world_size, timeout)


def begin_broadcast(members: Any, tensor: Tensor) -> Any:
    """Start to send rank 0's tensor to all members, in place, on the CPU; what to wait for."""
    options = dist.BroadcastOptions()
    options.rootRank = options.rootTensor = 0
    return members.broadcast([tensor], options)


def broadcast(members: Any, tensor: Tensor) -> None:
    """Rank 0's tensor to all members, in place on the CPU."""
    begin_broadcast(members, tensor).wait()
