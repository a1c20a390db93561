"""One rank that trains on responses which other ranks sampled; prints what it got, and how far it is from one process.

Run by `test_records.py` as `python -m tests.train.records_rank`; the place is in RANK and WORLD_SIZE.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from tests.train import episodes, sampled
from tests.train.batches import OPTIMIZER, groups_of, longer, parts_of, policy, settings_of, stale
from verizero.pipeline.config.sections import TrainConfig
from verizero.pipeline.run.dealing import gather_groups, share_of
from verizero.pipeline.scoring.score import GradingTally
from verizero.pipeline.train import prepare
from verizero.pipeline.train.collate import MemberIndex, members_of_rows, row_lengths, rows_of_ranks
from verizero.pipeline.train.micros import micros_of
from verizero.pipeline.train.ranks import Ranks, join, leave, sharing_sequences
from verizero.pipeline.train.records import with_own_records, with_records_on_first, without_records
from verizero.pipeline.train.step import update
from verizero.pipeline.train.torch_backend import TorchBackend
from verizero.pipeline.types import Group, KeptTokens, Prompt, Rollout, ScoredRollout, Verdict

SET = 200
"""Tokens of a kept set whose bytes are counted: far more than the other numbers of its place."""


def gathered_of(ranks: Ranks, groups: Sequence[Group]) -> list[Group]:
    """The groups as this rank has them after all ranks have sampled their shares."""
    share = share_of(ranks, [g.prompt for g in groups])
    (gathered,), _ = gather_groups(ranks, share, [[groups[i] for i in share.indices]], GradingTally({}, 0, 0.0))
    return gathered


def trained(ranks: Ranks, groups: Sequence[Group], case: str) -> dict[str, Any]:
    """Weights after two updates; prompts are shared in the cases that say so."""
    _, name, params = CASES[case]
    backend = TorchBackend(policy(), ranks, TrainConfig(packing="auto" if "shared" in case else "off"))
    backend.start(OPTIMIZER, 10)
    backend.reference = policy(100).requires_grad_(False)
    parts = parts_of(name, **params)
    if parts.critic is not None:
        backend.start_critic(parts.critic.shared, OPTIMIZER, 10)
    for step in range(2):
        update(backend, parts, groups, settings_of(parts, 40, step=step))
    return {k: v.detach().clone() for k, v in backend.model.state_dict().items()}


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


def updates(ranks: Ranks) -> dict[str, float]:
    """How far the weights of each case are from those of one process; each rank is the one process of some cases."""
    mine = [name for i, name in enumerate(CASES) if i % ranks.size == ranks.rank]
    gathered = ranks.gather({name: trained(Ranks(), CASES[name][0](), name) for name in mine})
    by_one = {name: ends for part in gathered for name, ends in part.items()}
    out = {}
    for name, (make, _, _) in CASES.items():
        weights = trained(ranks, gathered_of(ranks, make()), name)
        out[name] = max(float((weights[k] - v).abs().max()) for k, v in by_one[name].items())
    return out


def recorded_groups() -> list[Group]:
    """Responses of a model with experts, with kept sets and routes."""
    model = sampled.model_of("qwen3_moe")
    return sampled.groups_of(model, sampled.Sampling(sampled.MAX, 0.9, 0.8, max_kept=9, keep_routing=True))


def same(ranks: Ranks) -> dict[str, bool]:
    """All ranks have equal responses, where nothing was recorded; and all but the records, where something was."""
    plain, recorded = groups_of(5), recorded_groups()
    bare = [without_records(g, 0) for g in recorded]
    return {
        "plain": gathered_of(ranks, plain) == plain,
        "recorded": [
            dataclasses.replace(without_records(g, 0), members=tuple(map(by_nobody, without_records(g, 0).members)))
            for g in gathered_of(ranks, recorded)
        ]
        == [dataclasses.replace(g, members=tuple(map(by_nobody, g.members))) for g in bare],
    }


def by_nobody(member: ScoredRollout) -> ScoredRollout:
    return dataclasses.replace(member, rollout=dataclasses.replace(member.rollout, recorded_by=None))


def large_groups(num: int) -> list[Group]:
    """Groups of four responses, with a kept set of many tokens at each place."""
    out = []
    for g in range(num):
        kept = KeptTokens((SET,) * 20, bytes(4 * 20 * SET))
        members = []
        for sample in range(4):
            ids, logprobs = array("i", range(20)), array("f", [-0.5] * 20)
            rollout = Rollout(f"p{g}", sample, array("i", (1, 2)), ids, logprobs, "x", "stop", 3, kept)
            members.append(ScoredRollout(rollout, Verdict("graded", sample % 2), float(sample % 2)))
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
    """The bytes that came to this rank, as a share of those of all responses; and the records that it has then."""
    groups = large_groups(8)
    counted = Counted()
    everything = sum(len(m.rollout.kept.ids) for g in groups for m in g.members if m.rollout.kept is not None)
    gathered = gathered_of(ranks, groups)
    by_gather = counted.bytes
    lengths, _ = row_lengths(gathered)
    mine = with_own_records(ranks, gathered, lengths, [range(len(lengths))])
    trained_on = counted.bytes - by_gather
    before, after = here(gathered), here(mine)
    place_of = [place for place, _ in members_of_rows(groups)]
    return {
        "gathered": by_gather / everything,
        "trained on": trained_on / everything,
        "sampled": before,
        "arrived": sorted(set(after) - set(before)),
        "wanted": sorted(place_of[i] for i in rows_of_ranks(lengths, ranks.size)[ranks.rank]),
        "on first": with_records_on_first(ranks, gathered) == groups,
        "nothing": [x == [] for x in ranks.exchange([[] for _ in range(ranks.size)])],
        "empty": ranks.exchange([(ranks.rank, r) for r in range(ranks.size)])
        == [(r, ranks.rank) for r in range(ranks.size)],
    }


def here(groups: Sequence[Group]) -> list[MemberIndex]:
    """The responses of which this rank has the records."""
    return [(g, m) for g, x in enumerate(groups) for m, y in enumerate(x.members) if y.rollout.recorded_by is None]


def records(ranks: Ranks) -> dict[str, bool]:
    """This rank's micro-batches are those cut from a batch with all records."""
    groups = recorded_groups()
    parts = parts_of("grpo", kl_coef=0.0)  # no reference, so that nothing is computed
    settings = settings_of(parts, 40)
    backend = TorchBackend(policy(), ranks)
    wanted = prepare.prepare(TorchBackend(policy()), parts, groups, settings).batch
    batch = prepare.prepare(backend, parts, gathered_of(ranks, groups), settings).batch
    rows = list(range(len(batch.rewards)))
    pairs = zip(
        micros_of(batch, rows, settings.micro_batch_tokens, ranks),
        micros_of(wanted, rows, settings.micro_batch_tokens, ranks),
        strict=True,
    )
    places = None if batch.records is None else batch.records.places
    return {
        "some": places is not None and -1 in places,
        "micros": all(torch.equal(at, theirs) and alike(m, other) for (at, m, _), (theirs, other, _) in pairs),
    }


def alike(micro: Any, other: Any) -> bool:
    """Both micro-batches have equal tensors, records among them; an idle one has no tokens to be equal."""
    if not bool(other.response_mask.any()):
        return not bool(micro.response_mask.any())
    names = ("input_ids", "attention_mask", "response_mask", "rollout_logprobs", "rewards", "group_ids", "truncated")
    record = ("kept_sizes", "kept_ids", "routing")
    return (
        all(torch.equal(getattr(micro, n), getattr(other, n)) for n in names)
        and all(torch.equal(micro.extras[n], other.extras[n]) for n in other.extras)
        and all(torch.equal(getattr(micro.records, n), getattr(other.records, n)) for n in record)
    )


def sets(ranks: Ranks) -> dict[str, Any]:
    """Where two ranks hold each sequence together, both get the records of its rows."""
    ranks, groups = sharing_sequences(ranks, 2), large_groups(6)
    gathered = gathered_of(ranks, groups)
    lengths, _ = row_lengths(gathered)
    mine = with_own_records(ranks, gathered, lengths, [range(len(lengths))])
    rows = rows_of_ranks(lengths, ranks.row_ranks.size)[ranks.row_ranks.rank]
    places = [members_of_rows(groups)[i][0] for i in rows]
    return {"rows": rows, "right": all(mine[g].members[m] == groups[g].members[m] for g, m in places)}


def main() -> None:
    """Print what each part found; `received` is last, as it leaves its counter in place."""
    torch.set_num_threads(1)
    ranks = join(600.0)
    found: dict[str, Any] = {"updates": updates(ranks), "records": records(ranks), "same": same(ranks)}
    if ranks.size == 4:
        found["sets"] = sets(ranks)
    found["received"] = received(ranks)
    leave()
    print("found " + json.dumps(found))


if __name__ == "__main__":
    main()
