"""The machine that parts run on, the most that it does, and the models and rows that they use."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")
GIB = 1 << 30
CHARACTERS = "0123456789+-*/=() abcdefghijklmnopqrstuvwxyz<>?.,:\nABCDEFGHIJK"
SMALL: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "vocab_size": 64,
}
"""A model about as large as the demo's."""


@dataclass(frozen=True)
class Machine:
    """A GPU; or, for a dry run, the CPU with small forms of everything."""

    dry: bool
    out: Path
    """Folder for files that parts write."""

    @property
    def device(self) -> torch.device:
        """The device that is measured."""
        return torch.device("cpu" if self.dry else "cuda")

    def pick(self, real: T, dry: T) -> T:
        """Return the first on a GPU, the second in a dry run."""
        return dry if self.dry else real

    def ceilings(self) -> Ceilings:
        """Measure the device's ceilings, in less than a second."""
        return ceilings(self.device, self.pick(GIB, 1 << 20), self.pick(8192, 128))

    def shapes(self, *names: str) -> list[str]:
        """Return the names of models; in a dry run a single small one takes their place."""
        return self.pick(list(names), ["small"])

    def empty(self) -> None:
        """Give memory back, also that of earlier models, which only a collection frees; and forget peaks."""
        if not self.dry:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def allocated_gib(self) -> float | None:
        """Return the memory of live tensors; None in a dry run."""
        return None if self.dry else torch.cuda.memory_allocated() / GIB

    def peak_gib(self) -> float | None:
        """Return the most memory of tensors since `empty`; None in a dry run."""
        return None if self.dry else torch.cuda.max_memory_allocated() / GIB


def check(name: str, measured: float, *, at_most: float | None = None, at_least: float | None = None) -> dict[str, Any]:
    """Return a row that says whether a number is within its limits; one that is not fails its part."""
    holds = (at_most is None or measured <= at_most) and (at_least is None or measured >= at_least)
    limits = {k: v for k, v in (("at_most", at_most), ("at_least", at_least)) if v is not None}
    return {"check": name, "measured": measured, **limits, "holds": holds}


def settings_of(name: str) -> tuple[str, dict[str, Any]]:
    """Return the architecture and the sizes of a model by its name, e.g. Qwen/Qwen3-0.6B, without a download."""
    if name == "small":
        return "qwen2", SMALL
    from verizero.pipeline.plan.shape import SHAPES

    shape = SHAPES[name]
    return "qwen3" if shape.qk_norm else "qwen2", {
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "tie_word_embeddings": shape.tied,
        "max_position_embeddings": 32768,
    }


def made(name: str, dtype: torch.dtype, device: torch.device | str, seed: int = 0) -> Any:
    """Return the model of that name with random weights, made on the device itself."""
    import transformers

    from verizero.pipeline.models.load import ready

    model_type, sizes = settings_of(name)
    torch.manual_seed(seed)
    with torch.device(device):
        settings: Any = transformers.AutoConfig.for_model(model_type, **sizes, pad_token_id=0, eos_token_id=1)
        model = transformers.AutoModelForCausalLM.from_config(settings, dtype=dtype)
    return ready(model).eval()


def learner(model: Any, learning_rate: float = 1e-4, eps: float = 1e-8, **train: Any) -> Any:
    """Return a backend around the model with a fresh optimiser; `train`: fields of a recipe's `train`."""
    from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
    from verizero.pipeline.train.backend import Backend

    backend = Backend(model, TrainConfig(**train))
    backend.start(OptimizerConfig(learning_rate=learning_rate, eps=eps), 100)
    return backend


def groups_of(num: int, size: int, prompt: int, response: int, vocab: int, seed: int = 0) -> list[Any]:
    """Return groups of random responses of up to `response` tokens (half of them of that length), half of them right.

    Their log-probs are about those of a policy without training.
    """
    import math

    from verizero.pipeline.types import Group, Prompt, Rollout, ScoredRollout, Verdict

    draw, groups = random.Random(seed), []
    for g in range(num):
        ids = tuple(draw.choices(range(2, vocab), k=prompt))
        members = []
        for k in range(size):
            length = response if k % 2 == 0 else draw.randint(max(1, response // 2), response)
            tokens = tuple(draw.choices(range(2, vocab), k=length))
            logprobs = tuple(-math.log(vocab) + draw.uniform(-0.1, 0.1) for _ in tokens)
            finish = "length" if length == response else "stop"
            rollout = Rollout(f"p{g}", k, ids, tokens, logprobs, "", finish, 0)
            reward = float(k == 0 or (k > 1 and draw.random() < 0.5))
            members.append(ScoredRollout(rollout, Verdict("graded", reward), reward, (reward, draw.random())))
        groups.append(Group(Prompt(f"p{g}", "?", "exact", "x"), tuple(members), greedy_reward=float(g % 2)))
    return groups


def rows_of(groups: list[Any]) -> list[tuple[int, int]]:
    """Return the tokens of each row, prompt and response together, and those of its response."""
    rollouts = [m.rollout for g in groups for m in g.members]
    return [(len(r.prompt_ids) + len(r.response_ids), len(r.response_ids)) for r in rollouts]


WITHOUT_REFERENCE = {"kl_coef": 0.0}


def train_once(
    backend: Any,
    groups: list[Any],
    micro_batch_tokens: int,
    algorithm: str = "grpo",
    params: Mapping[str, Any] = WITHOUT_REFERENCE,
) -> Any:
    """Take one update of the algorithm on the groups, and return its metrics."""
    from verizero.pipeline.algorithms.base import load_algorithm
    from verizero.pipeline.train.step import Settings, update

    longest = max(len(m.rollout.response_ids) for g in groups for m in g.members)
    parts = load_algorithm(algorithm, dict(params))[1].resolve(longest)
    settings = Settings(0, 1.0, micro_batch_tokens, 0, longest, step=10)
    return update(backend, parts, groups, settings)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The most that a device was measured to do."""

    bytes_per_s: float
    """The rate of a copy, bytes read and bytes written together."""
    flops: dict[torch.dtype, float]
    """Operations per second of a large matrix product, by the type of its numbers."""


def ceilings(device: torch.device, copy_bytes: int = 1 << 30, size: int = 8192, times: int = 10) -> Ceilings:
    """Measure a copy of `copy_bytes` and products of [size, size] matrices in bfloat16 and float32.

    float32 products are without TF32, as torch computes them by default.
    """
    source = torch.empty(copy_bytes // 4, device=device)
    target = torch.empty_like(source)
    copied = 2 * 4 * source.numel() / seconds(lambda: target.copy_(source), device, times)
    flops = {}
    for dtype in (torch.bfloat16, torch.float32):
        a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        flops[dtype] = 2 * size**3 / seconds(lambda a=a, b=b: a @ b, device, times)
    return Ceilings(copied, flops)


def seconds(work: Any, device: torch.device, times: int = 1, warm: int = 1) -> float:
    """Return the mean seconds of a call of `work` over `times` calls, after `warm` calls that are not counted.

    On a GPU it waits for the kernels before and after: without that, only their launch is timed.
    """
    for _ in range(warm):
        work()
    wait(device)
    begin = time.perf_counter()
    for _ in range(times):
        work()
    wait(device)
    return (time.perf_counter() - begin) / times


def wait(device: torch.device) -> None:
    """Return once the device has done all that was asked of it; the CPU has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def weight_bytes(model: Any) -> int:
    """Return the bytes of the model's weights, tied ones once."""
    return sum(p.numel() * p.element_size() for p in model.parameters())
