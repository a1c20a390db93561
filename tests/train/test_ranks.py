"""How work is dealt out over ranks: every row once, as many micro-batches everywhere, equal prompts together."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.train.batches import groups_of
from verizero.pipeline.errors import RunError
from verizero.pipeline.run.dealing import share_of, sum_of_tallies
from verizero.pipeline.scoring.score import GradingTally
from verizero.pipeline.train.collate import collate, idle_micro_batch, micro_batches, rank_micro_batches
from verizero.pipeline.train.ranks import ALONE, Ranks, collective_errors, ranks_of_environment
from verizero.pipeline.types import Prompt


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 200), st.integers(1, 5))
def test_every_row_is_dealt_once_and_all_ranks_have_as_many_micro_batches(
    lengths: list[int], budget: int, size: int
) -> None:
    hands = [rank_micro_batches(lengths, budget, rank, size) for rank in range(size)]
    assert sorted(i for pieces, _ in hands for piece in pieces for i in piece) == list(range(len(lengths)))
    assert len({len(pieces) + idle for pieces, idle in hands}) == 1
    assert min(idle for _, idle in hands) == 0
    loads = [sum(lengths[i] for piece in pieces for i in piece) for pieces, _ in hands]
    assert max(loads) - min(loads) <= max(lengths), "the last row that the fullest rank took went to the emptiest"


def test_one_rank_has_the_micro_batches_of_a_single_process() -> None:
    lengths = [3, 9, 4, 9, 1, 7]
    assert rank_micro_batches(lengths, 12, 0, 1) == (micro_batches(lengths, 12), 0)


def test_an_idle_micro_batch_trains_on_nothing() -> None:
    batch = collate(groups_of(), 0)
    idle = idle_micro_batch(batch)
    assert idle.input_ids.shape[0] == 1
    assert idle.input_ids.shape[1] == int(batch.attention_mask.sum(1).min())
    assert float(idle.response_mask.sum()) == 0


def prompts(names: str) -> list[Prompt]:
    return [Prompt(n, "?", "exact", "x") for n in names]


def test_a_prompt_that_comes_twice_goes_to_one_rank_both_times() -> None:
    everything = prompts("abcadb")
    shares = [share_of(Ranks(r, 2), everything) for r in (0, 1)]
    assert ["".join(p.id for p in s.prompts) for s in shares] == ["aca", "bdb"]
    assert sorted(i for s in shares for i in s.indices) == list(range(6))
    assert [everything[i] for i in shares[1].indices] == shares[1].prompts
    assert share_of(ALONE, everything).prompts == everything


def test_some_ranks_have_no_prompt_where_there_are_more_ranks() -> None:
    assert [len(share_of(Ranks(r, 3), prompts("ab")).prompts) for r in range(3)] == [1, 1, 0]


def test_tallies_add_but_for_the_time_that_went_by_beside() -> None:
    found = sum_of_tallies(
        [GradingTally({"graded": 2}, 1, 3.0, 2.0), GradingTally({"graded": 1, "timeout": 4}, 0, 1.0, 5.0)]
    )
    assert found == GradingTally({"graded": 3, "timeout": 4}, 1, 4.0, 5.0)


def test_alone_everything_stays_as_it_is() -> None:
    values = torch.arange(3.0)
    assert ALONE.all_reduce(values) is values
    assert ALONE.gather("x") == ["x"]
    assert ALONE.decide_on_first(lambda: 4) == 4
    assert ALONE.any(True)
    assert not ALONE.any(False)


def test_a_place_outside_the_group_is_refused() -> None:
    assert ranks_of_environment({"RANK": "1", "WORLD_SIZE": "2"}) == Ranks(1, 2)
    assert ranks_of_environment({}) == ALONE
    with pytest.raises(RunError, match="RANK=2 is not among WORLD_SIZE=2"):
        ranks_of_environment({"RANK": "2", "WORLD_SIZE": "2"})


def test_a_gpu_that_is_full_is_not_taken_for_a_rank_that_does_not_answer() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="tried to allocate 2 GiB"), collective_errors():
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")
    with pytest.raises(RunError, match="gets no answer from the others"), collective_errors():
        raise RuntimeError("NCCL timeout")
