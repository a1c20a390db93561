"""One rank of several that train with DeepSpeed at every ZeRO stage, or FSDP; prints how far it ends from torch alone.

Run by `test_deepspeed_backend.py` as `python -m tests.train.zero_rank FOLDER`, by `test_fsdp_backend.py` with a second
word "fsdp"; the place is in RANK and WORLD_SIZE.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch._dynamo.utils import counters

from tests.train.batches import groups_of, longer, parts_of, settings_of, two_layers, without_tree
from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.errors import NonFiniteError
from verizero.pipeline.models import compiled
from verizero.pipeline.models.load import DTYPES, load_model
from verizero.pipeline.models.lora import Adapted
from verizero.pipeline.models.unloaded import model_on_meta
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.deepspeed_backend import DeepSpeedBackend
from verizero.pipeline.train.fsdp_backend import FsdpBackend
from verizero.pipeline.train.ranks import ALONE, Ranks, join, leave
from verizero.pipeline.train.step import update
from verizero.pipeline.train.torch_backend import TorchBackend
from verizero.pipeline.train.trees import packs_rows

T = TypeVar("T")
OPTIMIZER = OptimizerConfig(learning_rate=1e-3, weight_decay=0.1, max_grad_norm=0.5, schedule="linear", eps=1e-5)
"""With the default eps of 1e-8 a gradient near zero, which is rounding alone, would make a step of full size."""
NUM_STEPS, SAVED_AT = 2, 1
HALVES: dict[str, dict[str, Any]] = {
    "half zero1": {"zero": 1},
    "half zero2": {"zero": 2},
    "half zero3": {"zero": 3},
    "half offload": {"zero": 1, "offload": "optimizer"},
}
FSDP: dict[str, dict[str, Any]] = {
    "plain": {},
    "less memory": {"gradient_checkpointing": True, "logits_chunk_tokens": 3},
    "offload": {"offload": "optimizer"},
}
OF_SIZE = {1: ("plain",), 2: tuple(FSDP), 4: ("plain", "offload")}
"""What as many ranks try: how a block is computed is the same on each, what is divided is not."""
IN_BFLOAT16 = (1, 2)


def joined() -> Ranks:
    """The group of ranks that this process belongs to."""
    torch.set_num_threads(1)
    torch.set_printoptions(threshold=1, edgeitems=1)  # under ZeRO 3 DeepSpeed makes a text of each weight, unread
    return join(120)


TURNS = itertools.count()


def once(ranks: Ranks, compute: Callable[[], T]) -> T:
    """Return on all ranks what `compute` returns on one; the next call takes the next rank. All ranks must call it."""
    turn = next(TURNS) % ranks.size
    answers: list[Any] = ranks.gather(compute() if turn == ranks.rank else None)
    found: T = answers[turn]
    return found


def steps(backend: Backend, first: int, last: int) -> list[dict[str, float]]:
    """The metrics of updates first … last - 1, each on groups of its own. Prompts of some are long, so are shared."""
    parts = parts_of("grpo", kl_coef=0.05)
    groups = [groups_of(seed=s) if s % 2 else longer(groups_of(seed=s)) for s in range(last)]
    return [update(backend, parts, groups[s], settings_of(parts, 80, step=s)) for s in range(first, last)]


def begun(backend: Backend) -> Backend:
    backend.start(OPTIMIZER, NUM_STEPS)
    backend.refresh_reference()
    return backend


def weights(backend: Backend) -> dict[str, torch.Tensor]:
    return {n: p.detach().float().clone() for n, p in backend.whole_model().named_parameters()}


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return max(float((a[n] - b[n]).abs().max()) for n in b)


def divided(
    config: dict[str, Any], model: Any, ranks: Ranks, adapted: Adapted | None = None
) -> DeepSpeedBackend | FsdpBackend:
    """`config` has the fields of `train`; its backend is DeepSpeed if it names none."""
    train = TrainConfig(**{"backend": "deepspeed", "device": "cpu", **config})
    if train.backend == "fsdp":
        return FsdpBackend(model, train, ranks, adapted, device=torch.device("cpu"))
    return DeepSpeedBackend(model, train, ranks, adapted)


def save(model: Any, folder: Path) -> None:
    model.save_pretrained(folder)


def resumed(
    config: dict[str, Any], folder: Path, ranks: Ranks, dtype: str = "float32"
) -> DeepSpeedBackend | FsdpBackend:
    model = model_on_meta(str(folder / "model"), DTYPES[dtype]) if config.get("backend") == "fsdp" else None
    backend = divided(config, model or load_model(str(folder / "model"), dtype), ranks)
    backend.load(folder)
    return backend


def compare(config: dict[str, Any], ranks: Ranks, folder: Path, wanted: Any) -> dict[str, float]:
    """Distances: weights and metrics from torch's after all steps; a resumed run's from an unbroken one."""
    torch_weights, torch_metrics = wanted
    backend = begun(divided(config, two_layers(), ranks))
    seen = steps(backend, 0, SAVED_AT)
    folder.mkdir(parents=True, exist_ok=True)
    ranks.barrier()
    rest = backend.save(folder, save, in_background=True)
    seen += steps(backend, SAVED_AT, NUM_STEPS)
    if rest is not None:
        rest()
    ranks.barrier()
    ends = weights(backend)
    again = resumed(config, folder, ranks)
    read = weights(again)
    steps(again, SAVED_AT, NUM_STEPS)
    before = weights(again)
    return {
        "weights": distance(ends, torch_weights),
        "metrics": max(abs(a[k] - b[k]) for a, b in zip(seen, torch_metrics, strict=True) for k in without_tree(b)),
        "resumed": distance(before, ends),
        "refused": refuses(again, before),
        "saved": distance(saved(folder), read),
    }


def refuses(backend: Any, before: dict[str, torch.Tensor]) -> float:
    """How far the weights moved by an update whose gradient is not finite; infinite if it was not refused."""
    ids = torch.tensor([[3, 4, 5, 6]])
    where = torch.tensor([[False, True, True, True]])
    logprobs, _ = backend.logprobs(ids, where, 1.0)
    backend.backward(logprobs.sum() * math.nan)
    try:
        backend.step()
    except NonFiniteError:
        backend._whole_is_fresh = False
        return distance(weights(backend), before)
    return math.inf


def saved(folder: Path) -> dict[str, torch.Tensor]:
    return {n: p.detach() for n, p in load_model(str(folder / "model")).named_parameters()}


def alone(config: TrainConfig) -> tuple[dict[str, torch.Tensor], list[dict[str, float]]]:
    """Weights and metrics of torch alone after all steps."""
    backend = begun(TorchBackend(two_layers(), ALONE, config))
    metrics = steps(backend, 0, NUM_STEPS)
    return weights(backend), metrics


def main(root: Path) -> dict[str, Any]:
    ranks = joined()
    wanted = once(ranks, lambda: alone(TrainConfig()))
    together = begun(TorchBackend(copy.deepcopy(two_layers()), ranks))
    steps(together, 0, NUM_STEPS)
    found: dict[str, Any] = {"torch": {"weights": distance(weights(together), wanted[0])}}
    for zero in (0, 1, 2, 3):
        found[f"zero{zero}"] = compare({"zero": zero}, ranks, root / f"zero{zero}", wanted)
    found["offload"] = compare({"zero": 3, "offload": "all"}, ranks, root / "offload", wanted)
    found["checkpointing"] = compare({"zero": 2, "gradient_checkpointing": True}, ranks, root / "cheap", wanted)
    found["bfloat16"] = halves(ranks, root, wanted[0], HALVES)
    leave()
    return found


def fsdp(root: Path) -> dict[str, Any]:
    """What `main` finds, of FSDP."""
    ranks = joined()
    wanted = once(ranks, lambda: alone(TrainConfig(packing="off")))
    found: dict[str, Any] = {}
    for name in OF_SIZE[ranks.size]:
        found[name] = compare({"backend": "fsdp", **FSDP[name]}, ranks, root / name, wanted)
    if ranks.size in IN_BFLOAT16:
        found["bfloat16"] = halves(ranks, root, wanted[0], {"half fsdp": {"backend": "fsdp"}})
        found["on a GPU"] = packed_and_compiled(ranks, root, wanted[0])
    leave()
    return found


def halves(
    ranks: Ranks, root: Path, wanted: dict[str, torch.Tensor], configs: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """In bfloat16: how far from torch in float32, a resumed run from an unbroken one, and a sum of gradients."""
    start = root / "half"
    save(two_layers(), start)  # transformers writes on rank 0 alone
    ranks.barrier()
    found = {}
    for name, config in configs.items():
        backend = begun(divided(config, load_model(str(start), "bfloat16"), ranks))
        folder = root / name
        steps(backend, 0, SAVED_AT)
        folder.mkdir(exist_ok=True)
        ranks.barrier()
        backend.save(folder, save)
        ranks.barrier()
        steps(backend, SAVED_AT, NUM_STEPS)
        again = resumed(config, folder, ranks, "bfloat16")
        steps(again, SAVED_AT, NUM_STEPS)
        ends = weights(backend)
        found[name] = {
            "weights": distance(ends, wanted),
            "resumed": distance(weights(again), ends),
            "sum": sum_of_small_gradients(begun(divided(config, load_model(str(start), "bfloat16"), ranks))),
        }
    return found


def packed_and_compiled(ranks: Ranks, root: Path, wanted: dict[str, torch.Tensor]) -> dict[str, Any]:
    """In bfloat16 as on a GPU: rows are packed and blocks compiled, here by a compiler that makes no machine code."""
    compiled._compiled = lambda plain, _: torch.compile(plain, dynamic=False, backend="aot_eager")
    config = {"backend": "fsdp", "packing": "on", "compile": "on"}
    backend = begun(divided(config, load_model(str(root / "half"), "bfloat16"), ranks))
    counters.clear()
    steps(backend, 0, NUM_STEPS)
    return {
        "packed": packs_rows(backend),
        "compiled": counters["stats"]["unique_graphs"],
        "engine": str(backend.dtype),
        "weights": distance(weights(backend), wanted),
    }


def sum_of_small_gradients(backend: Any) -> float:
    """The norm of a gradient of 1 and 32 of 1/512 each, over all ranks; bfloat16 has no number between 1 and 1 + 1/128.

    Exactly it is 1 + 32/512.
    """
    share = 1.0 / backend.ranks.size
    width = backend.whole_model().config.hidden_size
    # RMSNorm of a row with one number other than 0 is the root of its width, times that number's weight.
    row = torch.nn.functional.one_hot(torch.tensor(0), width).to(torch.bfloat16)
    for factor in (1.0, *([1 / 512] * 32)):
        normed = backend.compute(lambda model: model.model.norm(4 * row))[0]
        backend.backward(normed * (factor * share / width**0.5))
    norm: float = backend.step()["grad_norm"]
    return norm


def alone_again(root: Path) -> dict[str, Any]:
    """One rank resumes from what two wrote, and trains to the end of the run."""
    torch.set_num_threads(1)
    wanted, _ = alone(TrainConfig())
    found = {}
    configs: dict[str, dict[str, Any]] = {f"zero{zero}": {"zero": zero} for zero in (1, 2, 3)}
    for name, config in {"plain": {"backend": "fsdp"}}.items() if "fsdp" in sys.argv else configs.items():
        backend = resumed(config, root / name, ALONE)
        steps(backend, SAVED_AT, NUM_STEPS)
        found[name] = distance(weights(backend), wanted)
    return found


if __name__ == "__main__":
    work = alone_again if "alone" in sys.argv else fsdp if "fsdp" in sys.argv else main
    print("found", json.dumps(work(Path(sys.argv[1]))))
