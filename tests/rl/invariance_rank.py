"""One of two ranks: its own rows, unequal in number, denominators and statistics summed over both."""

from __future__ import annotations

import json
from dataclasses import astuple
from typing import Any

import torch
import torch.distributed as dist

from tests.oracles.rl_batches import count_of, pad, random_rows, solve
from tests.rl.variants import rows_like, variants
from verizero.pipeline.rl.loss import Counts, summarize


def main() -> None:
    """Print loss, own rows' gradients and metrics of every variant."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found: dict[str, Any] = {}
    for name, parts in variants().items():
        rows = random_rows(31, **rows_like(parts))
        mine = rows[:2] if dist.get_rank() == 0 else rows[2:]
        padded = pad(mine, seed=dist.get_rank())
        numbers = torch.tensor(astuple(count_of(parts, padded.inputs)), dtype=torch.float64)
        dist.all_reduce(numbers)
        totals = Counts(*numbers.tolist())
        solved = solve(parts, padded.inputs, totals)
        loss, stats = torch.tensor(solved.loss, dtype=torch.float64), solved.stats.clone()
        dist.all_reduce(loss)
        dist.all_reduce(stats)
        found[name] = (float(loss), padded.by_row(solved.gradient), summarize(stats, totals))
    print("found", json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
