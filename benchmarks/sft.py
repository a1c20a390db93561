"""Supervised fine-tuning of ours and of TRL's SFTTrainer on the same texts, turn by turn in one process.

    python benchmarks/sft.py                     tokens/s on texts of mixed length, all four ways
    python benchmarks/sft.py --texts demo        on the demonstrations of configs/demo.yaml

Work: the demo's model (a Qwen2 of two blocks, with a longer context) in float32, one AdamW update for every 64 texts or
as many packed tokens, every token but the first trained on. Mixed lengths: 8 to 256 tokens, log-uniform, so that well
over half of a padded batch is padding. Tokens/s count real tokens. TRL's settings are chosen for speed: no gradient
checkpointing, no bf16, fused AdamW, texts tokenised before; of its two ways to pack, and of several micro-batches, the
fastest counts.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

ROOT = Path(__file__).resolve().parents[1]
BATCH, PACKED_LENGTH, CONTEXT = 64, 512, 512
Texts = list[tuple[int, ...]]
Packing = Literal["auto", "off"]


def main() -> None:
    """Parse the command line and print one JSON object a turn, then medians, ranges and ratios."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--texts", choices=("mixed", "demo"), default="mixed")
    options.add_argument("--steps", type=int, default=30, help="of each way in each turn; default: 30")
    options.add_argument("--turns", type=int, default=5)
    options.add_argument("--micro-batch-tokens", type=int, default=4096, help="ours")
    options.add_argument("--profile", action="store_true", help="only ours: where its time goes")
    asked = options.parse_args()

    from verizero.pipeline.models.load import quiet, save_folder

    quiet()
    with tempfile.TemporaryDirectory() as folder:
        model, tokenizer, texts = workload(asked.texts, asked.steps + 1)
        save_folder(model, tokenizer, Path(folder))
        if asked.profile:
            profile(folder, texts, asked.micro_batch_tokens)
            return
        compare(folder, texts, asked.turns, asked.micro_batch_tokens, asked.texts)


def compare(folder: str, texts: Texts, turns: int, micro_batch_tokens: int, name: str) -> None:
    """Print tokens/s of each way in each turn, then medians, ranges and the ratios ours / TRL's."""
    lengths = [len(t) for t in texts]
    rows = max(1, round(BATCH * statistics.mean(lengths) / PACKED_LENGTH))
    packings = [(strategy, n) for strategy in ("bfd", "wrapped") for n in sorted({1, rows})]
    speeds_of: dict[str, list[float]] = {}
    for turn in range(turns):
        speeds = {
            "ours": our_speed(folder, texts, "auto", micro_batch_tokens),
            "ours padded": our_speed(folder, texts, "off", micro_batch_tokens),
            "trl packed": max(trl_speed(folder, texts, s, n, rows) for s, n in packings),
            "trl": max(trl_speed(folder, texts, None, n, BATCH) for n in (16, BATCH)),
        }
        print(json.dumps({"turn": turn, "tokens_per_s": {k: round(v) for k, v in speeds.items()}}), flush=True)
        for way, speed in speeds.items():
            speeds_of.setdefault(way, []).append(speed)
    ratios = {
        "ours / trl packed": ("ours", "trl packed"),
        "ours / trl": ("ours", "trl"),
        "padded / trl": ("ours padded", "trl"),
    }
    by_turn = {k: [a / b for a, b in zip(speeds_of[x], speeds_of[y], strict=True)] for k, (x, y) in ratios.items()}
    result = {
        "texts": name,
        "mean_length": round(statistics.mean(lengths), 1),
        "padding_share": round(padding_share(lengths), 3),
        "threads": torch.get_num_threads(),
        "tokens_per_s": {way: of_turns(v, 0) for way, v in speeds_of.items()},
        "ratio": {k: of_turns(v, 2) for k, v in by_turn.items()},
    }
    print(json.dumps(result), flush=True)


def of_turns(values: Sequence[float], digits: int) -> dict[str, float]:
    """Return median and range of one number over all turns."""
    numbers = {"median": statistics.median(values), "low": min(values), "high": max(values)}
    return {name: round(value, digits or None) for name, value in numbers.items()}


def workload(kind: str, steps: int) -> tuple[Any, Any, Texts]:
    """Return model, tokenizer and texts in tokens."""
    from verizero.pipeline.config.load import load_recipe
    from verizero.pipeline.models.load import create_model
    from verizero.pipeline.run.build import build_tokenizer

    path = ROOT / "configs" / "demo.yaml"
    config = load_recipe(path, [f"model.create.config.max_position_embeddings={CONTEXT}"])
    tokenizer = build_tokenizer(config)
    assert config.model.create is not None
    model = create_model(config.model.create.model_type, config.model.create.config, tokenizer, 0)
    count, draw = steps * BATCH, random.Random(0)
    if kind == "mixed":
        low, high = math.log(8), math.log(257)
        sizes = [int(math.exp(draw.uniform(low, high))) for _ in range(count)]
        ids = [i for i in range(len(tokenizer)) if i not in tokenizer.all_special_ids]
        return model, tokenizer, [(*draw.choices(ids, k=n - 1), tokenizer.eos_token_id) for n in sizes]
    from verizero.pipeline.data.prompts import read_demonstrations
    from verizero.pipeline.data.render import Renderer

    renderer = Renderer(tokenizer, config.data.template)
    shown = read_demonstrations((), config.data.train, 0, path.parent).prompts
    texts = [(*renderer.prompt_ids(p), *renderer.demonstration_ids(p)) for p in shown]
    return model, tokenizer, draw.choices(texts, k=count)


def padding_share(lengths: Sequence[int]) -> float:
    """Return the share of padding if each batch is padded to its longest text."""
    batches = [lengths[i : i + BATCH] for i in range(0, len(lengths), BATCH)]
    return 1 - sum(lengths) / sum(len(b) * max(b) for b in batches)


def our_steps(folder: str, texts: Texts, packing: Packing, micro_batch_tokens: int) -> Iterator[int]:
    """Take the steps; yield after each the number of tokens that it trained on."""
    from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
    from verizero.pipeline.models.load import load_model
    from verizero.pipeline.train.texts import row_after, text_gradient
    from verizero.pipeline.train.torch_backend import TorchBackend

    backend = TorchBackend(
        load_model(folder), config=TrainConfig(packing=packing, micro_batch_tokens=micro_batch_tokens)
    )
    backend.start(OptimizerConfig(learning_rate=1e-4), len(texts) // BATCH)
    for first in range(0, len(texts), BATCH):
        batch = [row_after(ids, 1) for ids in texts[first : first + BATCH]]
        text_gradient(backend, batch, 1.0, 0, micro_batch_tokens)
        backend.step()
        yield sum(len(ids) for ids, *_ in batch)


def our_speed(folder: str, texts: Texts, packing: Packing, micro_batch_tokens: int) -> float:
    """Return real tokens a second, without the first step."""
    tokens, begin = 0, 0.0
    for number, count in enumerate(our_steps(folder, texts, packing, micro_batch_tokens)):
        if number == 0:
            begin = time.perf_counter()
        else:
            tokens += count
    return tokens / (time.perf_counter() - begin)


def trl_speed(folder: str, texts: Texts, packing: str | None, micro_rows: int, rows: int) -> float:
    """Return the same number for TRL's trainer: `rows` rows (or packed rows) an update, `micro_rows` at a time."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import SFTConfig, SFTTrainer
    from yardstick import FAST

    micro = min(micro_rows, rows)
    config = SFTConfig(
        output_dir=str(Path(folder) / "out"),
        num_train_epochs=1,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=max(1, rows // micro),
        packing=packing is not None,
        packing_strategy=packing or "bfd",
        max_length=PACKED_LENGTH,
        dataset_kwargs={"skip_prepare_dataset": False},
        **FAST,
    )
    clock: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.append(time.perf_counter())

    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        args=config,
        train_dataset=Dataset.from_list([{"input_ids": list(ids)} for ids in texts]),
        processing_class=AutoTokenizer.from_pretrained(folder),
        callbacks=[Clock()],
    )
    trainer.train()
    share = (len(clock) - 1) / len(clock)  # the first step is left out
    return share * sum(map(len, texts)) / (clock[-1] - clock[0])


def profile(folder: str, texts: Texts, micro_batch_tokens: int) -> None:
    """Print which operations ours spends its time in."""
    steps = our_steps(folder, texts, "auto", micro_batch_tokens)
    next(steps)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        for _ in steps:
            pass
    print(seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=25))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
