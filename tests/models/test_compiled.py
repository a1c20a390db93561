"""Compiled blocks: the same numbers, names, files and copies, and the way back where a compiler fails.

torch compiles with the C++ compiler here; on a GPU the same calls make Triton's kernels.
"""

import copy
import faulthandler
import functools
import os
import warnings
from itertools import count
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load, save

from tests.models.families import build, tiny
from tests.train.batches import distance, groups_of, longer, parts_of, settings_of
from tests.warm import warm
from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models import compiled
from verizero.pipeline.models.compiled import Compiling, compile_blocks, is_compiled
from verizero.pipeline.models.load import recompute_activations
from verizero.pipeline.train.backend import Backend, compiling_of
from verizero.pipeline.train.ranks import ALONE
from verizero.pipeline.train.step import update

SHAPE = {"num_key_value_heads": 1, "num_attention_heads": 2, "hidden_size": 16, "head_dim": 8, "num_hidden_layers": 1}
AS_PACKED = {"packing": "on", "micro_batch_tokens": 600}
SMOOTH = OptimizerConfig(learning_rate=0.1, max_grad_norm=None, betas=(0.0, 0.0), eps=1.0)
"""One step of this AdamW moves a weight by learning_rate * g / (|g| + 1), so that rounding stays small."""


def model_of(seed: int = 0) -> Any:
    return build("qwen3", SHAPE, seed)


def trained(backend: Any, kl_coef: float = 0.0) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Weights and metrics after two updates."""
    parts = parts_of("grpo", kl_coef=kl_coef)
    backend.start(SMOOTH, 10)
    backend.refresh_reference()
    for step in range(2):
        metrics = update(backend, parts, longer(groups_of(4)), settings_of(parts, 600, step=step))
    return {k: v.detach().clone() for k, v in backend.whole_model().state_dict().items()}, metrics


@functools.cache
def traced(plain: Any, is_deterministic: bool) -> Any:
    """Code as torch traces it, without the compiler behind that, which takes a minute."""
    return torch.compile(plain, dynamic=False, backend="aot_eager")


def end_of(mode: str, how: str) -> tuple[bytes, dict[str, float], int, set[bool]]:
    """Weights (as safetensors) and metrics after two updates, the number of traced calls, and the compiler's modes.

    A mode is True with gradients. Call it in a fork: torch's compiler changes the process, and what other tests left
    there must not change the code.
    """
    faulthandler.enable()  # where compiled code ends the process, the error shows what it did
    num_calls, compiler, whole = count(), set(), compiled._compiled

    def seen(forward, is_deterministic):
        next(num_calls)
        quick = traced(forward, is_deterministic)

        def packed_by_the_compiler(*args, **named):
            if named.get("runs") is None:
                return quick(*args, **named)
            compiler.add(torch.is_grad_enabled())
            return whole(forward, is_deterministic)(*args, **named)

        # Packed rows alone, as on a GPU: each shape more costs the compiler seconds.
        return packed_by_the_compiler if how == "inductor" else quick

    compiled._compiled = seen
    config = TrainConfig(compile=mode, gradient_checkpointing="recomputed" in how, **AS_PACKED)
    weights, metrics = trained(Backend(model_of(), ranks=ALONE, config=config))
    return save(weights), metrics, next(num_calls), compiler


@pytest.mark.run  # torch's compiler traces all blocks, forward and backward
@pytest.mark.nightly
@pytest.mark.parametrize("how", ["inductor", "traced", "traced, recomputed"])
def test_updates_are_those_without_compilation(how):
    weights, metrics, num_calls, compiler = warm().call(end_of, "on", how)
    plain_weights, plain_metrics, no_calls, _ = warm().call(end_of, "off", how)
    assert num_calls > 1
    assert no_calls == 0
    assert compiler == ({True, False} if how == "inductor" else set()), "with gradients, and without"
    assert distance(load(weights), load(plain_weights)) < 1e-5
    assert distance(load(weights), model_of().state_dict()) > 1e-3
    assert metrics == pytest.approx(plain_metrics, rel=1e-4, abs=1e-5)
    assert "compile/fallbacks" not in metrics


@pytest.mark.run
def test_names_files_and_copies_stay(tmp_path, monkeypatch):
    """A copy computes with its own weights, not with those of the model that it was copied from."""
    monkeypatch.setattr(compiled, "_compiled", traced)
    model, ids = model_of(), torch.arange(2, 12)[None]
    names = list(model.state_dict())
    wanted = model(input_ids=ids).logits
    compile_blocks(model, Compiling("on"))
    recompute_activations(model)
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model(input_ids=ids, use_cache=False).logits, wanted, rtol=1e-4, atol=1e-5)
    model.save_pretrained(tmp_path)
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert list(read.state_dict()) == names
    torch.testing.assert_close(read(input_ids=ids).logits, wanted, rtol=1e-5, atol=1e-6)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
        torch.testing.assert_close(other(input_ids=ids, use_cache=False).logits, wanted, rtol=1e-4, atol=1e-5)
        assert float(model(input_ids=ids, use_cache=False).logits.abs().max()) == 0.0


def failing(error: Exception) -> Any:
    def fails(*args, **named):
        raise error

    return lambda plain, is_deterministic: fails


broken = failing(OSError("no compiler"))


def wrong(plain: Any, is_deterministic: bool) -> Any:
    return lambda *args, **named: 1.01 * plain(*args, **named)


@pytest.mark.parametrize(
    ("code", "why"), [(broken, "OSError: no compiler"), (wrong, "a compiled block differs by 0.0")]
)
def test_what_fails_or_differs_is_not_used_and_is_counted(code, why, monkeypatch):
    monkeypatch.setattr(compiled, "_compiled", code)
    # As packed rows on a GPU.
    monkeypatch.setattr(Compiling, "may_compile", lambda self, named: self.is_proved is not False)
    ends = []
    for auto in (True, False):
        backend = Backend(model_of(), ranks=ALONE, config=TrainConfig(compile="off", **AS_PACKED))
        if auto:
            backend.compiling = Compiling("auto")
            compile_blocks(backend.model, backend.compiling)
            with pytest.warns(UserWarning, match=why):
                ends.append(trained(backend, 0.05))
        else:
            ends.append(trained(backend, 0.05))
    assert ends[0][1].pop("compile/fallbacks") == 2, "the policy, and its reference"
    # Without compilation the blocks for the CPU take their place, which round differently.
    assert ends[0][1] == pytest.approx(ends[1][1], rel=1e-4, abs=1e-5)
    assert distance(ends[0][0], ends[1][0]) < 1e-5


def test_a_gpu_that_is_full_is_no_reason_to_compute_without_compilation(monkeypatch):
    monkeypatch.setattr(compiled, "_compiled", failing(torch.OutOfMemoryError("CUDA out of memory")))
    model, compiling = model_of(), Compiling("on")
    compile_blocks(model, compiling)
    recompute_activations(model)
    with pytest.raises(torch.OutOfMemoryError):
        model(input_ids=torch.arange(2, 12)[None], use_cache=False)
    monkeypatch.setattr(compiled, "_compiled", lambda plain, _: plain)
    assert not is_compiled(model)
    model(input_ids=torch.arange(2, 12)[None], use_cache=False)
    assert is_compiled(model)
    assert compiling.fallbacks == []


def test_on_is_an_error_where_it_does_not_work(monkeypatch):
    monkeypatch.setattr(compiled, "_compiled", broken)
    model = model_of()
    compile_blocks(model, Compiling("on"))
    with pytest.raises(ConfigError, match=r"train\.compile=on: OSError.*set train\.compile: auto"):
        model(input_ids=torch.arange(2, 12)[None], use_cache=False)
    with pytest.raises(ValueError, match=r"train\.compile=on with train\.backend=deepspeed"):
        TrainConfig(compile="on", backend="deepspeed", zero=1)


def test_where_blocks_are_compiled():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert compiling_of(TrainConfig(), cpu) is None
    assert compiling_of(TrainConfig(compile="off"), cuda) is None
    auto = compiling_of(TrainConfig(deterministic=False), cuda)
    assert auto == Compiling("auto")
    assert not auto.may_compile({}), "padded rows have a new shape each time"
    assert not Compiling("on").may_compile({"past_key_values": object()}), "generation"
    assert Compiling("on").may_compile({})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = tiny("llama")
        compile_blocks(model, auto)
        model(input_ids=torch.arange(2, 12)[None])  # of no packed rows: nothing is tried


@pytest.mark.parametrize("variable", [None, "3"])
def test_threads_for_compiling_are_as_before_a_library_set_them(variable, monkeypatch):
    import torch._inductor.config as inductor

    if variable is None:
        monkeypatch.delenv(compiled.COMPILE_THREADS, raising=False)
    else:
        monkeypatch.setenv(compiled.COMPILE_THREADS, variable)
    with inductor.patch(compile_threads=7):
        with compiled.own_compile_threads():
            os.environ[compiled.COMPILE_THREADS] = "1"
            inductor.compile_threads = 1
        assert os.environ.get(compiled.COMPILE_THREADS) == variable
        assert inductor.compile_threads == 7
