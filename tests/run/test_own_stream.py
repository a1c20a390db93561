"""The stream of the thread that generates ahead, before a double of torch's calls."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from verizero.pipeline.run.own_stream import HERE, CudaStream, own_stream


class Cuda:
    """torch.cuda as far as it is called: each thread begins on GPU 0 and the default stream."""

    def __init__(self) -> None:
        self.own = threading.local()
        self.calls: list[str] = []

    def current_device(self) -> int:
        return getattr(self.own, "device", 0)

    def set_device(self, device: torch.device) -> None:
        self.own.device = device.index

    def current_stream(self, device: Any) -> Any:
        return getattr(self.own, "stream", None) or Stream(self, "default")

    def Stream(self, device: Any) -> Any:
        return Stream(self, f"stream on {device}")

    @contextmanager
    def stream(self, stream: Any) -> Any:
        self.own.stream = stream
        yield
        self.own.stream = None


class Stream:
    def __init__(self, cuda: Cuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def record_event(self) -> str:
        self.cuda.calls.append(f"event of the {self.name}")
        return f"event of the {self.name}"

    def wait_event(self, event: str) -> None:
        self.cuda.calls.append(f"{self.name} waits for {event}")

    def synchronize(self) -> None:
        self.cuda.calls.append(f"{self.name} is done")


def in_thread(work: Any) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_the_thread_computes_on_its_ranks_gpu_and_on_a_stream_of_its_own() -> None:
    cuda = Cuda()
    own = CudaStream(torch.device("cuda", 3), cuda)

    def work() -> None:
        cuda.calls.append(f"work on GPU {cuda.current_device()}, {cuda.current_stream(None).name}")

    in_thread(own.bound(work))
    assert cuda.calls == [
        "event of the default",
        "stream on cuda:3 waits for event of the default",
        "work on GPU 3, stream on cuda:3",
        "stream on cuda:3 is done",
    ]


def test_a_device_without_a_number_is_the_ranks_present_one() -> None:
    cuda = Cuda()
    cuda.set_device(torch.device("cuda", 5))
    assert CudaStream(torch.device("cuda"), cuda).device == torch.device("cuda", 5)


def test_work_that_fails_is_waited_for_too() -> None:
    cuda = Cuda()

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        CudaStream(torch.device("cuda", 0), cuda).bound(fail)()
    assert cuda.calls[-1] == "stream on cuda:0 is done"


def test_the_cpu_has_no_streams() -> None:
    assert own_stream(torch.device("cpu")) is HERE

    def work() -> None:
        """Do nothing."""

    assert HERE.bound(work) is work
