"""One of four ranks that load, train, publish, save and resume a model; prints the most bytes of tensors alive in each.

Run by `test_fsdp_memory.py` as `python -m tests.train.live_rank FOLDER BACKEND WIDTH LAYERS`.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.models.families import build
from tests.train.bits import bytes_of_weights
from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.models.load import load_model
from verizero.pipeline.models.lora import Adapted
from verizero.pipeline.models.streamed import model_on_meta
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.ranks import Ranks, join, leave

VOCAB = 8192
ADAPTED = ("fsdp-lora", "fsdp-nf4")
"""Backends that train adapters alone."""
MIB = 2**20


def tensors_of(things: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the plain tensors among the arguments or results of an operation, and in their lists."""
    for x in things:
        if isinstance(x, (list, tuple)):
            yield from tensors_of(x)
        elif type(x) in (torch.Tensor, torch.nn.Parameter):
            yield x


class Live(TorchDispatchMode):
    """The storages that operations have touched and that live; `peak` is the greatest sum of their bytes so far."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, tuple[weakref.ref[Any], int]] = {}
        self.most = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is traced here, and every operation would pass through a wrapper against that

    def see(self, storage: Any) -> None:
        """Count the storage with the bytes that it has now."""
        key, size = storage._cdata, storage.nbytes()
        known = self.seen.get(key)
        if known is None:
            self.seen[key] = weakref.ref(storage, lambda _: self.drop(key)), size
        elif known[1] != size:
            self.seen[key] = known[0], size
        self.most += size - (known[1] if known else 0)

    def drop(self, key: int) -> None:
        self.most -= self.seen.pop(key)[1]

    def settled(self) -> int:
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

    def now(self) -> int:
        """The bytes that live now.

        Each storage is asked again, as it can be emptied without being dropped and without an operation. Therefore
        `most`, the sum of what operations last saw, may be too much; it is never too little behind an operation, which
        sees what it fills. So only where it passes the peak is it worth asking all.
        """
        for reference, _ in list(self.seen.values()):
            if (storage := reference()) is not None:
                self.see(storage)
        return self.most


def shape_of_live(width: int, layers: int) -> dict[str, Any]:
    return {
        "vocab_size": VOCAB,
        "hidden_size": width,
        "intermediate_size": 11 * width // 4,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    }


def opened(backend: str, path: Path, ranks: Ranks) -> Backend:
    if backend != "torch":
        config = TrainConfig(backend="fsdp", device="cpu", gradient_checkpointing=True)
        model = model_on_meta(str(path), torch.float32)
        adapted = None
        if backend in ADAPTED:
            adapted = Adapted(model, 4, 8.0, (), 1, "cpu" if backend == "fsdp-nf4" else None)
        return Backend(model, config, ranks, adapted, engine_reads_module=False, device=torch.device("cpu"))
    return Backend(load_model(str(path)), ranks=ranks, config=TrainConfig(gradient_checkpointing=True))


def trained(backend: Backend, micros: int = 1) -> None:
    """One update of so many micro-batches with a reference."""
    ids = torch.arange(16)[None] * 97 % VOCAB
    where = torch.ones_like(ids, dtype=torch.bool)
    where[:, 0] = False
    for _ in range(micros):
        with torch.no_grad():
            old, _ = backend.logprobs(ids, where, 1.0, "reference")
        logprobs, _ = backend.logprobs(ids, where, 1.0)
        backend.backward(((logprobs - old) ** 2 - logprobs).sum())
    backend.step()


def main(folder: Path, name: str, width: int, layers: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    ranks = join(300)
    start = folder / "start"
    if ranks.is_first:
        build("llama", shape_of_live(width, layers)).save_pretrained(start)
    ranks.barrier()
    gc.collect()
    peaks: dict[str, float] = {}
    kept: dict[str, float] = {}
    with Live() as live:

        @contextmanager
        def phase(title: str) -> Iterator[None]:
            gc.collect()
            live.peak = live.now()
            yield
            gc.collect()
            peaks[title], kept[title] = live.peak / MIB, live.now() / MIB

        with phase("load"):
            backend = opened(name, start, ranks)
        with phase("begin"):
            backend.start(OptimizerConfig(learning_rate=1e-4), 4)
            backend.refresh_reference()
        with phase("first update"):
            trained(backend)
        with phase("update"):
            trained(backend, micros=2)
        with phase("publish"):
            count = sum(tensor.numel() for _, tensor in backend.named_weights())
        saved = folder / name
        if ranks.is_first:
            saved.mkdir()
        ranks.barrier()
        with phase("checkpoint"):
            backend.save(saved, lambda model, to: model.save_pretrained(to))
        ranks.barrier()
        del backend
        with phase("resume"):
            backend = opened(name, start if name in ADAPTED else saved / "model", ranks)
            backend.load(saved)
        with phase("update after resume"):
            trained(backend)
        model: Any = backend.model
        found = {
            "peaks": peaks,
            "kept": kept,
            "parameters": sum(p.numel() for p in model.parameters()),
            "published": count,
            "block": sum(p.numel() for p in model.model.layers[0].parameters()) * 4 / MIB,
            "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
            "weights": bytes_of_weights(model) / MIB if name in ADAPTED else None,
            "table": model.model.embed_tokens.weight.numel() * 4 / MIB,
        }
    leave()
    return found


if __name__ == "__main__":
    print("found", json.dumps(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
