"""One GRPO update whose rows share tokens, as a tree, as padded rows and as TRL packs them, turn by turn.

"retries": 4 groups of 4 episodes of 8 turns; after each turn but the last the policy tries again in a row of its own,
which begins with all before it. "prompts": 16 groups of 8 responses of 48 tokens to a prompt of 64. A Qwen2 of 0.8M
parameters in float32, no KL term. Each side is a process of its own, so that its peak of memory is known.

TRL packs rows as a tree too (`trl.experimental.async_grpo.packing`), for an attention that runs on GPUs alone. So its
side is its packing and its loss, with the attention of ours, which takes the same description. `grad_norm` shows that
all sides have the same gradient.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Sequence
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
    from verizero.pipeline.train.prepare import Controllers, Settings
    from verizero.pipeline.train.step import update
    from verizero.pipeline.train.torch_backend import TorchBackend

    backend = TorchBackend(model_of(), config=TrainConfig(packing=packing, micro_batch_tokens=TOKENS))
    backend.start(OptimizerConfig(learning_rate=LEARNING_RATE), steps + 1)
    parts = load_algorithm("grpo", {"kl_coef": 0.0})[1].resolve(1024)
    groups = groups_of(name)

    def step() -> dict[str, float]:
        metrics = update(backend, parts, groups, Settings(0, 1.0, TOKENS, 0, 1024, Controllers(parts)))
        return {key: metrics[key] for key in ("tree/ratio", "grad_norm")}

    return timed(step, steps)


def trl_side(name: str, _: Packing, steps: int) -> dict[str, float]:
    """Return the same of TRL's packing: rows are added to a micro-batch until one does not fit."""
    import torch
    from trl.experimental.async_grpo.packing import TreeRow

    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True)
    samples = trl_samples(name)
    num_trained = sum(int(sample["completion_mask"].sum()) for sample in samples)

    def step() -> dict[str, float]:
        rows = [TreeRow()]
        for sample in samples:
            if not rows[-1].fits(sample, TOKENS):
                rows.append(TreeRow())
            rows[-1].add(sample)
        for row in rows:
            trl_loss(model, row.pack()).div(num_trained).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        tokens = sum(len(sample["input_ids"]) for sample in samples)
        return {"tree/ratio": tokens / sum(len(row.tokens) for row in rows), "grad_norm": float(norm)}

    return timed(step, steps)


def trl_samples(name: str) -> list[dict[str, Any]]:
    """Return the rows of the groups as TRL's planner gets them."""
    import torch

    from verizero.pipeline.rows import rows

    samples = []
    for group in groups_of(name):
        spread = statistics.stdev(i % 2 for i in range(len(group.members)))
        for i, member in enumerate(group.members):
            for turns in rows(member.rollout):
                ids = [token for t in turns for token in (*t.observed, *t.sampled)]
                mask = [m for t in turns for m in [0] * len(t.observed) + [int(t.trains)] * len(t.sampled)]
                sample = {"input_ids": torch.tensor(ids), "completion_mask": torch.tensor(mask)}
                sample["old_log_probs"] = torch.full((len(ids),), -4.0)
                samples.append({**sample, "advantage": (i % 2 - 0.5) / spread, "group_id": group.prompt.id})
    return samples


def trl_loss(model: Any, packed: dict[str, Any]) -> Any:
    """Return the sum over tokens of TRL's loss of a packed row."""
    import torch

    from verizero.pipeline.models.runs import Runs, _alike, states
    from verizero.pipeline.models.varlen import Piece

    queries, keys = packed["tree_cu_seqlens_q"].tolist(), packed["tree_cu_seqlens_k"].tolist()
    pieces = [
        Piece(begin, end - begin, seen_end - seen - (end - begin), seen)
        for begin, end, seen, seen_end in zip(queries, queries[1:], keys, keys[1:], strict=False)
    ]
    pieces = [piece for call in _alike(pieces) for piece in call]
    positions, seen_by_all = packed["position_ids"], packed["tree_kv_index"]
    runs = Runs(positions, positions, positions, seen_by_all, torch.tensor(pieces), tuple(pieces))
    hidden, labels = states(model, packed["input_ids"], runs), packed["shift_labels"]
    at = (labels >= 0).nonzero()[:, 0]
    logprobs = torch.zeros(len(labels)).index_put(
        (at,), model.lm_head(hidden[at]).log_softmax(-1).gather(1, labels[at, None])[:, 0]
    )
    logprobs, advantages = logprobs[packed["token_index"]], packed["advantages"]
    ratio = (
        logprobs - logprobs.detach()
    ).exp()  # as ours: of the weights before the update, not of the engine's numbers
    return -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).sum()


def model_of() -> Any:
    """Return the policy of all sides."""
    from verizero.pipeline.data.tokenizer import character_tokenizer
    from verizero.pipeline.models.load import create_model, quiet

    quiet()
    return create_model("qwen2", {**SIZES, "max_position_embeddings": 1024}, character_tokenizer(CHARACTERS), 0)


def timed(step: Callable[[], dict[str, float]], steps: int) -> dict[str, float]:
    """Return the median seconds of a step, the first left out, with what the last one returned."""
    seconds, cpu_seconds, metrics = [], [], {}
    for _ in range(steps + 1):
        begin = time.perf_counter(), time.process_time()
        metrics = step()
        seconds.append(time.perf_counter() - begin[0])
        cpu_seconds.append(time.process_time() - begin[1])
    return {"seconds": statistics.median(seconds[1:]), "cpu_seconds": statistics.median(cpu_seconds[1:]), **metrics}


SIDES = {"tree": (side, "auto"), "padded": (side, "off"), "trl": (trl_side, "auto")}


def compare(steps: int, rounds: int) -> None:
    """Print all sides of each shape and turn, and the medians of what padded rows and TRL's take, over the tree."""
    for name in SHAPES:
        ratios: dict[str, list[dict[str, float]]] = {other: [] for other in SIDES if other != "tree"}
        peaks: dict[str, int] = dict.fromkeys(SIDES, 0)
        for turn in range(rounds):
            sides = {}
            for label, (measure, packing) in list(SIDES.items())[:: -1 if turn % 2 else 1]:
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                    sides[label] = process.submit(measure, name, packing, steps).result()
                    peaks[label] = max(peaks[label], process.submit(peak_mib).result())
            print(json.dumps({"shape": name, "turn": turn, **sides}), flush=True)
            for other, measured in ratios.items():
                measured.append({key: sides[other][key] / sides["tree"][key] for key in ("seconds", "cpu_seconds")})
        medians = {
            f"{other}_over_tree": {key: round(statistics.median(r[key] for r in all_of), 2) for key in all_of[0]}
            for other, all_of in ratios.items()
        }
        print(json.dumps({"shape": name, **medians, "peak_mib": peaks}), flush=True)
