"""Our losses and gradients against TRL's own code; where theirs departs from the paper, both are pinned."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.oracles.preferences import mean_loss
from tests.preferences.sides import Random
from tests.preferences.trainers import gradient_of, our_loss, their_dpo, their_kto, their_pairwise, trainer_of
from verizero.pipeline.preferences.orpo import log_odds

SEEDS = range(3)
CLOSE = {"rel": 1e-5, "abs": 1e-6}


def same(ours: tuple[float, Tensor], theirs: tuple[float, Tensor]) -> None:
    assert ours[0] == pytest.approx(theirs[0], **CLOSE)
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "kind", "beta"), [("dpo", "sigmoid", 0.1), ("dpo", "sigmoid", 0.7), ("ipo", "ipo", 0.2)]
)
def test_loss_and_gradient_are_trls(name: str, kind: str, beta: float, seed: int) -> None:
    batch = Random(seed)
    theirs = gradient_of(batch, lambda lp: their_dpo(batch, lp, loss_types=[kind], beta=beta))
    same(our_loss(name, batch, beta=beta), theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_label_smoothing_is_that_of_trls_aot_on_one_pair_where_its_sorting_does_nothing(seed: int) -> None:
    batch = Random(seed, 1, 1)
    given = {"beta": 0.5, "label_smoothing": 0.2}
    theirs = gradient_of(batch, lambda lp: their_dpo(batch, lp, loss_types=["aot"], **given))
    same(our_loss("dpo", batch, **given), theirs)


def test_trls_dpo_takes_no_label_smoothing_ours_does() -> None:
    batch = Random(0)
    plain, smoothed = (
        float(their_dpo(batch, batch.lp, loss_types=["sigmoid"], beta=0.5, label_smoothing=s)) for s in (0.0, 0.2)
    )
    assert smoothed == plain
    ours = our_loss("dpo", batch, beta=0.5, label_smoothing=0.2)[0]
    assert ours == pytest.approx(mean_loss("dpo", *batch.lists(), 0.0, {"beta": 0.5, "label_smoothing": 0.2}), rel=1e-9)
    assert abs(ours - plain) > 1e-2


def test_trls_ipo_averages_over_tokens_the_papers_formula_sums() -> None:
    batch = Random(1)
    theirs = float(their_dpo(batch, batch.lp, loss_types=["ipo"], beta=0.2))
    assert our_loss("ipo", batch, beta=0.2)[0] == pytest.approx(theirs, **CLOSE)
    summed = our_loss("ipo", batch, beta=0.2, length_average=False)[0]
    chosen, rejected = batch.lists()
    wanted = sum((w.h - r.h - 2.5) ** 2 for w, r in zip(chosen, rejected, strict=True)) / len(chosen)
    assert summed == pytest.approx(wanted, rel=1e-9)
    assert abs(summed - theirs) > 0.1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("sides", [(4, 4), (5, 2), (3, 0)])
@pytest.mark.parametrize("drift", [0.8, -0.8])
def test_kto_is_trls_with_its_reference_point_clamped_at_0(seed: int, sides: tuple[int, int], drift: float) -> None:
    batch = Random(seed, *sides)
    given = {"beta": 0.4, "desirable_weight": 1.3, "undesirable_weight": 0.6}
    mismatched = torch.full((sum(sides),), drift, dtype=torch.float64), torch.zeros(sum(sides), dtype=torch.float64)
    theirs = gradient_of(batch, lambda lp: their_kto(batch, lp, mismatched, **given))
    same(our_loss("kto", batch, z=max(0.0, drift), **given), theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_simpo_is_trls_without_its_likelihood_term(seed: int) -> None:
    batch = Random(seed)
    given = {"beta": 2.5, "label_smoothing": 0.1}

    def theirs(lp: Tensor) -> Tensor:
        trainer = trainer_of(
            "experimental.cpo.CPOTrainer",
            loss_type="simpo",
            simpo_gamma=0.7,
            cpo_alpha=0.0,
            alpha=0.0,
            **given,
        )
        return their_pairwise(trainer, batch, lp)

    same(our_loss("simpo", batch, gamma=0.7, **given), gradient_of(batch, theirs))


def test_trls_simpo_adds_the_chosen_likelihood_by_default_the_paper_and_ours_do_not() -> None:
    batch = Random(2)
    trainer = trainer_of(
        "experimental.cpo.CPOTrainer",
        loss_type="simpo",
        simpo_gamma=0.7,
        cpo_alpha=1.0,
        alpha=0.0,
        beta=2.5,
        label_smoothing=0.0,
    )
    chosen = batch.mask[: batch.num_chosen]
    tokens = -batch.lp[: batch.num_chosen][chosen].mean()
    theirs = float(their_pairwise(trainer, batch, batch.lp))
    assert theirs == pytest.approx(our_loss("simpo", batch, beta=2.5, gamma=0.7)[0] + float(tokens), **CLOSE)


def orpo(batch: Random, lp: Tensor, prompt: int = 1) -> Tensor:
    return their_pairwise(trainer_of("experimental.orpo.ORPOTrainer", beta=0.6), batch, lp, prompt)


@pytest.mark.parametrize("seed", SEEDS)
def test_orpo_is_trls_on_responses_of_one_length_behind_one_token(seed: int) -> None:
    batch = Random(seed)
    batch.mask = torch.ones_like(batch.mask)
    same(our_loss("orpo", batch, beta=0.6), gradient_of(batch, lambda lp: orpo(batch, lp)))


def test_trls_orpo_trains_the_prompt_too_and_means_over_tokens_ours_the_response_and_over_responses() -> None:
    batch = Random(4)
    n, prompt = batch.num_chosen, 3
    odds = our_loss("orpo", batch, beta=0.6)[0] - our_loss("orpo", batch, beta=1e-12)[0]
    per_response = [-w.mean for w in batch.lists()[0]]
    assert our_loss("orpo", batch, beta=0.6)[0] == pytest.approx(sum(per_response) / n + odds, rel=1e-9)
    half = n * (prompt - 1) * -torch.tensor(0.5, dtype=torch.float64).log()
    tokens = batch.mask[:n]
    over_all = (half - batch.lp[:n][tokens].sum()) / (tokens.sum() + n * (prompt - 1))
    assert float(orpo(batch, batch.lp, prompt)) == pytest.approx(float(over_all) + odds, **CLOSE)


def test_trls_odds_are_ours_for_certain_and_for_unlikely_responses() -> None:
    trainer = trainer_of("experimental.orpo.ORPOTrainer", beta=1.0)
    log_p = torch.tensor([-1e-3, -0.2, -0.8, -30.0], dtype=torch.float64)
    losses, *_ = trainer.odds_ratio_loss(log_p, log_p.flip(0))
    ours = F.logsigmoid(log_odds(log_p) - log_odds(log_p.flip(0)))
    torch.testing.assert_close(losses.double(), ours, rtol=1e-4, atol=1e-5)
