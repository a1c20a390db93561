"""The gain over the best of k, against every subset written down."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles import advantages as advantages_oracle
from tests.oracles import rl as oracle
from tests.rl.rewarded import batches, solve


@pytest.mark.integration
@settings(max_examples=40, deadline=None, derandomize=True)
@given(batches(), st.sampled_from([None, 2, 3, 4, 9]))
def test_best_of_k(batch: tuple[list[float], list[int], list[int]], k: int | None) -> None:
    rewards, groups, lengths = batch
    options: dict[str, Any] = {"name": "best_of_k", "k": k}
    expected = advantages_oracle.best_of_k(rewards, groups, k)
    assert solve(options, rewards, groups, lengths=lengths) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    spreads = [oracle.std([rewards[j] for j in advantages_oracle.members(groups, i)], 1) for i in range(len(rewards))]
    divided = solve({**options, "std": "group", "eps": 1e-4}, rewards, groups, lengths=lengths)
    assert divided == pytest.approx(
        [a / (s + 1e-4) for a, s in zip(expected, spreads, strict=True)], rel=1e-6, abs=1e-7
    )


def test_only_the_best_of_a_whole_group_has_an_advantage_and_two_best_have_none() -> None:
    assert solve("best_of_k", [0.2, 1.0, 0.7, 0.0], [0] * 4) == pytest.approx([0, 0.3, 0, 0], abs=1e-12)
    assert solve("best_of_k", [1.0, 1.0, 0.7, 0.0], [0] * 4) == [0.0] * 4
    # with pairs, a right answer counts for each wrong one that it is compared with: 3 of 6
    assert solve({"name": "best_of_k", "k": 2}, [1.0, 0.0, 0.0, 0.0], [0] * 4) == pytest.approx([0.5, 0, 0, 0])
