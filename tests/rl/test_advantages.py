"""Advantages against the double, the published table of conventions, and properties of groups."""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracles import advantages as advantages_oracle
from tests.oracles import rl as oracle
from tests.rl.rewarded import batches, inputs_of, parts_of, per_response, solve
from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.errors import DataError
from verizero.pipeline.rl.credit import AdvantageInputs, compute_advantages
from verizero.pipeline.rl.parts import Part

NORM = {"name": "group_norm"}


@pytest.mark.parametrize(
    ("advantage", "first", "others"),
    [
        ({**NORM, "ddof": 1, "eps": 1e-6}, 1.499997, -0.499999),
        ({**NORM, "ddof": 1, "eps": 1e-4}, 1.499700, -0.499900),
        ({**NORM, "ddof": 0, "eps": 1e-8}, 1.732051, -0.577350),
        ("group_mean", 0.75, -0.25),
        ({**NORM, "std": "none"}, 0.75, -0.25),
        ("leave_one_out", 1.0, -0.333333),
        ("max_rl", 3.0, -1.0),
    ],
)
def test_the_published_conventions_for_one_success_in_four(advantage: Any, first: float, others: float) -> None:
    assert solve(advantage, [1.0, 0.0, 0.0, 0.0], [7, 7, 7, 7]) == pytest.approx([first, *[others] * 3], abs=5e-7)


@pytest.mark.run
@settings(max_examples=60, derandomize=True)
@given(
    batches(),
    st.sampled_from(["group", "batch", "none"]),
    st.integers(0, 1),
)
def test_group_norm(batch: tuple[list[float], list[int], list[int]], std: str, ddof: int) -> None:
    rewards, groups, lengths = batch
    options = {"name": "group_norm", "std": std, "ddof": ddof, "eps": 1e-4}
    expected = advantages_oracle.group_norm(rewards, groups, std, ddof, 1e-4)
    assert solve(options, rewards, groups, lengths=lengths) == pytest.approx(expected, rel=1e-6, abs=1e-7)


@pytest.mark.run
@settings(max_examples=40, derandomize=True)
@given(batches())
def test_the_other_group_estimators(batch: tuple[list[float], list[int], list[int]]) -> None:
    rewards, groups, lengths = batch
    near = {"rel": 1e-9, "abs": 1e-9}
    got = {
        name: solve(name, rewards, groups, lengths=lengths)
        for name in ("group_mean", "leave_one_out", "optimal_baseline", "batch_mean", "none")
    }
    centred = advantages_oracle.group_norm(rewards, groups, "none", 0, 0)
    assert got["group_mean"] == pytest.approx(centred, **near)
    sizes = [groups.count(g) for g in groups]
    others = [c * n / (n - 1) for c, n in zip(centred, sizes, strict=True)]  # R_i - mean of the others
    assert got["leave_one_out"] == pytest.approx(others, **near)
    assert got["optimal_baseline"] == pytest.approx(
        advantages_oracle.optimal_baseline(rewards, groups, lengths), **near
    )
    assert got["batch_mean"] == pytest.approx(advantages_oracle.batch_mean(rewards), **near)
    assert got["none"] == rewards
    above = [abs(r) for r in rewards]
    assert solve("max_rl", above, groups, lengths=lengths) == pytest.approx(
        advantages_oracle.max_rl(above, groups), **near
    )


@pytest.mark.parametrize("rewards", [[1.0, -1.0, 1e-9, 0.0], [-1.0, -1.0, -1.0, 0.0], [-1e-9, 1.0, 1.0, 1.0]])
def test_a_mean_of_rewards_below_0_divides_nothing(rewards: list[float]) -> None:
    """A mean near 0 would give advantages of billions, and one below 0 none, without a word."""
    with pytest.raises(
        DataError, match=r"reward of row \d is -.*'max_rl' divides by the mean of rewards of at least 0"
    ):
        solve("max_rl", rewards, [0] * 4)
    assert max(map(abs, solve("max_rl", [1.0, 0.0, 1e-9, 0.0], [0] * 4))) < 4


@settings(max_examples=40, derandomize=True)
@given(batches(), st.integers(0, 1))
def test_group_mean_batch_norm(batch: tuple[list[float], list[int], list[int]], ddof: int) -> None:
    rewards, groups, lengths = batch
    centred = advantages_oracle.group_norm(rewards, groups, "none", 0, 0)
    everything = oracle.whiten([c for c, n in zip(centred, lengths, strict=True) for _ in range(n)], ddof, 1e-4)
    firsts = [sum(lengths[:i]) for i in range(len(lengths))]
    options = {"name": "group_mean_batch_norm", "ddof": ddof, "eps": 1e-4}
    found = solve(options, rewards, groups, lengths=lengths)
    assert found == pytest.approx([everything[i] for i in firsts], rel=1e-7, abs=1e-7)


def test_whitening_over_tokens_leaves_no_pull_where_wrong_answers_are_longer() -> None:
    """The numbers of the method's own code: the mean over all 50 tokens is 0, where it was -0.6."""
    inputs = inputs_of([1.0, 0.0], [0, 0], [10, 40])
    found = per_response(compute_advantages(load_algorithm("reinforce_pp_baseline")[1], inputs), inputs)
    assert found == pytest.approx([2.0, -0.5], abs=1e-7)


@settings(max_examples=30, derandomize=True)
@given(batches(), st.integers(0, 10**6))
def test_components_are_normalised_one_by_one(batch: tuple[list[float], list[int], list[int]], seed: int) -> None:
    rewards, groups, _ = batch
    r = random.Random(seed)
    components = [[reward, r.gauss(0, 5), float(r.random() < 0.5)] for reward in rewards]
    weights = (1.0, 0.5, 2.0)
    inputs = inputs_of(rewards, groups, reward_components=torch.tensor(components, dtype=torch.float64))
    parts = parts_of({"name": "normalize_then_sum", "weights": list(weights), "eps": 1e-4})
    expected = advantages_oracle.normalize_then_sum(components, groups, weights, 1, 1e-4)
    assert per_response(compute_advantages(parts, inputs), inputs) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.run
@settings(max_examples=40, derandomize=True)
@given(batches(), st.sampled_from([None, 2, 3, 4, 9]))
def test_best_of_k(batch: tuple[list[float], list[int], list[int]], k: int | None) -> None:
    rewards, groups, lengths = batch
    options: dict[str, Any] = {"name": "best_of_k", "k": k}
    expected = advantages_oracle.best_of_k(rewards, groups, k)
    assert solve(options, rewards, groups, lengths=lengths) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_only_the_best_of_a_whole_group_has_an_advantage_and_two_best_have_none() -> None:
    assert solve("best_of_k", [0.2, 1.0, 0.7, 0.0], [0] * 4) == pytest.approx([0, 0.3, 0, 0], abs=1e-12)
    assert solve("best_of_k", [1.0, 1.0, 0.7, 0.0], [0] * 4) == [0.0] * 4
    # with pairs, a right answer counts for each wrong one that it is compared with: 3 of 6
    assert solve({"name": "best_of_k", "k": 2}, [1.0, 0.0, 0.0, 0.0], [0] * 4) == pytest.approx([0.5, 0, 0, 0])


def test_the_greedy_response_is_the_baseline() -> None:
    inputs = inputs_of([1.0, 0.0, 0.5], [0, 0, 1], greedy_rewards=torch.tensor([0.25, 0.25, 1.0]))
    found = compute_advantages(parts_of("greedy_baseline"), inputs)
    assert per_response(found, inputs) == [0.75, -0.25, -0.5]


GROUPED = (
    *("group_norm", "group_mean", "leave_one_out", "max_rl", "best_of_k", "group_mean_batch_norm", "optimal_baseline"),
    "batch_mean",
)


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e8, 0.7])
def test_equal_rewards_give_exactly_nothing(name: str, value: float) -> None:
    # 0.1 + 0.1 + 0.1 is not 0.3: a spread of rounding must not be divided by itself
    assert solve(name, [value] * 7, [5] * 7) == [0.0] * 7


@pytest.mark.parametrize("name", ["reward_to_go_norm", "group_mean_batch_norm"])
def test_whitening_without_spread_gives_exactly_nothing_though_eps_is_0(name: str) -> None:
    assert solve({"name": name, "eps": 0.0}, [0.1] * 7, [5] * 7, lengths=[1] * 7) == [0.0] * 7


@pytest.mark.run
@settings(max_examples=30, derandomize=True)
@given(batches(), st.sampled_from(GROUPED), st.randoms(use_true_random=False))
def test_order_in_the_batch_does_not_matter(batch: Any, name: str, shuffle: random.Random) -> None:
    rewards, groups, lengths = batch
    rewards = [abs(r) for r in rewards] if name == "max_rl" else rewards
    order = list(range(len(rewards)))
    shuffle.shuffle(order)
    straight = solve(name, rewards, groups, lengths=lengths)
    moved = solve(name, [rewards[i] for i in order], [groups[i] for i in order], lengths=[lengths[i] for i in order])
    assert moved == pytest.approx([straight[i] for i in order], rel=1e-6, abs=1e-7)


@settings(max_examples=30, derandomize=True)
@given(batches(), st.sampled_from([n for n in GROUPED if n != "max_rl"]), st.sampled_from([-3.0, 0.5, 16.0]))
def test_a_shift_of_all_rewards_changes_nothing(batch: Any, name: str, shift: float) -> None:
    rewards, groups, lengths = batch
    # quarters: shifted without rounding
    rewards = [round(4 * r) / 4 for r in rewards]
    straight = solve(name, rewards, groups, lengths=lengths)
    shifted = solve(name, [r + shift for r in rewards], groups, lengths=lengths)
    assert shifted == pytest.approx(straight, rel=1e-6, abs=1e-7)


def test_a_callable_can_stand_for_an_estimator() -> None:
    parts = dataclasses.replace(parts_of("none"), advantage=Part(lambda x, scale: scale * x.rewards, {"scale": 3.0}))
    inputs = inputs_of([1.0, -2.0], [0, 1])
    assert per_response(compute_advantages(parts, inputs), inputs) == [3.0, -6.0]


def test_metrics_of_a_batch() -> None:
    inputs = inputs_of([1.0, 0.0, 1.0, 1.0], [0, 0, 1, 1], [1, 3, 2, 2])
    stats = compute_advantages(parts_of("group_mean"), inputs).stats
    assert stats["reward/mean"] == 0.75
    assert stats["groups/without_signal"] == 0.5
    assert stats["response/length_mean"] == 2.0
    assert stats["advantage/mean"] == pytest.approx((0.5 - 3 * 0.5) / 8)


def refused(inputs: AdvantageInputs, says: str, advantage: str = "group_mean") -> None:
    with pytest.raises(DataError, match=says):
        compute_advantages(parts_of(advantage), inputs)


def test_what_cannot_be_is_refused() -> None:
    refused(inputs_of([1.0, 0.0, 1.0], [0, 0, 9]), "group 9 has 1 response")
    refused(inputs_of([1.0, float("nan")], [0, 0]), "row 1 is nan")
    refused(inputs_of([1.0, 0.0], [0, 0]), "greedy_rewards", "greedy_baseline")
    refused(inputs_of([1.0, 0.0], [0, 0]), "reward_components", "normalize_then_sum")
    refused(inputs_of([1.0, 0.0], [0, 0]), "score_norms", "optimal_token_baseline")
    with pytest.raises(DataError, match="values"):
        compute_advantages(load_algorithm("ppo", {"kl_coef": 0})[1], inputs_of([1.0, 0.0], [0, 0]))
    with pytest.raises(DataError, match="needs turn_rewards"):
        compute_advantages(load_algorithm("dr_grpo", {"credit": "turns"})[1], inputs_of([1.0, 0.0], [0, 0]))
    wrong = inputs_of([1.0, 0.0], [0, 0], reward_components=torch.ones(2, 3))
    with pytest.raises(DataError, match="2 numbers for 3"):
        compute_advantages(parts_of({"name": "normalize_then_sum", "weights": [1.0, 2.0]}), wrong)


LOGITS = torch.tensor([0.3, -0.8, 1.1, 0.0, -0.4], dtype=torch.float64, requires_grad=True)
"""A policy of five words, each of which is a response."""
GRADED = torch.tensor([0.3, 1.0, -0.5, 0.2, 0.9], dtype=torch.float64)
RIGHT = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0], dtype=torch.float64)


def gradient(value: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(value, LOGITS)[0]


def expected(name: str, rewards: torch.Tensor, size: int, **params: Any) -> torch.Tensor:
    """The mean over all groups that the policy can sample of mean_i A_i grad log pi(y_i), written down one by one."""
    groups = torch.tensor(list(itertools.product(range(5), repeat=size)))
    rows, logp = groups.flatten(), LOGITS.log_softmax(0)
    p = logp.detach().exp()
    inputs = inputs_of(
        rewards[rows].tolist(), torch.arange(len(groups)).repeat_interleave(size).tolist(), [1] * len(rows)
    )
    norms = (1 - 2 * p + (p**2).sum())[rows].unsqueeze(1).expand(inputs.response_mask.shape)
    inputs = dataclasses.replace(inputs, score_norms=norms)
    advantages = compute_advantages(load_algorithm(name, {"kl_coef": 0, **params})[1], inputs).advantages.sum(1)
    return gradient(((advantages.view(groups.shape) * logp[groups]).mean(1) * p[groups].prod(1)).sum())


@pytest.mark.parametrize("size", [2, 3, 4])
def test_estimators_follow_what_they_stand_for(size: int) -> None:
    """max_rl: the likelihood of a right answer to the order of the group, -sum_(k < size) (1 - p)^k / k."""
    near = {"rtol": 1e-12, "atol": 1e-14}
    p = LOGITS.softmax(0)
    wrong = 1 - (p * RIGHT).sum()
    torch.testing.assert_close(
        expected("max_rl", RIGHT, size), gradient(-sum(wrong**k / k for k in range(1, size))), **near
    )
    mean = gradient((LOGITS.softmax(0) * GRADED).sum())
    torch.testing.assert_close(expected("otb", GRADED, size), mean, **near)
    # a response's own reward is in the mean of the batch: 1 - 1 / size of the gradient
    torch.testing.assert_close(expected("dr_grpo", GRADED, size), (1 - 1 / size) * mean, **near)
    for k in (2, size):
        tuples = torch.tensor(list(itertools.product(range(5), repeat=k)))
        best = (LOGITS.softmax(0)[tuples].prod(1) * GRADED[tuples].max(1).values).sum()
        torch.testing.assert_close(size * expected("pass_at_k", GRADED, size, k=k), gradient(best), **near)
