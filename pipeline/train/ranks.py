"""The group of processes that train one policy: this process's rank, sums over ranks, and messages between them.

Every rank runs the same loop over the same state. A rank generates, grades and differentiates its share; the results
are put together before anything is decided, so that all ranks decide alike.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from verizero.pipeline.errors import RunError
from verizero.pipeline.host.network import listen_at
from verizero.pipeline.train.device import device_index

T = TypeVar("T")
BUCKET_ELEMENTS = 8_388_608
"""Gradients are added over ranks in pieces of about this many numbers."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among `size`. All of them must call every method, in the same order."""

    rank: int = 0
    size: int = 1
    _: KW_ONLY
    group: Any = None
    """torch's process group; None for that of all ranks."""

    @property
    def is_first(self) -> bool:
        """The rank that writes, reports and talks to people."""
        return self.rank == 0

    def all_reduce(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks; with one rank the values themselves."""
        if self.size > 1:
            values = values.clone()  # the collective works in place
            with collective_errors():
                dist.all_reduce(values, group=self.group)
        return values

    def any(self, flag: bool) -> bool:
        """True if the flag is true on some rank."""
        return bool(self.all_reduce(torch.tensor([float(flag)])) > 0)

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, by rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with collective_errors():
            dist.all_gather_object(values, value, group=self.group)
        return values

    def decide_on_first(self, decide: Callable[[], T]) -> T:
        """Return rank 0's result of `decide` on every rank; only rank 0 calls it."""
        if self.size == 1:
            return decide()
        box: list[Any] = [decide() if self.is_first else None]
        with collective_errors():
            dist.broadcast_object_list(box, src=0)
        value: T = box[0]
        return value

    def in_own_group(self, timeout_s: float) -> Ranks:
        """Return the same ranks with another gloo group, so that a second thread may `gather`."""
        if self.size == 1:
            return self
        new_group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=timeout_s))
        return replace(self, group=new_group)

    def barrier(self) -> None:
        """Return once all ranks have called it."""
        if self.size > 1:
            with collective_errors():
                dist.barrier()

    def sum_gradients(self, gradients: Iterable[Tensor]) -> None:
        """Replace each gradient by its sum over ranks. All ranks must have gradients of the same parameters."""
        if self.size == 1:
            return
        bucket: list[Tensor] = []
        for gradient in gradients:
            # Buckets depend on sizes and types alone, so all ranks make the same ones in the same order.
            if bucket and (sum(g.numel() for g in bucket) > BUCKET_ELEMENTS or bucket[0].dtype != gradient.dtype):
                _sum_in_place(bucket, self.group)
                bucket = []
            bucket.append(gradient)
        if bucket:
            _sum_in_place(bucket, self.group)


ALONE = Ranks()


@contextmanager
def collective_errors() -> Iterator[None]:
    """Turn the error of a collective into a RunError with a remedy; torch's own message only names a socket."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise  # of this rank's own GPU: the others do answer
    except RuntimeError as exc:
        raise RunError(
            f"rank {ranks_of_environment().rank} gets no answer from the others ({exc}): one of them ended, or the "
            "network is down. See the other ranks' logs, and check the network between the hosts; the same command "
            "continues from the last checkpoint"
        ) from exc


def _sum_in_place(tensors: Sequence[Tensor], group: Any) -> None:
    flat = torch.cat([t.reshape(-1) for t in tensors])
    with collective_errors():
        dist.all_reduce(flat, group=group)
    for t, piece in zip(tensors, torch.split(flat, [t.numel() for t in tensors]), strict=True):
        t.copy_(piece.view_as(t))


def ranks_of_environment(environment: Mapping[str, str] = os.environ) -> Ranks:
    """Return this process's rank by RANK and WORLD_SIZE, which launchers set; a single rank without them.

    Raises: RunError for a rank outside the group.
    """
    size, rank = int(environment.get("WORLD_SIZE", "1")), int(environment.get("RANK", "0"))
    if not 0 <= rank < size:
        raise RunError(f"RANK={rank} is not among WORLD_SIZE={size}; start the ranks with one launcher")
    return Ranks(rank, size)


def ranks_of_node(size: int) -> int:
    """Return how many of `size` ranks are on this machine, as torchrun and `launch` set it; without these, all."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", size))


def join(timeout_s: float, device: str = "cpu") -> Ranks:
    """Join the ranks that meet at MASTER_ADDR and MASTER_PORT (gloo on the CPU, NCCL on GPUs), and return them.

    On GPUs LOCAL_RANK is set to the number of this rank's GPU, and that GPU is the current one. A collective that takes
    longer than `timeout_s` fails. Raises: RunError if the ranks do not meet, or do not know their GPUs.
    """
    ranks = ranks_of_environment()
    if ranks.size == 1 or dist.is_initialized():
        return ranks
    missing = [n for n in ("MASTER_ADDR", "MASTER_PORT") if n not in os.environ]
    if missing:
        raise RunError(f"WORLD_SIZE={ranks.size} but {' and '.join(missing)} is not set; start the ranks by `launch`")
    if torch.device(device).type == "cuda":
        use_own_gpu(ranks.size, device)
    timeout = datetime.timedelta(seconds=timeout_s)
    try:
        dist.init_process_group(
            collectives(device), rank=ranks.rank, world_size=ranks.size, timeout=timeout, store=_store(ranks, timeout)
        )
    except (OSError, RuntimeError, ValueError) as exc:
        raise RunError(
            f"rank {ranks.rank} of {ranks.size} did not meet the others at {os.environ['MASTER_ADDR']}:"
            f"{os.environ['MASTER_PORT']} ({exc}); is that address reachable from here, and is every rank started?"
        ) from exc
    return ranks


def _store(ranks: Ranks, timeout: datetime.timedelta) -> Any:
    """Return the store at which the ranks meet; rank 0 opens it, at MASTER_ADDR only. None: torchrun opens one."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    listener = listen_at(host, port) if ranks.is_first else None
    # Without our listener torch would listen at all addresses; it does if MASTER_ADDR is none of this machine's.
    descriptor = None if listener is None else listener.detach()
    store: Any = dist.TCPStore  # type: ignore[attr-defined]
    return store(host, port, ranks.size, ranks.is_first, timeout, master_listen_fd=descriptor)


def use_own_gpu(size: int, device: str) -> None:
    """Make this rank's GPU the current one, in LOCAL_RANK too. Raises: RunError for one GPU of several ranks."""
    if torch.device(device).index is not None:
        raise RunError(
            f"train.device={device} names one GPU and WORLD_SIZE={size}: all ranks would share it. Set train.device: "
            "cuda, and each rank takes the GPU of its LOCAL_RANK"
        )
    index = device_index(size, torch.cuda.device_count())
    os.environ["LOCAL_RANK"] = str(index)
    torch.cuda.set_device(index)


def collectives(device: str) -> str:
    """Return torch's name of the communication libraries for ranks whose weights are on `device`."""
    # Counts and messages between ranks are on the CPU even if gradients are not.
    return "cpu:gloo,cuda:nccl" if torch.device(device).type == "cuda" else "gloo"


def join_alone(device: str) -> None:
    """Make a group of this process alone unless it is in one: FSDP and DeepSpeed want one."""
    if not dist.is_initialized():
        from torch._C._distributed_c10d import HashStore

        dist.init_process_group(collectives(device), rank=0, world_size=1, store=HashStore())


def leave() -> None:
    """Leave the group, if this process is in one."""
    if dist.is_initialized():
        dist.destroy_process_group()
