"""Advantages against the double and by properties of groups, and the score norms of the optimal token baseline."""

import dataclasses
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
from verizero.pipeline.rl.logprobs import logprobs_and_entropy, score_norms


@pytest.mark.run
@settings(max_examples=60, derandomize=True)
@given(batches(), st.sampled_from(["group", "batch", "none"]), st.integers(0, 1))
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


LENGTHS, GROUPS = [3, 1, 4, 2, 2, 2], [0, 0, 0, 1, 1, 1]


def with_norms(seed: int, coef: float) -> tuple[AdvantageInputs, list[list[float]], list[list[float]]]:
    """Inputs with gaps between tokens and NaN around them, the rewards to go and the norms token by token."""
    r = random.Random(seed)
    mask = torch.zeros(len(LENGTHS), 9)
    old, ref, norms = (torch.full(mask.shape, float("nan"), dtype=torch.float64) for _ in range(3))
    rewards = [r.random() for _ in LENGTHS]
    to_go, sizes = [], []
    for i, size in enumerate(LENGTHS):
        places = sorted(r.sample(range(9), size))
        kls = [r.gauss(0, 1) for _ in places]
        sizes.append([r.random() + 0.1 for _ in places])
        for t, place in enumerate(places):
            mask[i, place], old[i, place], ref[i, place] = 1.0, -1.0, -1.0 - kls[t]
            norms[i, place] = sizes[i][t]
        to_go.append([rewards[i] - coef * sum(kls[t:]) for t in range(size)])
    inputs = AdvantageInputs(
        torch.tensor(rewards, dtype=torch.float64),
        torch.tensor(GROUPS),
        mask,
        old_logprobs=old,
        ref_logprobs=ref,
        score_norms=norms,
    )
    return inputs, to_go, sizes


@pytest.mark.parametrize("seed", range(4))
def test_the_optimal_token_baseline_is_the_doubles(seed: int) -> None:
    inputs, to_go, norms = with_norms(seed, 0.3)
    parts = parts_of("optimal_token_baseline", kl_in="reward", kl_form="k1", kl_coef=0.3)
    found = compute_advantages(parts, inputs).advantages
    assert bool((found[inputs.response_mask == 0] == 0).all())
    expected = advantages_oracle.optimal_token_baseline(to_go, norms, GROUPS)
    assert found[inputs.response_mask > 0].tolist() == pytest.approx([a for row in expected for a in row], rel=1e-10)


def test_equal_rewards_give_exactly_nothing_whatever_the_lengths() -> None:
    inputs, _, _ = with_norms(0, 0.0)
    inputs = dataclasses.replace(inputs, rewards=torch.full_like(inputs.rewards, 0.1))
    found = compute_advantages(parts_of("optimal_token_baseline"), inputs).advantages
    assert bool((found == 0).all())


def test_others_without_any_gradient_are_no_division_by_0() -> None:
    inputs, _, _ = with_norms(1, 0.0)
    norms = torch.where(inputs.response_mask > 0, 0.0, inputs.score_norms)
    norms[0] = torch.where(inputs.response_mask[0] > 0, 1.0, norms[0])
    found = compute_advantages(
        parts_of("optimal_token_baseline"), dataclasses.replace(inputs, score_norms=norms)
    ).advantages
    assert bool(torch.isfinite(found).all())
    mean = float(inputs.rewards[1:3].mean())
    first = int(inputs.response_mask[0].nonzero()[0])
    assert float(found[0, first]) == pytest.approx(float(inputs.rewards[0]) - mean, rel=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_score_norms_are_the_squared_gradients_to_the_logits(temperature: float) -> None:
    logits = torch.randn(5, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.tensor([0, 3, 3, 10, 5])
    kept = torch.tensor([[0, 1, 2], [3, -1, -1], [-1, -1, -1], [10, 4, -1], [-1, -1, -1]])
    tempered = (logits / temperature).requires_grad_()
    logprobs, _ = logprobs_and_entropy(tempered, targets, 1.0, kept)
    (gradient,) = torch.autograd.grad(logprobs.sum(), tempered)
    now, _ = logprobs_and_entropy(logits, targets, temperature, kept)
    half, _ = logprobs_and_entropy(logits, targets, temperature / 2, kept)
    assert score_norms(now, half).tolist() == pytest.approx((gradient**2).sum(1).tolist(), rel=1e-10, abs=1e-15)
