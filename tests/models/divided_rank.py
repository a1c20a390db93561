"""One rank of several that divide a table; prints how far lookups, logits and log-probs are from doubles in float64.

Run by `test_divided_table.py` as `python -m tests.models.divided_rank`; the place is in RANK and WORLD_SIZE.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from verizero.pipeline.models.chunked_logprobs import head_logprobs
from verizero.pipeline.models.divided_table import DividedTable, compute_divided
from verizero.pipeline.train.ranks import Ranks, join, leave

WIDTH, TOKENS = 8, 9
CASES = {"even": (24, 2), "uneven": (23, 3), "one piece": (23, 1000), "a row a piece": (7, 1), "few rows": (5, 1)}
"""Rows of the table, and rows of a rank in a piece. Five rows on four ranks leave the last without any."""
TEMPERATURE = 0.7


def table_of(vocab: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(vocab, WIDTH, generator=torch.Generator().manual_seed(vocab)).to(dtype)


def divide(whole: Tensor, rows: int, ranks: Ranks, padding: int | None) -> tuple[Any, Any, Tensor]:
    """An embedding and a head that share this rank's rows; the rows, which get the gradient."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    vocab, mesh = len(whole), init_device_mesh("cpu", (ranks.size,))
    each = -(-vocab // ranks.size)
    own = whole[ranks.rank * each : (ranks.rank + 1) * each].clone()
    p = nn.Parameter(
        DTensor.from_local(own, mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride())
    )
    embedding: Any = nn.Embedding(vocab, WIDTH, padding_idx=padding)
    head: Any = nn.Linear(WIDTH, vocab, bias=False)
    table = DividedTable(vocab, ranks.size, mesh.get_group(), whole.dtype, min(rows, each))
    for module in (embedding, head):
        module.weight = p
        compute_divided(module, table)
    return embedding, head, p


def tokens(vocab: int, rank: int) -> tuple[Tensor, Tensor]:
    """A rank's own token ids and hidden states: no two ranks have the same, nor as many."""
    generator = torch.Generator().manual_seed(rank)
    count = TOKENS + rank if rank != 1 else 0  # a rank without tokens takes part all the same
    return torch.randint(vocab, (count,), generator=generator), torch.randn(count, WIDTH, generator=generator)


def kept_of(ids: Tensor, vocab: int) -> Tensor:
    """The token and its neighbour; every third row was not cut."""
    kept = torch.stack([ids, (ids + 1) % vocab, torch.full_like(ids, -1)], 1)
    kept[::3] = -1
    return kept


Use = Callable[[Any, Any, Tensor, Tensor], Tensor]


def looked_up(embedding: Any, head: Any, ids: Tensor, hidden: Tensor) -> Tensor:
    rows = embedding(ids)
    return (rows * torch.arange(1.0, 1.0 + WIDTH).to(rows.dtype) * (1 + ids)[:, None]).sum(1)


def whole_logits(embedding: Any, head: Any, ids: Tensor, hidden: Tensor) -> Tensor:
    return head(hidden).log_softmax(-1)[torch.arange(len(ids)), ids]


def scored(embedding: Any, head: Any, ids: Tensor, hidden: Tensor) -> Tensor:
    if isinstance(head, nn.Linear):
        values, entropies = head_logprobs(head, hidden, ids, TEMPERATURE, None, 4)
        assert entropies is not None
        return values * (1 + ids) - 0.3 * entropies
    log_p = (head(hidden) / TEMPERATURE).log_softmax(-1)
    return log_p[torch.arange(len(ids)), ids] * (1 + ids) + 0.3 * (log_p.exp() * log_p).sum(1)


def scored_among_kept(embedding: Any, head: Any, ids: Tensor, hidden: Tensor) -> Tensor:
    kept = kept_of(ids, 5)
    if isinstance(head, nn.Linear):
        values, entropies = head_logprobs(head, hidden, ids, TEMPERATURE, kept, 4)
        assert entropies is not None
        return values * (1 + ids) - 0.3 * entropies
    logits = head(hidden) / TEMPERATURE
    out = []
    for row, target, own in zip(logits, ids.tolist(), kept.tolist(), strict=True):
        chosen = [k for k in own if k >= 0] or list(range(len(row)))
        log_p = row[chosen].log_softmax(-1)
        out.append(log_p[chosen.index(target)] * (1 + target) + 0.3 * (log_p.exp() * log_p).sum())
    return torch.stack(out) if out else logits.new_zeros(0)


USES: dict[str, Use] = {
    "lookup": looked_up, "logits": whole_logits, "log-probs": scored, "kept": scored_among_kept
}  # fmt: skip


def far(use: Use, vocab: int, rows: int, ranks: Ranks, dtype: torch.dtype) -> dict[str, float]:
    """The greatest distances of values and gradients from doubles, as a share of the greatest number."""
    whole = table_of(vocab, dtype)
    padding = 2 if use is looked_up else None
    embedding, head, p = divide(whole, rows, ranks, padding)
    ids, hidden = tokens(vocab if use is not scored_among_kept else 5, ranks.rank)
    hidden = hidden.to(dtype).requires_grad_()
    values = use(embedding, head, ids, hidden)
    (values.sum() + 0 * hidden.sum()).backward()
    # The double has the tokens of all ranks and the whole table.
    double, everybody, own = whole.double().requires_grad_(), torch.zeros(()).double(), torch.zeros(())
    for rank in range(ranks.size):
        their_ids, states = tokens(vocab if use is not scored_among_kept else 5, rank)
        states = states.to(dtype).double().requires_grad_()
        theirs = use(lambda i: F.embedding(i, double, padding), lambda h: h @ double.t(), their_ids, states)
        everybody = everybody + theirs.sum()
        if rank == ranks.rank:
            own, own_states = theirs, states
    (everybody + 0 * own_states.sum()).backward()
    each = -(-vocab // ranks.size)
    grad: Any = p.grad
    assert double.grad is not None
    assert hidden.grad is not None
    assert own_states.grad is not None
    pairs = {
        "values": (values, own),
        "to table": (grad.to_local(), double.grad[ranks.rank * each : (ranks.rank + 1) * each]),
        "to hidden": (hidden.grad, own_states.grad),
    }
    return {name: distance(ours, theirs) for name, (ours, theirs) in pairs.items()}


def distance(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    if not ours.numel():
        return 0.0
    return float((ours.double() - theirs).abs().max() / max(1.0, float(theirs.abs().max())))


def main() -> dict[str, Any]:
    torch.set_num_threads(1)
    ranks = join(120)
    dtypes = [torch.float32] if os.environ.get("VERIZERO_KERNELS") == "on" else [torch.float32, torch.bfloat16]
    found = {
        f"{name} {case} {str(dtype).removeprefix('torch.')}": far(use, vocab, rows, ranks, dtype)
        for dtype in dtypes
        for name, use in USES.items()
        for case, (vocab, rows) in CASES.items()
    }
    dist.barrier()
    leave()
    return found


if __name__ == "__main__":
    print("found", json.dumps(main()))
