"""The cost of moving sampled tokens: from Python objects to tensors, and from rank to rank.

    python benchmarks/data_plane.py

prints a line of JSON. `us_per_token` has CPU microseconds on one core for each token, medians over repetitions. Of its
own tokens a rank does

- `arrays`: the engine's tuples to arrays; `micros`: the batch to micro-batches;

and of the tokens of all ranks

- `gather`: responses written and read again as bytes; `collate`: arrays to one batch.

`us_per_response` has what every rank does for each response of all ranks, whatever its length: `gather` and `collate`
of responses of a few tokens, and `deal`, which finds the ranks that train on them. It is measured on as many responses
as the step has.

`step_s` are seconds of each rank in a step on `--ranks`, extrapolated: from its own tokens, from all tokens, and from
all responses. The network and what is computed on the device (masks, advantages) are not in it.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import statistics
import time
from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from verizero.pipeline.train.collate import collate, rank_micro_batches, row_lengths, rows_of, rows_of_ranks
from verizero.pipeline.types import Group, Prompt, Rollout, ScoredRollout, Verdict

VOCAB = 150_000
OWN, ALL = ("arrays", "micros"), ("gather", "collate")
"""The work of a rank on the tokens that it samples or trains on, and on those of all ranks."""


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


def in_arrays(group: Group) -> Group:
    """Return the group with arrays, as the engines' answers become."""

    def kept(m: ScoredRollout) -> ScoredRollout:
        ids, logprobs = array("i", m.rollout.response_ids), array("f", m.rollout.logprobs)
        return replace(m, rollout=replace(m.rollout, prompt_ids=prompt, response_ids=ids, logprobs=logprobs))

    prompt = array("i", group.members[0].rollout.prompt_ids)
    return replace(group, members=tuple(map(kept, group.members)))


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
    return pickle.loads(pickle.dumps(value))


def of_tokens(plain: list[Group], tokens: int, repeat: int) -> dict[str, float]:
    """Return microseconds for each token."""
    groups = list(map(in_arrays, plain))
    batch = collate(groups, 0)
    lengths = batch.attention_mask.sum(1).tolist()
    work: dict[str, Callable[[], Any]] = {
        "arrays": lambda: list(map(in_arrays, plain)),
        "micros": lambda: [rows_of(batch, piece) for piece in rank_micro_batches(lengths, 4096, 0, 1)[0]],
        "gather": lambda: copied(groups),
        "collate": lambda: collate(groups, 0),
    }
    return {name: median_us(measured, tokens, repeat) for name, measured in work.items()}


def of_responses(num: int, size: int, ranks: int, repeat: int) -> dict[str, float]:
    """Return microseconds for each of `num` responses of a few tokens in groups of `size`."""
    groups = list(map(in_arrays, groups_of(num // size, size, 16)))
    work: dict[str, Callable[[], Any]] = {
        "gather": lambda: copied(groups),
        "deal": lambda: rows_of_ranks(row_lengths(groups)[0], ranks),
        "collate": lambda: collate(groups, 0),
    }
    return {name: median_us(measured, size * len(groups), repeat) for name, measured in work.items()}


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
    del plain, rollouts  # a real step has no tuples, which the collector of garbage would visit
    responses = asked.step_tokens // asked.response_tokens
    by_response = of_responses(responses, asked.size, asked.ranks, asked.repeat)
    step = {
        "own tokens": asked.step_tokens / asked.ranks * sum(by_token[name] for name in OWN),
        "all tokens": asked.step_tokens * sum(by_token[name] for name in ALL),
        "responses": responses * sum(by_response.values()),
    }
    step = {name: round(us / 1e6, 2) for name, us in step.items()}
    print(json.dumps({"tokens": tokens, "us_per_token": by_token, "us_per_response": by_response, "step_s": step}))


if __name__ == "__main__":
    main()
