"""A decode step as a GPU would run it: how many kernels it launches, and that it can be replayed as a graph."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from tests.models.families import FAST, build
from tests.rollout.test_torch_engine import MAX, engine_of, same
from verizero.pipeline.models.cpu import decoder
from verizero.pipeline.models.cpu.decoder import ON_GPU, Decoder
from verizero.pipeline.rollout.engine import Request, Sampling
from verizero.pipeline.rollout.torch_engine import TorchEngine


class Launches(TorchDispatchMode):
    """Counts the operations that a GPU would launch a kernel for: all but views and empty tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_view = any(a.alias_info is not None and not a.alias_info.is_write for a in func._schema.arguments)
        self.count += not (is_view or "empty" in str(func) or "_local_scalar" in str(func))
        return func(*args, **(kwargs or {}))


LAUNCHES = {"qwen2 tied": (17, 32), "qwen3 wide heads": (20, 32)}
"""Operations of a decode step by layer and otherwise, with the twin's attention: they may only fall."""


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_step_launches_no_more_than_its_budget(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "rms_norm", lambda x, weight, eps: F.rms_norm(x, weight.shape, weight, eps))
    requests = [Request((3, 4, 5), (1, 2)), Request((6, 7), (3, 4))]
    model_type, changes = FAST[name]

    def launched(layers: int, tokens: int) -> int:
        engine = TorchEngine(build(model_type, {**changes, "num_hidden_layers": layers}), (-1,), 0)
        with Launches() as launches:
            engine.generate(requests, Sampling(tokens))
        return launches.count

    # so few tokens that the rows of the CPU need no more room, which costs copies of each layer
    steps = [(launched(layers, 12) - launched(layers, 4)) / 8 for layers in (1, 2)]
    layer = steps[1] - steps[0]
    assert (layer, steps[0] - layer) == LAUNCHES[name], "if it is less, lower the budget"


class Replays(TorchDispatchMode):
    """Records work as a graph would, and refuses a replay that a graph could not make.

    Each replay must be the operations of the first, of the same shapes, on tensors at the same addresses, but for those
    that the work itself makes; and nothing may be read by the host.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trace: list[Any] = []
        self.made: set[int] = set()
        self.kept: list[Any] = []
        self.replayed = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        assert func not in (aten._local_scalar_dense.default, aten.nonzero.default), f"{func} is read by the host"
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        outer = [x.data_ptr() for x in tensors if x.untyped_storage().data_ptr() not in self.made]
        self.trace.append((str(func), [tuple(x.shape) for x in tensors], outer))
        known = {x.untyped_storage().data_ptr() for x in tensors}
        out = func(*args, **(kwargs or {}))
        for x in tree_flatten(out)[0]:
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in known:
                self.made.add(x.untyped_storage().data_ptr())
                self.kept.append(x)  # so that no later tensor has its address
        return out

    def record(self, work: Any) -> Any:
        first: list[Any] = []

        def replay() -> None:
            self.trace, self.made, self.kept = [], set(), []
            with self:
                work()
            first.append(self.trace)
            assert first[0] == self.trace, "a graph would have computed something else"
            self.replayed += 1

        return replay


def attend_whole(q: Any, keys: Any, values: Any, stops: Any, longest: int, prompts: Any = None) -> Any:
    """Attention with the kernel's arguments in plain torch, of one shape whatever the lengths."""
    if prompts is not None:
        before, own = (prompts[0][prompts[2]], prompts[1][prompts[2]]), keys.shape[3]
        lengths = prompts[3][prompts[2]]
        keys, values = torch.cat([before[0], keys], 3), torch.cat([before[1], values], 2)
        column = torch.arange(keys.shape[3])
        width = keys.shape[3] - own
        hidden = torch.where(column < width, column >= lengths[:, None], column - width >= stops[:, None])
    else:
        hidden = torch.arange(keys.shape[3]) >= stops[:, None]
    group = q.shape[1] // keys.shape[1]
    scores = torch.einsum("bhd,bhdt->bht", q, keys.repeat_interleave(group, 1)) * q.shape[2] ** -0.5
    weights = scores.masked_fill(hidden[:, None], -math.inf).softmax(-1)
    return torch.einsum("bht,bhtd->bhd", weights, values.repeat_interleave(group, 1))


@pytest.mark.integration
@pytest.mark.parametrize(
    "sampling",
    [Sampling(MAX), Sampling(MAX, 0.7, 0.9, 6), Sampling(MAX, 0.7, 0.9, 6, max_kept=4), Sampling(MAX, 0.0)],
)
@pytest.mark.parametrize("max_rows", [4, 1024])
def test_steps_replayed_as_graphs_are_the_steps(
    sampling: Sampling, max_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU, which has no graphs: that a step can be one, and that replays give the same responses."""
    from verizero.pipeline.models.kernels import attention

    monkeypatch.setattr(attention, "attend", attend_whole)
    requests = [Request((i, 3), tuple(range(100 * i, 100 * i + 3))) for i in range(2, 9)]
    wanted = engine_of("qwen3 wide heads").generate(requests, sampling)
    engine = engine_of("qwen3 wide heads", max_rows)
    engine._decoder = Decoder(engine.model, ON_GPU)
    engine._decoder.by_kernel = True
    engine.read_every = 8
    replays = Replays()
    engine.record = replays.record
    answers = engine.generate(requests, sampling)
    assert replays.replayed >= 5
    for ours, theirs in zip(answers, wanted, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            same(a, b)
            assert a.kept == b.kept
