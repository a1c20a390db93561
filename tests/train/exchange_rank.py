"""One rank that trains on responses which other ranks sampled; prints what it got, and how far it is from the whole.

Run by `test_exchange.py` as `python -m tests.train.exchange_rank`; the place is in RANK and WORLD_SIZE.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from tests.train import episodes, sampled
from tests.train.batches import OPTIMIZER, groups_of, longer, parts_of, policy, settings_of, stale
from verizero.pipeline.config.sections import TrainConfig
from verizero.pipeline.held import compacted
from verizero.pipeline.run.dealing import gather_groups, gather_told, share_of
from verizero.pipeline.scoring.score import GradingTally
from verizero.pipeline.train import prepare
from verizero.pipeline.train.exchange import held_once, row_lengths, whole_on_first, with_own
from verizero.pipeline.train.micros import micros_of
from verizero.pipeline.train.ranks import Ranks, join, leave, sharing_sequences
from verizero.pipeline.train.step import update
from verizero.pipeline.train.torch_backend import TorchBackend
from verizero.pipeline.types import Group, Prompt, Rollout, ScoredRollout, Verdict

LONG = 3000
"""Tokens of a response whose bytes are counted: far more than the numbers that every rank is told of it."""


def whole_and_told(ranks: Ranks, groups: Sequence[Group]) -> tuple[list[Group], list[Group]]:
    """The groups in compact form, and as this rank knows them, which sampled those of its share."""
    held = [
        dataclasses.replace(
            g,
            members=tuple(
                dataclasses.replace(m, rollout=r)
                for m, r in zip(g.members, compacted(m.rollout for m in g.members), strict=True)
            ),
        )
        for g in groups
    ]
    share = share_of(ranks, [g.prompt for g in groups])
    own = [held[i] for i in share.places]
    return held, gather_told(ranks, share, [g.prompt for g in groups], own, GradingTally({}, 0, 0.0))[0]


def trained(ranks: Ranks, groups: Sequence[Group], case: str) -> tuple[Any, dict[str, float]]:
    """Weights and metrics after two updates; prompts are shared in the cases that say so."""
    _, name, params = CASES[case]
    backend = TorchBackend(policy(), ranks, TrainConfig(share_prompts="shared" in case))
    backend.start(OPTIMIZER, 10)
    backend.reference = policy(100).requires_grad_(False)
    parts = parts_of(name, **params)
    if parts.critic is not None:
        backend.start_critic(parts.critic.shared, OPTIMIZER, 10)
    metrics = [update(backend, parts, groups, settings_of(parts, 40, step=step)) for step in range(2)]
    return {k: v.detach().clone() for k, v in backend.model.state_dict().items()}, {
        f"{i}/{k}": v for i, row in enumerate(metrics) for k, v in row.items()
    }


CASES: dict[str, tuple[Callable[[], list[Group]], str, dict[str, Any]]] = {
    "grpo": (lambda: groups_of(5), "grpo", {"kl_coef": 0.05}),
    "several epochs": (lambda: groups_of(7), "grpo", {"num_epochs": 2, "num_minibatches": 3}),
    "a critic": (lambda: groups_of(5), "ppo", {"num_epochs": 2, "num_minibatches": 2, "bootstrap_truncated": True}),
    "kl in the reward": (lambda: stale(groups_of(5), 1, 0, 2), "reinforce_pp", {"kl_coef": 0.1, "num_minibatches": 2}),
    "tokens of the whole batch": (lambda: stale(groups_of(6), 2, 1, 1), "clip_cov", {"num_minibatches": 2}),
    "mean weight": (
        lambda: stale(groups_of(6), 2, 1, 1),
        "grpo",
        {"mismatch_level": "token", "mismatch_normalize": True, "num_minibatches": 2},
    ),
    "episodes": (lambda: episodes.episodes_of(5, 4), "grpo", {"num_minibatches": 2}),
    "one rank that gets all": (
        lambda: groups_of(3, 2, 5, lost=False),
        "clip_cov",
        {"num_minibatches": 2, "num_epochs": 3},
    ),
    "shared prompts": (lambda: longer(stale(groups_of(6), 2, 1, 1)), "clip_cov", {"num_minibatches": 2}),
    "shared prompts in one group": (lambda: longer(groups_of(1, 6)), "grpo", {"kl_coef": 0.05}),
    "one group": (lambda: groups_of(1, 2), "grpo", {}),
}


@contextmanager
def everything_everywhere() -> Iterator[None]:
    """Each rank collates all rows, as one process does."""
    own, prepare._with_own = prepare._with_own, lambda backend, parts, groups, *_: groups
    try:
        yield
    finally:
        prepare._with_own = own


def updates(ranks: Ranks) -> dict[str, dict[str, float]]:
    """How far each case is from ranks which hold everything, in weights and metrics; and in weights from one process.

    Each rank is the one process of some cases.
    """
    mine = [name for i, name in enumerate(CASES) if i % ranks.size == ranks.rank]
    gathered = ranks.gather({name: trained(Ranks(), CASES[name][0](), name)[0] for name in mine})
    by_one = {name: ends for part in gathered for name, ends in part.items()}
    out: dict[str, dict[str, float]] = {"everything": {}, "one process": {}}
    for name, (make, _, _) in CASES.items():
        whole, told = whole_and_told(ranks, make())
        with everything_everywhere():
            wanted = trained(ranks, whole, name)
        weights, metrics = trained(ranks, told, name)
        assert metrics.keys() == wanted[1].keys()
        off = [float((weights[k] - v).abs().max()) for k, v in wanted[0].items()]
        out["everything"][name] = max(*off, *(abs(metrics[k] - v) for k, v in wanted[1].items()))
        out["one process"][name] = max(float((weights[k] - v).abs().max()) for k, v in by_one[name].items())
    return out


def long_groups(num: int) -> list[Group]:
    """Groups of four responses of LONG tokens."""
    rng = random.Random(1)
    out = []
    for g in range(num):
        members = []
        for sample in range(4):
            ids = tuple(rng.choices(range(1000), k=LONG))
            rollout = Rollout(f"p{g}", sample, (1, 2), ids, (-0.5,) * LONG, "x" * LONG, "stop", 3)
            members.append(ScoredRollout(rollout, Verdict("graded", sample % 2, "equal", "y" * 99), float(sample % 2)))
        out.append(Group(Prompt(f"p{g}", "?", "exact", "x"), tuple(members)))
    return out


class Counted:
    """Bytes that this rank received by torch's collectives."""

    def __init__(self) -> None:
        self.bytes = 0
        gather, exchange = dist.all_gather_object, dist.all_to_all_single

        def counted_gather(values: list[Any], value: Any, **more: Any) -> None:
            gather(values, value, **more)
            self.bytes += sum(len(pickle.dumps(v)) for v in values) - len(pickle.dumps(value))

        def counted_exchange(received: torch.Tensor, *more: Any, **options: Any) -> None:
            exchange(received, *more, **options)
            self.bytes += received.nbytes

        dist.all_gather_object, dist.all_to_all_single = counted_gather, counted_exchange


def received(ranks: Ranks) -> dict[str, Any]:
    """The bytes that came to this rank, as a share of those of all responses; and what it holds then."""
    held, _ = whole_and_told(Ranks(), long_groups(8))
    everything, counted = len(pickle.dumps(held)), Counted()
    prompts = [g.prompt for g in held]
    share, tally = share_of(ranks, prompts), GradingTally({}, 0, 0.0)
    own = [held[i] for i in share.places]
    told, _ = gather_told(ranks, share, prompts, own, tally)
    decided = counted.bytes
    lengths, _ = row_lengths(told)
    mine = with_own(ranks, told, lengths, [range(len(lengths))])
    trained_on = counted.bytes - decided
    first = whole_on_first(ranks, told)
    shown = counted.bytes - decided - trained_on
    (again,), _ = gather_groups(ranks, share, [own], tally)
    return {
        "decided": decided / everything,
        "trained on": trained_on / everything,
        "shown": shown / everything,
        "whole": (counted.bytes - decided - trained_on - shown) / everything,
        "holds": [(g, m) for g, x in enumerate(mine) for m, y in enumerate(x.members) if y.rollout.held_by is None],
        "equal": all(
            y == held[g].members[m]
            for groups in (told, mine, first)
            for g, x in enumerate(groups)
            for m, y in enumerate(x.members)
            if y.rollout.held_by is None
        ),
        "first is whole": first == held,
        "again is whole": again == held,
        "nothing": [x == [] for x in ranks.exchange([[] for _ in range(ranks.size)])],
        "empty": ranks.exchange([(ranks.rank, r) for r in range(ranks.size)])
        == [(r, ranks.rank) for r in range(ranks.size)],
        "restored": [[m.rollout.held_by is None for m in g.members].count(True) for g in held_once(ranks, held)],
        "stays": held_once(ranks, told) == told,
    }


def records(ranks: Ranks) -> dict[str, bool]:
    """Kept sets and routes come with the tokens: this rank's micro-batches are those cut from the whole batch."""
    out = {}
    model = sampled.model_of("qwen3_moe")
    groups = sampled.groups_of(model, sampled.Sampling(sampled.MAX, 0.9, 0.8, max_kept=9, keep_routing=True))
    parts = parts_of("grpo", kl_coef=0.0)  # no reference, so that nothing is computed
    settings = settings_of(parts, 40)
    whole, told = whole_and_told(ranks, groups)
    backend = TorchBackend(policy(), ranks)
    with everything_everywhere():
        wanted = prepare.prepare(backend, parts, whole, settings).batch
    batch = prepare.prepare(backend, parts, told, settings).batch
    rows = list(range(len(batch.rewards)))
    pairs = zip(
        micros_of(batch, rows, settings.micro_batch_tokens, ranks),
        micros_of(wanted, rows, settings.micro_batch_tokens, ranks),
        strict=True,
    )
    out["held"] = batch.held is not None and len(batch.input_ids) < len(rows)
    out["micros"] = all(torch.equal(at, theirs) and same(micro, other) for (at, micro, _), (theirs, other, _) in pairs)
    return out


def same(micro: Any, other: Any) -> bool:
    """Both micro-batches have equal tensors, records among them; an idle one has no tokens to be equal."""
    if not bool(other.response_mask.any()):
        return not bool(micro.response_mask.any())
    names = ("input_ids", "attention_mask", "response_mask", "rollout_logprobs", "rewards", "group_ids", "truncated")
    record = ("kept_sizes", "kept_ids", "routing")
    return (
        all(torch.equal(getattr(micro, n), getattr(other, n)) for n in names)
        and all(torch.equal(micro.extras[n], other.extras[n]) for n in other.extras)
        and all(torch.equal(getattr(micro.recorded, n), getattr(other.recorded, n)) for n in record)
    )


def sets(ranks: Ranks) -> dict[str, Any]:
    """Where two ranks hold each sequence together, both get its tokens."""
    ranks = sharing_sequences(ranks, 2)
    held, told = whole_and_told(ranks, groups_of(6))
    lengths, _ = row_lengths(told)
    mine = with_own(ranks, told, lengths, [range(len(lengths))])
    holds = [
        (g, m)
        for g, x in enumerate(mine)
        for m, y in enumerate(x.members)
        if y.rollout.held_by is None and y.reward is not None
    ]
    return {"holds": holds, "right": all(mine[g].members[m] == held[g].members[m] for g, m in holds)}


def main() -> None:
    """Print what each part found; `received` is last, as it leaves its counter in place."""
    torch.set_num_threads(1)
    ranks = join(600.0)
    found: dict[str, Any] = {"updates": updates(ranks), "records": records(ranks)}
    if ranks.size == 4:
        found["sets"] = sets(ranks)
    found["received"] = received(ranks)
    leave()
    print("found " + json.dumps(found))


if __name__ == "__main__":
    main()
