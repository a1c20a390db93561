"""Tokens chosen over the whole batch: counts, order, ranks."""

import math
import random

import pytest
import torch
from torch import Tensor

from tests.oracles.rl import mean
from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.errors import DataError
from verizero.pipeline.rl.selection import covariance, random_share, select_tokens, top_share


def grid(seed: int, rows: int = 6, width: int = 9) -> tuple[Tensor, Tensor]:
    """(values with NaN outside, mask)."""
    r = random.Random(seed)
    mask = torch.tensor([[r.random() < 0.6 for _ in range(width)] for _ in range(rows)])
    values = torch.tensor([[r.gauss(0, 1) for _ in range(width)] for _ in range(rows)], dtype=torch.float64)
    return torch.where(mask, values, torch.nan), mask


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_top_share_is_the_largest_values(share: float, seed: int) -> None:
    x, mask = grid(seed)
    found = top_share(x, mask, share)
    values = sorted((float(v) for v in x[mask]), reverse=True)
    num = math.ceil(share * len(values))
    assert sorted((float(v) for v in x[found]), reverse=True) == values[:num]
    assert not bool((found & ~mask).any())


def test_ties_at_the_edge_all_belong_and_there_may_be_nothing_to_choose_from() -> None:
    x = torch.tensor([[1.0, 1.0, 1.0, 0.0]])
    assert top_share(x, torch.ones(1, 4, dtype=torch.bool), 0.25).tolist() == [[True, True, True, False]]
    x, mask = grid(0)
    nothing = torch.zeros_like(mask)
    assert not bool(top_share(x, nothing, 0.5).any())
    assert not bool(random_share(nothing, mask, 0.5, None).any())


def test_covariances_by_hand() -> None:
    lp, mask = grid(1)
    adv, _ = grid(2)
    adv = torch.where(mask, torch.nan_to_num(adv, nan=0.3), torch.inf)
    found = covariance(lp, adv, mask)
    xs, ys = [float(v) for v in lp[mask]], [float(v) for v in adv[mask]]
    expected = [(x - mean(xs)) * (y - mean(ys)) for x, y in zip(xs, ys, strict=True)]
    assert found[mask].tolist() == pytest.approx(expected, rel=1e-12)
    assert bool((found[~mask] == 0).all())


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_the_random_share_draws_that_many_of_the_eligible(share: float) -> None:
    _, mask = grid(3)
    eligible = mask & (torch.arange(9) % 2 == 0)
    num = math.floor(share * int(mask.sum()))
    assert 0 < num < int(eligible.sum())
    drawn = [random_share(eligible, mask, share, torch.Generator().manual_seed(s)) for s in range(200)]
    assert {int(d.sum()) for d in drawn} == {num}
    assert not any(bool((d & ~eligible).any()) for d in drawn)
    again = random_share(eligible, mask, share, torch.Generator().manual_seed(7))
    assert torch.equal(again, drawn[7])
    # each eligible token is drawn about equally often: 5 standard deviations of a binomial
    rate = num / int(eligible.sum())
    counts = torch.stack(drawn).sum(0)[eligible].double() / 200
    assert float((counts - rate).abs().max()) < 5 * math.sqrt(rate * (1 - rate) / 200)


def test_a_small_share_is_one_token_and_fewer_eligible_than_the_share_are_all_taken() -> None:
    _, mask = grid(3)
    assert math.floor(2e-4 * int(mask.sum())) == 0
    assert int(random_share(mask, mask, 2e-4, torch.Generator().manual_seed(0)).sum()) == 1
    assert int(random_share(mask, mask, 0.0, torch.Generator().manual_seed(0)).sum()) == 0
    eligible = torch.zeros_like(mask)
    eligible[0, int(mask[0].nonzero()[0])] = True
    assert torch.equal(random_share(eligible, mask, 0.9, None), eligible)


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
def test_the_covariance_surrogates_select_by_their_own_numbers(name: str) -> None:
    share = {"share": 0.2}
    bounds = {"cov_low": 0.0, "cov_high": 1.0} if name == "clip_cov" else {}
    _, parts = load_algorithm(name, {**share, **bounds})
    lp, mask = grid(6)
    adv = torch.where(mask, torch.randn(6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64), 0.0)
    found = select_tokens(
        parts, advantages=adv, old_logprobs=lp, response_mask=mask.float(), generator=torch.Generator().manual_seed(1)
    )
    assert found.high_entropy is None
    cov, total = covariance(lp, adv, mask), int(mask.sum())
    chosen = cov[found.selected]
    if name == "clip_cov":
        assert len(chosen) == math.floor(0.2 * total)
        assert float(chosen.min()) >= 0.0
        assert float(chosen.max()) <= 1.0
    else:
        assert len(chosen) == math.ceil(0.2 * total)
        assert float(chosen.min()) > float(cov[mask & ~found.selected].max())


def test_the_entropy_mask_needs_and_uses_entropies() -> None:
    _, parts = load_algorithm("dapo", {"high_entropy_share": 0.2})
    entropy, mask = grid(7)
    zeros = torch.zeros_like(entropy)
    with pytest.raises(DataError, match="old_entropy"):
        select_tokens(parts, advantages=zeros, old_logprobs=zeros, response_mask=mask.float())
    found = select_tokens(parts, advantages=zeros, old_logprobs=zeros, response_mask=mask.float(), old_entropy=entropy)
    assert found.selected is None
    assert torch.equal(found.high_entropy, top_share(entropy, mask, 0.2))
