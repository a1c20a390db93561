"""Speed of engines that generate side by side, and how long new weights take to reach them.

    python benchmarks/cluster.py                                   embedded, vLLM, transformers' generate
    python benchmarks/cluster.py --engine vllm --engine vllm_server --prompts 64 --samples 8
    python benchmarks/cluster.py --model runs/demo/model
    python benchmarks/cluster.py --ranks 1 --ranks 2               the same prompts by one process, and by two at once

Every response has `--tokens` tokens: no token ends one. Engines are timed one after the other in this process, each
after a first round that is not counted; a machine that does other things meanwhile shows in the range of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.gpu_parts.bound import Ceilings, ceilings, decode_bound_s, wait, weight_bytes  # noqa: E402
from benchmarks.yardstick import CHARACTERS, SIZES  # noqa: E402

ENGINES = ("torch", "vllm", "vllm_server", "transformers")
NO_END = -1
"""An end token that is none, so that every response is of full length."""


def main() -> None:
    """Parse the command line and print one JSON object per engine."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--engine", action="append", choices=ENGINES, help="repeatable; default: all that are here")
    options.add_argument("--model", help="a Hugging Face folder; default: a Qwen2 of 0.8M parameters")
    options.add_argument("--prompts", type=int, default=32)
    options.add_argument("--samples", type=int, default=8)
    options.add_argument("--tokens", type=int, default=64)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--ranks", type=int, action="append", help="repeatable; processes that share the prompts out")
    asked = options.parse_args()
    names, several = asked.engine or here(), [n for n in asked.ranks or [1] if n > 1]
    if 1 in (asked.ranks or [1]):
        model = policy(asked.model)
        for name in names:
            print(json.dumps({"engine": name, **measure(name, model, asked)}), flush=True)
    for name in names:
        for size in several:
            print(json.dumps({"engine": name, "ranks": size, **together(name, size, asked)}), flush=True)


def together(name: str, size: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Run `size` processes at once, each with an engine and its share of the prompts: the sum of their tokens/s.

    Each has a GPU of its own, where there are so many.
    """
    import torch

    alone = torch.cuda.device_count() >= size
    command = [sys.executable, __file__, "--engine", name, "--samples", str(asked.samples)]
    command += ["--tokens", str(asked.tokens), "--rounds", str(asked.rounds)]
    command += ["--model", asked.model] if asked.model else []
    children = []
    for rank in range(size):
        own = len(range(rank, asked.prompts, size))
        place = {**os.environ, **({"CUDA_VISIBLE_DEVICES": str(rank)} if alone else {})}
        children.append(
            subprocess.Popen([*command, "--prompts", str(own)], env=place, stdout=subprocess.PIPE, text=True)
        )
    outputs = [child.communicate()[0].splitlines() for child in children]
    if any(child.returncode for child in children):
        raise SystemExit(f"a rank of {name} failed; its words are above")
    rates = [json.loads(lines[-1])["tokens_per_s"] for lines in outputs]
    return {"tokens_per_s": sum(rates), "tokens_per_s_by_rank": rates}


def roofline(model: Any, tokens_per_s: float, rows: int, cached: float, most: Ceilings | None) -> dict[str, Any]:
    """On a GPU: TFLOP/s of the matrix products, and the share of the most that its measured ceilings allow.

    `cached`: mean tokens of a row in the KV cache, which a step of decoding reads as it reads the weights.
    """
    if most is None:
        return {}
    num = sum(p.numel() for p in model.parameters())
    bound = rows / decode_bound_s(model, rows, cached, most)
    return {
        "tflops": round(2 * num * tokens_per_s / 1e12, 4),
        "bound_tokens_per_s": round(bound),
        "share_of_roofline": round(tokens_per_s / bound, 4),
    }


def here() -> list[str]:
    """The engines that are installed."""
    import importlib.util

    has_vllm = importlib.util.find_spec("vllm") is not None
    return [name for name in ENGINES if has_vllm or not name.startswith("vllm")]


def policy(folder: str | None) -> Any:
    """The model of that folder, else a small one made here."""
    import torch

    from verizero.pipeline.data.tokenizer import character_tokenizer
    from verizero.pipeline.models.load import create_model, load_model, quiet

    quiet()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if folder is not None:
        return load_model(folder, "float32" if device == "cpu" else "bfloat16", device).eval()
    return create_model("qwen2", SIZES, character_tokenizer(CHARACTERS), 0).to(device).eval()


def measure(name: str, model: Any, asked: argparse.Namespace) -> dict[str, Any]:
    """Median tokens/s of the rounds with their range; and, for each way of publishing, median seconds and bytes."""
    prompts = [tuple(2 + (7 * i + j) % 40 for j in range(6 + i % 5)) for i in range(asked.prompts)]
    total = asked.prompts * asked.samples * asked.tokens
    # Each response grows from its prompt to its full length.
    cached = sum(map(len, prompts)) / len(prompts) + asked.tokens / 2
    most = ceilings(model.device) if model.device.type == "cuda" else None
    out: dict[str, Any] = {"device": str(model.device), "tokens_a_round": total}
    for way, publish, generate in sides(name, model, prompts, asked):
        publishes, speeds = [], []
        for turn in range(asked.rounds + 1):
            start = now(model)
            publish(turn)
            between = now(model)
            made = generate(turn)
            end = now(model)
            if made != total:
                raise SystemExit(f"{name} made {made} tokens, {total} were asked for")
            if turn > 0:
                publishes.append(between - start)
                speeds.append(total / (end - between))
        out["tokens_per_s"] = round(statistics.median(speeds))
        out["tokens_per_s_range"] = [round(min(speeds)), round(max(speeds))]
        out |= roofline(model, out["tokens_per_s"], asked.prompts * asked.samples, cached, most)
        if way is not None:
            seconds = round(statistics.median(publishes), 4)
            out[f"publish/{way}"] = {"seconds": seconds, "bytes": weight_bytes(model)}
    return out


def now(model: Any) -> float:
    """Return the time, once the model's device has done all that was asked of it."""
    wait(model.device)
    return time.perf_counter()


Side = tuple[str | None, Callable[[int], None], Callable[[int], int]]
"""A way of publishing, what publishes, and what generates and returns the number of tokens."""


def sides(name: str, model: Any, prompts: Sequence[tuple[int, ...]], asked: argparse.Namespace) -> Iterator[Side]:
    """The engine, once for each way in which weights reach it; closed at the end."""
    if name == "transformers":
        yield None, lambda turn: None, lambda turn: with_transformers(model, prompts, asked)
        return
    from verizero.pipeline.rollout.engine import Request, Sampling

    def generate(turn: int) -> int:
        seeds = range(turn * asked.samples, (turn + 1) * asked.samples)
        requests = [Request(p, tuple(1000 * i + s for s in seeds)) for i, p in enumerate(prompts)]
        answers = engine.generate(requests, Sampling(asked.tokens))
        return sum(len(c.token_ids) for completions in answers for c in completions)

    with tempfile.TemporaryDirectory() as folder:
        engine = engine_of(name, model, Path(folder))
        try:
            yield {"torch": "copy", "vllm": "in place"}.get(name, "gloo"), engine.publish, generate
        finally:
            engine.close()


def engine_of(name: str, model: Any, folder: Path) -> Any:
    """The engine, whose responses no token ends."""
    from verizero.pipeline.config.rollout import VllmConfig
    from verizero.pipeline.rollout.engine_model import EngineModel
    from verizero.pipeline.rollout.server_client import ServerSetup
    from verizero.pipeline.rollout.server_pool import ServerPool
    from verizero.pipeline.rollout.servers.vllm_server import servers
    from verizero.pipeline.rollout.torch_engine import TorchEngine
    from verizero.pipeline.rollout.vllm_engine import VllmEngine

    if name == "torch":
        return TorchEngine(model, (NO_END,), 0)
    target, config = EngineModel.of(model, ()), VllmConfig()
    if name == "vllm":
        return VllmEngine(target, config, 1024)
    setup = ServerSetup(target, 1024, folder, "rollout.vllm")
    return ServerPool(servers(config, setup), setup)


def with_transformers(model: Any, prompts: Sequence[tuple[int, ...]], asked: argparse.Namespace) -> int:
    """All responses by transformers' own generate, in one batch, left-padded."""
    import torch

    rows = [p for p in prompts for _ in range(asked.samples)]
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in rows], device=model.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in rows], device=model.device)
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            max_new_tokens=asked.tokens,
            min_new_tokens=asked.tokens,
            pad_token_id=0,
        )
    return int((out.shape[1] - width) * out.shape[0])


if __name__ == "__main__":
    main()
