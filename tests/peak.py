"""The memory that tensors take while some code runs, counted operation by operation."""

import time
import weakref

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

MIB = 2**20


def tensors_of(things):
    """Yield the plain tensors among the arguments or results of an operation, and in their lists."""
    for x in things:
        if isinstance(x, (list, tuple)):
            yield from tensors_of(x)
        elif type(x) in (torch.Tensor, torch.nn.Parameter):
            yield x


class Live(TorchDispatchMode):
    """The storages that operations have touched and that live; `peak` is the greatest sum of their bytes so far."""

    def __init__(self):
        super().__init__()
        self.seen = {}
        self.most = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented  # it unpacks itself, and its inner calls come back here
        out = func(*args, **kwargs or {})
        for t in tensors_of((*args, *(kwargs or {}).values(), out)):
            if t.device.type != "meta":  # shapes alone take no memory
                self.see(t.untyped_storage())
        if self.most > self.peak:
            self.peak = max(self.peak, self.settled())
        return out

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # nothing is traced here, and every operation would pass through a wrapper against that

    def see(self, storage):
        """Count the storage with the bytes that it has now."""
        key, size = storage._cdata, storage.nbytes()
        known = self.seen.get(key)
        if known is None:
            self.seen[key] = weakref.ref(storage, lambda _: self.drop(key)), size
        elif known[1] != size:
            self.seen[key] = known[0], size
        self.most += size - (known[1] if known else 0)

    def drop(self, key):
        self.most -= self.seen.pop(key)[1]

    def settled(self):
        """The bytes that live now; where they are a MiB above `peak`, those that still live a little later.

        A thread of gloo drops the tensors of a collective just after it has told that the collective is done. On a busy
        machine that can be after the next operation, and would count as a block too many.
        """
        bytes_now = self.now()
        for _ in range(20):
            if bytes_now <= self.peak + MIB or not torch.distributed.is_initialized():
                break
            time.sleep(0.001)
            bytes_now = self.most  # the sum is enough: the thread drops storages and empties none
        return bytes_now

    def now(self):
        """The bytes that live now.

        Each storage is asked again, as it can be emptied without being dropped and without an operation. Therefore
        `most`, the sum of what operations last saw, may be too much; it is never too little behind an operation, which
        sees what it fills. So only where it passes the peak is it worth asking all.
        """
        for reference, _ in list(self.seen.values()):
            if (storage := reference()) is not None:
                self.see(storage)
        return self.most
