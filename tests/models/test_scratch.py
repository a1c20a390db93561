"""The tensor of a thread for numbers that one product needs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from verizero.pipeline.models.scratch import scratch

CPU = torch.device("cpu")


def of(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return scratch(count, dtype=dtype, device=CPU)


def test_a_thread_has_one_tensor_of_each_type_and_grows_it() -> None:
    with ThreadPoolExecutor(1) as thread, torch.inference_mode():
        first = thread.submit(of, 100).result()
        assert thread.submit(of, 40).result().data_ptr() == first.data_ptr()
        assert len(thread.submit(of, 200).result()) == 200
        others = [of(100), of(100, torch.uint8), first]
    assert len({x.data_ptr() for x in others}) == 3
    assert not others[0].is_inference()
    others[0].fill_(1)
