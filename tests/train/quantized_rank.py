"""One rank of two: adapters on a base in bits that FSDP divides, compared with torch alone.

python -m tests.train.quantized_rank FOLDER nf4|gguf
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from tests.commands.test_plan import recipe_of
from tests.models.gguf_files import tiny_llama, write_gguf
from tests.models.test_quantized import computes_what_the_trainer_does
from tests.train.zero_rank import NUM_STEPS, SAVED_AT, begun, distance, joined, once, save, steps, weights
from verizero.pipeline.commands.plan.memory import resident
from verizero.pipeline.commands.plan.shape import from_settings
from verizero.pipeline.config.sections import TrainConfig
from verizero.pipeline.models.gguf_file import model_folder
from verizero.pipeline.models.load import load_model
from verizero.pipeline.models.lora import Adapted, is_factor
from verizero.pipeline.models.quantized import num_weights
from verizero.pipeline.models.unloaded import model_on_meta
from verizero.pipeline.rollout.torch_engine import TorchEngine
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.fsdp_backend import FsdpBackend
from verizero.pipeline.train.ranks import Ranks, leave
from verizero.pipeline.train.torch_backend import TorchBackend

Found = dict[str, Any]


def adapted(kind: str, file: Path, in_files: bool = False) -> Adapted:
    """Adapters on a model that is whole, or has its weights in files."""
    folder = model_folder(str(file), file.parent) if kind == "gguf" else str(file.parents[1] / "start")
    model = model_on_meta(folder, torch.float32) if in_files else load_model(folder)
    return Adapted(model, 3, 6.0, (), 5, quantize_on="cpu", file=file if kind == "gguf" else None)


def divided(a: Adapted, ranks: Ranks, **changes: Any) -> FsdpBackend:
    train = TrainConfig(backend="fsdp", device="cpu", **changes)
    return FsdpBackend(a.model, train, ranks, a, "offload" not in changes, torch.device("cpu"))


def published(backend: Backend) -> dict[str, torch.Tensor]:
    """What vLLM gets: the base's numbers and the adapters."""
    found = backend.engine_adapters(True)
    assert found is not None
    both: list[Iterable[tuple[str, torch.Tensor]]] = [found.base(), found.factors()]
    return {name: tensor.clone() for part in both for name, tensor in part}


def found_by_torch(make: Callable[[], Adapted]) -> tuple[list[dict[str, float]], dict[str, torch.Tensor], Found]:
    a = make()
    backend = begun(TorchBackend(a.model, adapted=a))
    metrics, ends = steps(backend, 0, NUM_STEPS), published(backend) | weights(backend)
    metrics += after_a_refresh(backend)
    sizes = {"num_weights": sum(map(num_weights, a.model.parameters())), "base": bytes_of_base(a.model)}
    return metrics, ends, sizes


def after_a_refresh(backend: Backend) -> list[dict[str, float]]:
    """Metrics of an update whose reference is the policy that was trained before."""
    backend.refresh_reference()
    return steps(backend, SAVED_AT, NUM_STEPS)


def bytes_of_base(model: Any) -> int:
    of_rank = [getattr(p, "to_local", lambda p=p: p)() for n, p in model.named_parameters() if not is_factor(n)]
    return sum(p.nbytes for p in of_rank)


def bytes_of_weights(model: Any) -> int:
    """Those of the base, its scales, and the adapters, on this rank."""
    states = [p.quant_state for p in model.parameters() if hasattr(p, "quant_state")]
    of_states = sum(x.nbytes for state in states for x in (state.absmax, state.state2.absmax))
    return (
        of_states + bytes_of_base(model) + sum(p.to_local().nbytes for n, p in model.named_parameters() if is_factor(n))
    )


def planned(kind: str, file: Path, settings: Any) -> float:
    """What a plan counts of them on each of two GPUs."""
    model = {"quantize": kind, "dtype": "float32"}
    path = str(file) if kind == "gguf" else "Qwen/Qwen3-8B"
    config = recipe_of(path, model=model, train={"backend": "fsdp", "lora": {"rank": 3, "alpha": 6}})
    return resident(config, from_settings(settings), 2)["weights"]


def compare(ranks: Ranks, kind: str, root: Path) -> Found:
    """Distances from torch alone, and of a resumed run from an unbroken one; bytes of the base on this rank."""
    file = root / f"{ranks.rank}" / "tiny.gguf"
    file.parent.mkdir(parents=True)
    if kind == "gguf":
        write_gguf(file, tiny_llama(), quantized=True)
    elif ranks.is_first:
        tiny_llama(head_width=16).save_pretrained(root / "start")
    ranks.barrier()
    wanted_metrics, wanted, sizes = once(ranks, lambda: found_by_torch(lambda: adapted(kind, file)))
    found: Found = {}
    whole = adapted(kind, file)
    for name, changes in {"plain": {}, "less memory": {"gradient_checkpointing": True, "offload": "optimizer"}}.items():
        a = adapted(kind, file, in_files=True)
        backend = begun(divided(a, ranks, **changes))
        base_numbers = distance(published(backend), published(TorchBackend(whole.model, adapted=whole)))
        seen = steps(backend, 0, SAVED_AT)
        folder = root / name
        folder.mkdir(exist_ok=True)
        ranks.barrier()
        backend.save(folder, save)
        ranks.barrier()
        seen += steps(backend, SAVED_AT, NUM_STEPS)
        ends = published(backend) | weights(backend)
        again = divided(adapted(kind, file, in_files=True), ranks, **changes)
        again.load(folder)
        steps(again, SAVED_AT, NUM_STEPS)
        if name == "plain":
            engine = TorchEngine(backend.engine_module(), [1], 0)
            backend.update_engine_module()
            engine.publish(1)
            assert engine.is_fast
            computes_what_the_trainer_does(engine, backend)
        distance_of_resumed = distance(published(again), published(backend))
        is_base = backend.reference is a is backend.adapted
        seen += after_a_refresh(backend)
        found[name] = {
            "weights": distance(ends, wanted),
            "base_numbers": base_numbers,
            "metrics": max(abs(x[k] - y[k]) for x, y in zip(seen, wanted_metrics, strict=True) for k in y),
            "resumed": distance_of_resumed,
            "base": bytes_of_base(backend.model) / sizes["base"],
            "planned": bytes_of_weights(backend.model) / planned(kind, file, backend.model.config),
            "num_weights": sum(map(num_weights, backend.model.parameters())) / sizes["num_weights"],
            "saved": sorted(p.name for p in folder.iterdir()),
            "is_base": is_base,
        }
    return found


if __name__ == "__main__":
    group = joined()
    answer = compare(group, sys.argv[2], Path(sys.argv[1]))
    leave()
    print("found", json.dumps(answer))
