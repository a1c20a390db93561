"""The cost of moving sampled tokens: from Python objects to tensors, and from rank to rank.

    python benchmarks/data_plane.py

prints a line of JSON: CPU microseconds a token on one core, medians over repetitions, of `collate` (groups to one
batch), of `micros` (the batch to micro-batches) and of `gather` (one rank's groups written and read again, as each rank
does with those of all; without the network). All are on the CPU, whatever trains.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from pipeline.train.collate import collate, deal, rows_of
from pipeline.types import Group, Prompt, Rollout, ScoredRollout, Verdict

VOCAB = 150_000


def groups_of(num: int, size: int, tokens: int) -> list[Group]:
    """Return groups of random responses of `tokens` / 2 to `tokens` tokens, to prompts of an eighth of that."""
    draw = random.Random(0)
    out = []
    for g in range(num):
        prompt = tuple(draw.choices(range(VOCAB), k=tokens // 8))
        members = []
        for sample in range(size):
            length = draw.randint(tokens // 2, tokens)
            response = tuple(draw.choices(range(VOCAB), k=length))
            logprobs = tuple(
                torch.tensor([-5 * draw.random() for _ in range(length)]).tolist()
            )  # float32, as engines give
            rollout = Rollout(f"p{g}", sample, prompt, response, logprobs, "text", "stop", 0)
            members.append(ScoredRollout(rollout, Verdict("graded", 1.0), draw.random()))
        out.append(Group(Prompt(f"p{g}", "?", "exact", "x"), tuple(members)))
    return out


def median_us(work: Callable[[], Any], tokens: int, repeat: int) -> float:
    """Return the median CPU time of `work` in microseconds a token, which other programs do not lengthen."""
    seconds = []
    for _ in range(repeat):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return round(1e6 * statistics.median(seconds) / tokens, 4)


def main() -> None:
    """Measure, and print the line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1024, help="of the longest response")
    parser.add_argument("--repeat", type=int, default=7)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    groups = groups_of(asked.groups, asked.size, asked.tokens)
    rollouts = [m.rollout for g in groups for m in g.members]
    tokens = sum(len(r.prompt_ids) + len(r.response_ids) for r in rollouts)
    batch = collate(groups, 0)
    lengths = batch.attention_mask.sum(1).tolist()
    times = {
        "collate": median_us(lambda: collate(groups, 0), tokens, asked.repeat),
        "micros": median_us(
            lambda: [rows_of(batch, piece) for piece in deal(lengths, 4096, 0, 1)[0]], tokens, asked.repeat
        ),
        "gather": median_us(lambda: pickle.loads(pickle.dumps(groups)), tokens, asked.repeat),
    }
    print(json.dumps({"tokens": tokens, "us_per_token": times}))


if __name__ == "__main__":
    main()
