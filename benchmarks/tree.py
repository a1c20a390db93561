"""One GRPO update whose rows share tokens, as a tree and as padded rows, turn by turn.

"retries": 4 groups of 4 episodes of 8 turns; after each turn but the last the policy tries again in a row of its own,
which begins with all before it. "prompts": 16 groups of 8 responses of 48 tokens to a prompt of 64. A Qwen2 of 0.8M
parameters in float32, no KL term. Each side is a process of its own, so that its peak of memory is known.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any, Literal

from yardstick import CHARACTERS, LEARNING_RATE, SIZES, peak_mib

SHAPES = {"retries": (4, 4, 8, 60, 24), "prompts": (16, 8, 1, 64, 48)}
"""Groups, members of a group, turns, tokens of a prompt, sampled tokens of a turn."""
OBSERVED = 16
"""Tokens between two turns."""
TOKENS = 4096
"""The limit of a micro-batch."""
Packing = Literal["auto", "off"]


def groups_of(name: str) -> list[Any]:
    """Return groups of random episodes of that shape."""
    from verizero.pipeline.types import Episode, Group, Prompt, Rollout, ScoredRollout, Turn, Verdict

    num_groups, size, num_turns, prompt_tokens, sampled = SHAPES[name]
    draw = random.Random(0)

    def ids(num: int) -> tuple[int, ...]:
        return tuple(draw.choices(range(3, len(CHARACTERS)), k=num))

    def turn(observed: Sequence[int]) -> Turn:
        return Turn(observed, ids(sampled), (-4.0,) * sampled, "stop", 0)

    groups = []
    for g in range(num_groups):
        prompt, members = ids(prompt_tokens), []
        for i in range(size):
            main = [turn(prompt), *(turn(ids(OBSERVED)) for _ in range(num_turns - 1))]
            retries = [
                (*(replace(t, trains=False) for t in main[:n]), turn(ids(OBSERVED))) for n in range(1, num_turns)
            ]
            first = (main[0].observed, main[0].sampled, main[0].logprobs)
            episode = Episode((tuple(main), *retries), ())
            rollout = Rollout(f"p{g}", i, *first, "", "stop", 0, episode=episode if retries else None)
            members.append(ScoredRollout(rollout, Verdict("graded", i % 2), float(i % 2)))
        groups.append(Group(Prompt(f"p{g}", "?", "exact", "x"), tuple(members)))
    return groups


def side(name: str, packing: Packing, steps: int) -> dict[str, float]:
    """Return the median seconds of an update, and what its tree saved. The first update is not timed."""
    from verizero.pipeline.algorithms.base import load_algorithm
    from verizero.pipeline.config.sections import OptimizerConfig, TrainConfig
    from verizero.pipeline.data.tokenizer import character_tokenizer
    from verizero.pipeline.models.load import create_model, quiet
    from verizero.pipeline.train.prepare import Controllers, Settings
    from verizero.pipeline.train.step import update
    from verizero.pipeline.train.torch_backend import TorchBackend

    quiet()
    sizes = {**SIZES, "max_position_embeddings": 1024}
    model = create_model("qwen2", sizes, character_tokenizer(CHARACTERS), 0)
    backend = TorchBackend(model, config=TrainConfig(packing=packing, micro_batch_tokens=TOKENS))
    backend.start(OptimizerConfig(learning_rate=LEARNING_RATE), steps + 1)
    parts = load_algorithm("grpo", {"kl_coef": 0.0})[1].resolve(1024)
    groups = groups_of(name)
    seconds, cpu_seconds, metrics = [], [], {}
    for _ in range(steps + 1):
        begin = time.perf_counter(), time.process_time()
        metrics = update(backend, parts, groups, Settings(0, 1.0, TOKENS, 0, 1024, Controllers(parts)))
        seconds.append(time.perf_counter() - begin[0])
        cpu_seconds.append(time.process_time() - begin[1])
    return {
        "seconds": statistics.median(seconds[1:]),
        "cpu_seconds": statistics.median(cpu_seconds[1:]),
        "tree/ratio": metrics["tree/ratio"],
        "grad_norm": metrics["grad_norm"],
    }


def compare(steps: int, rounds: int) -> None:
    """Print both sides of each shape and turn, and the medians of their ratios, padded rows over the tree."""
    for name in SHAPES:
        ratios, peaks = [], []
        for turn in range(rounds):
            sides = {}
            for packing in ("auto", "off") if turn % 2 else ("off", "auto"):
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                    sides[packing] = process.submit(side, name, packing, steps).result()
                    sides[packing]["peak_mib"] = process.submit(peak_mib).result()
            ratios.append({key: sides["off"][key] / sides["auto"][key] for key in ("seconds", "cpu_seconds")})
            peaks.append((sides["auto"]["peak_mib"], sides["off"]["peak_mib"]))
            print(json.dumps({"shape": name, "turn": turn, "tree": sides["auto"], "padded": sides["off"]}), flush=True)
        medians = {key: round(statistics.median(r[key] for r in ratios), 2) for key in ("seconds", "cpu_seconds")}
        peak = {"tree": max(p for p, _ in peaks), "padded": max(p for _, p in peaks)}
        print(json.dumps({"shape": name, "padded_over_tree": medians, "peak_mib": peak}), flush=True)
