"""One of four ranks that load, train, publish, save and resume a model; prints the most bytes of tensors alive in each.

Run by `test_fsdp_memory.py` as `python -m tests.train.live_rank FOLDER BACKEND WIDTH LAYERS`.
"""

import gc
import json
import sys
from contextlib import contextmanager
from pathlib import Path

import torch

from tests.models.families import build
from tests.peak import MIB, Live
from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
from verizero.pipeline.models.lora import Adapted, is_factor
from verizero.pipeline.models.streamed import model_on_meta
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.ranks import join, leave

VOCAB = 8192
ADAPTED = ("fsdp-lora", "fsdp-nf4")
"""Backends that train adapters alone."""


def bytes_of_base(model):
    of_rank = [getattr(p, "to_local", lambda p=p: p)() for n, p in model.named_parameters() if not is_factor(n)]
    return sum(p.nbytes for p in of_rank)


def bytes_of_weights(model):
    """Those of the base, its scales, and the adapters, on this rank."""
    states = [p.quant_state for p in model.parameters() if hasattr(p, "quant_state")]
    of_states = sum(x.nbytes for state in states for x in (state.absmax, state.state2.absmax))
    return (
        of_states + bytes_of_base(model) + sum(p.to_local().nbytes for n, p in model.named_parameters() if is_factor(n))
    )


def shape_of_live(width, layers):
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


def opened(backend, path, ranks):
    config = TrainConfig(backend="fsdp", device="cpu", gradient_checkpointing=True)
    model, adapted = model_on_meta(str(path), torch.float32), None
    if backend in ADAPTED:
        adapted = Adapted(model, 4, 8.0, (), 1, "cpu" if backend == "fsdp-nf4" else None)
    return Backend(model, config, ranks, adapted, engine_reads_module=False, device=torch.device("cpu"))


def trained(backend, micros=1):
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


def main(folder, name, width, layers):
    torch.set_num_threads(1)
    ranks = join(300)
    start = folder / "start"
    if ranks.is_first:
        build("llama", shape_of_live(width, layers)).save_pretrained(start)
    ranks.barrier()
    gc.collect()
    peaks = {}
    kept = {}
    with Live() as live:

        @contextmanager
        def phase(title):
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
        model = backend.model
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
