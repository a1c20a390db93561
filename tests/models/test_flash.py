"""Flash attention through transformers' own call: its numbers, its choice, and what is refused.

A module in the place of the package has a slow double of its function. All between is transformers' code.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import modeling_flash_attention_utils as of_transformers
from transformers.integrations import hub_kernels

from tests.models.families import build, tiny
from tests.models.test_runs import batch, one_by_one, ours, worst
from tests.oracles.varlen import flash_attn_varlen_func, varlen_attn
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models import flash, kernels, varlen
from verizero.pipeline.models.forward import can_pack
from verizero.pipeline.models.runs import Runs, states

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
HUB = "kernels-community/flash-attn3"
Function = Callable[..., Any]


def without(name: str) -> Function:
    """An older function, which has no argument of that name."""
    signature = inspect.signature(flash_attn_varlen_func)

    def function(*tensors: Any, **named: Any) -> Any:
        assert name not in named
        return flash_attn_varlen_func(*tensors, **named)

    rest = [p for p in signature.parameters.values() if p.name != name]
    function.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
    return function


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Function], None]]:
    """Put a function in the place of flash-attn 2's, as if the package were installed."""
    monkeypatch.delenv(flash.LOCAL_KERNELS, raising=False)
    monkeypatch.delenv(kernels.VARIABLE, raising=False)
    monkeypatch.setattr(kernels, "has_triton", lambda: True)
    monkeypatch.setattr(of_transformers, "_loaded_implementation", None)
    varlen._kernel_for.cache_clear()

    def installing(function: Function) -> None:
        module, padding = ModuleType("flash_attn"), ModuleType("flash_attn.bert_padding")
        for part in ("flash_attn_func", "flash_attn_with_kvcache"):
            setattr(module, part, None)
        padding.pad_input = padding.unpad_input = None  # type: ignore[attr-defined]
        module.flash_attn_varlen_func = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "flash_attn", module)
        monkeypatch.setitem(sys.modules, "flash_attn.bert_padding", padding)
        monkeypatch.setattr(of_transformers, "is_flash_attn_2_available", lambda: True)

    yield installing
    varlen._kernel_for.cache_clear()


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried on a GPU in half precision is tried here in float32, and torch's own kernel is a double."""
    real = varlen.gap
    monkeypatch.setattr(varlen, "gap", lambda device, dtype, size, kernel: real(CPU, torch.float32, size, kernel))
    monkeypatch.setattr(varlen, "of_torch", lambda: varlen_attn)


@pytest.mark.parametrize("head_size", [8, 64, 256])
def test_its_attention_and_gradients_are_torchs(head_size: int, install: Callable[[Function], None]) -> None:
    """Pieces alone and behind a prompt that they share, queries that share keys, with a window and without."""
    install(flash_attn_varlen_func)
    assert flash.installed() == "flash_attention_2"
    assert varlen.gap(CPU, torch.float32, head_size, flash.varlen_attn("flash_attention_2")) < 1e-5


def test_a_kernel_of_the_hub_is_called_alike(
    install: Callable[[Function], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("a kernel")
    module.flash_attn_varlen_func = flash_attn_varlen_func  # type: ignore[attr-defined]
    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda: True)
    monkeypatch.setattr(hub_kernels, "get_kernel", lambda name, **_: {HUB: module}[name])
    assert varlen.gap(CPU, torch.float32, 64, flash.varlen_attn(HUB)) < 1e-5


@pytest.mark.parametrize("name", ["qwen2 tied", "mistral with a sliding window", "llama narrow heads"])
def test_rows_packed_by_it_are_rows_alone(
    name: str, install: Callable[[Function], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(flash_attn_varlen_func)
    asked = []

    def kernel_for(device: torch.device, dtype: torch.dtype, head_size: int) -> Any:
        asked.append(head_size)
        return flash.varlen_attn("flash_attention_2")

    monkeypatch.setattr(varlen, "kernel_for", kernel_for)
    model, data = tiny(name, dtype=torch.float64), batch()
    values, gradients = ours(model, data)
    wanted_values, wanted = one_by_one(model, *data)
    torch.testing.assert_close(values, wanted_values, rtol=1e-9, atol=1e-9)
    assert worst(gradients, wanted) <= 1e-6
    assert set(asked) == {4 if name == "llama narrow heads" else 8}


@pytest.mark.parametrize(
    ("function", "variable", "is_deterministic", "taken", "why"),
    [
        (None, "auto", True, "torch", None),
        (flash_attn_varlen_func, "auto", True, "flash", None),
        (flash_attn_varlen_func, "off", True, "torch", None),
        (without("window_size"), "auto", True, "torch", "it differs from torch by"),
        (without("deterministic"), "auto", True, "torch", r"train\.deterministic is true"),
        (without("deterministic"), "auto", False, "flash", None),
    ],
)
def test_it_is_taken_where_it_is_installed_and_right(
    function: Function | None,
    variable: str,
    is_deterministic: bool,
    taken: str,
    why: str | None,
    install: Callable[[Function], None],
    on_the_cpu: None,
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
) -> None:
    if function is not None:
        install(function)
    monkeypatch.setenv(kernels.VARIABLE, variable)
    torch.use_deterministic_algorithms(is_deterministic, warn_only=True)
    try:
        found = varlen.kernel_for(CUDA, torch.bfloat16, 64)
    finally:
        torch.use_deterministic_algorithms(False)
    assert found is not None
    assert (found is varlen_attn) == (taken == "torch")
    said = [str(w.message) for w in recwarn if "is not used" in str(w.message)]
    assert len(said) == (why is not None)
    assert why is None or re.search(why, said[0])


def test_where_none_is_right_rows_are_not_packed_by_a_kernel(
    install: Callable[[Function], None], on_the_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(lambda q, *_, **named: q)
    monkeypatch.setattr(varlen, "of_torch", lambda: lambda q, *_, **named: 2 * q)
    with pytest.warns(UserWarning, match="attention") as said:
        assert varlen.kernel_for(CUDA, torch.float16, 64) is None
    assert len(said) == 2
    assert "attention by flash_attention_2" in str(said[0].message)


@pytest.mark.parametrize("is_deterministic", [True, False])
def test_its_backward_repeats_its_bytes_where_torchs_must(
    is_deterministic: bool, install: Callable[[Function], None]
) -> None:
    asked = set()

    @functools.wraps(flash_attn_varlen_func)
    def function(*tensors: Any, **named: Any) -> Any:
        asked.add(named["deterministic"])
        return flash_attn_varlen_func(*tensors, **named)

    install(function)
    torch.use_deterministic_algorithms(is_deterministic, warn_only=True)
    try:
        varlen.gap(CPU, torch.float32, 8, flash.varlen_attn("flash_attention_2"))
    finally:
        torch.use_deterministic_algorithms(False)
    assert asked == {is_deterministic}


def test_scores_that_are_bent_are_refused_on_every_device() -> None:
    """Flash attention could bend them, but rows are packed everywhere or nowhere."""
    model = build("gemma2", {"head_dim": 8, "final_logit_softcapping": None, "attn_logit_softcapping": 5.0})
    ids, where, prompts = batch()
    layout = Runs.of(prompts, where.shape[1])
    with pytest.raises(ConfigError, match="the attention has softcap"):
        states(model, ids.flatten()[layout.source], layout)
    assert not can_pack(model)


def test_which_one_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flash.installed({}) is None, "no test machine has one"
    for version in (2, 3, 4):
        monkeypatch.setattr(of_transformers, f"is_flash_attn_{version}_available", lambda: True)
        assert flash.installed({}) == f"flash_attention_{version}"
    local = "kernels-community/relu=/a:kernels-community/flash-attn2=/b:kernels-community/flash-attn3=/c"
    assert flash.installed({flash.LOCAL_KERNELS: local}) == "kernels-community/flash-attn3"
    assert flash.installed({flash.LOCAL_KERNELS: "kernels-community/relu=/a"}) == "flash_attention_4"
