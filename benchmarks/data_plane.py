"""The cost of moving sampled tokens: from Python objects to tensors, and from rank to rank.

    python benchmarks/data_plane.py

prints a line of JSON. `us_per_token` has CPU microseconds on one core for each token, medians over repetitions:

- `compact`: the engine's tuples to arrays, by the rank that sampled them;
- `send`: responses written and read again as bytes, once by the rank that sampled and once by the one that trains;
- `collate`: arrays to one batch; `micros`: the batch to micro-batches;
- `tuples`: `collate` of tuples, for comparison; `gather`: all responses to all ranks, as evaluations do.

`us_per_response` has what every rank does for each response of all ranks: `tell` writes and reads what it is told,
`deal` finds the ranks that train on it, `frame` makes its row in the batch without its tokens. It is measured on as
many responses as the step has.

`step_s` are seconds of each rank in a step on `--ranks`, extrapolated: its own tokens times the first, all responses
times the second. The network and what is computed on the device (masks, advantages) are not in it.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from verizero.pipeline.compact import no_collection
from verizero.pipeline.held import compacted, told_group
from verizero.pipeline.train.collate import collate, deal, owners, rows_of
from verizero.pipeline.train.exchange import row_lengths
from verizero.pipeline.types import Group, Prompt, Rollout, ScoredRollout, Verdict

VOCAB = 150_000
ON_TOKENS = ("compact", "send", "collate", "micros")
"""The work of a rank on the tokens that it samples or trains on."""


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
            logprobs = tuple(torch.tensor([-5 * draw.random() for _ in range(length)]).tolist())  # float32
            rollout = Rollout(f"p{g}", sample, prompt, response, logprobs, "text", "stop", 0)
            members.append(ScoredRollout(rollout, Verdict("graded", 1.0), draw.random()))
        out.append(Group(Prompt(f"p{g}", "?", "exact", "x"), tuple(members)))
    return out


def held(group: Group) -> Group:
    """Return the group in compact form."""
    rollouts = compacted(m.rollout for m in group.members)
    return replace(group, members=tuple(replace(m, rollout=r) for m, r in zip(group.members, rollouts, strict=True)))


def median_us(work: Callable[[], Any], count: int, repeat: int) -> float:
    """Return the median CPU time of `work` in microseconds for each of `count`; other programs do not lengthen it."""
    seconds = []
    for _ in range(repeat):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return round(1e6 * statistics.median(seconds) / count, 4)


def copied(value: Any) -> Any:
    """Return the value written as bytes and read again, as between ranks."""
    with no_collection():
        return pickle.loads(pickle.dumps(value))


def of_tokens(plain: list[Group], tokens: int, repeat: int) -> dict[str, float]:
    """Return microseconds for each token."""
    groups = [held(g) for g in plain]
    batch = collate(groups, 0)
    lengths = batch.attention_mask.sum(1).tolist()
    members = {(g, m): member for g, group in enumerate(groups) for m, member in enumerate(group.members)}
    work: dict[str, Callable[[], Any]] = {
        "compact": lambda: [compacted(m.rollout for m in g.members) for g in plain],
        "send": lambda: copied(members),
        "collate": lambda: collate(groups, 0),
        "micros": lambda: [rows_of(batch, piece) for piece in deal(lengths, 4096, 0, 1)[0]],
        "tuples": lambda: collate(plain, 0),
        "gather": lambda: copied(groups),
    }
    return {name: median_us(measured, tokens, repeat) for name, measured in work.items()}


def of_responses(num: int, size: int, ranks: int, repeat: int) -> dict[str, float]:
    """Return microseconds for each of `num` responses in groups of `size`, whose lengths do not matter."""
    own, *others = map(held, groups_of(1 + num // size, size, 16))
    told = [told_group(g, 1) for g in others]
    num = size * len(told)
    work: dict[str, Callable[[], Any]] = {
        "tell": lambda: copied([(g.members, g.greedy_reward) for g in told]),
        "deal": lambda: owners(row_lengths(told)[0], ranks),
        # On a device of no memory: the masks of all rows are made on the one that trains.
        "frame": lambda: collate([own, *told], 0, "meta"),
    }
    return {name: median_us(measured, num, repeat) for name, measured in work.items()}


def main() -> None:
    """Measure, and print the line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1024, help="of the longest response")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--step-tokens", type=int, default=84_000_000)
    parser.add_argument("--response-tokens", type=int, default=10_240, help="mean, in the step")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    plain = groups_of(asked.groups, asked.size, asked.tokens)
    rollouts = [m.rollout for g in plain for m in g.members]
    tokens = sum(len(r.prompt_ids) + len(r.response_ids) for r in rollouts)
    by_token = of_tokens(plain, tokens, asked.repeat)
    del plain, rollouts  # a real step holds no tuples, which the collector of garbage would visit
    responses = asked.step_tokens // asked.response_tokens
    by_response = of_responses(responses, asked.size, asked.ranks, asked.repeat)
    own = asked.step_tokens / asked.ranks * sum(by_token[name] for name in ON_TOKENS)
    every = responses * sum(by_response.values())
    step = {"tokens": round(own / 1e6, 2), "responses": round(every / 1e6, 2)}
    print(json.dumps({"tokens": tokens, "us_per_token": by_token, "us_per_response": by_response, "step_s": step}))


if __name__ == "__main__":
    main()
