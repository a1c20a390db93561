"""The losses that carry a name of TRL's `loss_type`, with divergences and weights: values and gradients to 1e-9."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.preferences.sides import Random
from tests.preferences.trainers import gradient_of, our_loss, their_dpo, their_kto, their_pairwise, trainer_of

SEEDS = range(3)
NAMES: list[tuple[str, dict[str, Any], str]] = [
    ("dpo", {}, "sigmoid"),
    ("dpo", {"length_average": True}, "sigmoid_norm"),
    ("ipo", {}, "ipo"),
    ("robust", {"label_smoothing": 0.1}, "robust"),
    ("hinge", {}, "hinge"),
    ("exo", {"label_smoothing": 1e-3}, "exo_pair"),
    ("apo_zero", {}, "apo_zero"),
    ("apo_down", {}, "apo_down"),
    ("sppo", {}, "sppo_hard"),
    ("nca", {}, "nca_pair"),
    ("bco", {}, "bco_pair"),
    ("aot", {"label_smoothing": 0.2}, "aot"),
    ("discopop", {}, "discopop"),
]
"""Our name with its options, and TRL's name."""
MARGINS = [*NAMES[:6], NAMES[-1]]
Solved = tuple[float, Tensor]


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    """TRL makes a tensor of `label_smoothing` in the default type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def same(ours: Solved, theirs: Solved, near: float = 1e-9) -> None:
    assert ours[0] == pytest.approx(theirs[0], rel=near, abs=near)
    torch.testing.assert_close(ours[1], theirs[1].to(ours[1]), rtol=near, atol=near)


def their_solved(batch: Random, kind: str, dtype: torch.dtype = torch.float64, **given: Any) -> Solved:
    shared = {k: v for k, v in given.items() if k != "length_average"}
    return gradient_of(batch, lambda lp: their_dpo(batch, lp.to(dtype), loss_types=[kind], **shared))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("beta", [0.1, 0.7])
@pytest.mark.parametrize(("name", "options", "kind"), NAMES)
def test_value_and_gradient_are_trls(name: str, options: dict[str, Any], kind: str, beta: float, seed: int) -> None:
    batch, given = Random(seed), {"beta": beta, **options}
    same(our_loss(name, batch, **given), their_solved(batch, kind, **given))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("divergence", ["reverse_kl", "forward_kl", "js_divergence"])
@pytest.mark.parametrize(("name", "options", "kind"), MARGINS)
def test_each_divergence_is_trls(name: str, options: dict[str, Any], kind: str, divergence: Any, seed: int) -> None:
    batch, given = Random(seed), {"beta": 0.3, **options}
    ours = our_loss(name, batch, **given, f_divergence=divergence)
    same(ours, their_solved(batch, kind, **given, f_divergence_type=divergence))


@pytest.mark.parametrize("alpha", [0.2, 0.5, 1.0])
@pytest.mark.parametrize(("name", "options", "kind"), MARGINS)
def test_the_alpha_divergence_is_trls(name: str, options: dict[str, Any], kind: str, alpha: float) -> None:
    batch, given = Random(1), {"beta": 0.3, **options}
    ours = our_loss(name, batch, **given, f_divergence="alpha_divergence", f_alpha=alpha)
    theirs = {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": alpha}
    # TRL's bound of the exponent knows no float64
    same(ours, their_solved(batch, kind, torch.float32, **given, **theirs), 2e-5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "options", "kind"), [n for n in NAMES if n[0] != "aot"])
def test_wpos_weights_are_trls(name: str, options: dict[str, Any], kind: str, seed: int) -> None:
    batch, given = Random(seed), {"beta": 0.3, **options}
    ours = our_loss(name, batch, **given, wpo=True)
    if kind == "hinge":  # TRL multiplies in place, which the gradient of its relu forbids: the value alone
        value = their_dpo(batch, batch.lp, loss_types=[kind], **given, use_weighting=True)
        assert ours[0] == pytest.approx(float(value), rel=1e-9)
    else:
        same(ours, their_solved(batch, kind, **given, use_weighting=True))
    assert abs(ours[0] - their_solved(batch, kind, **given)[0]) > 1e-3


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("length_average", [False, True])
def test_ld_alpha_is_trls(seed: int, alpha: float, length_average: bool) -> None:
    batch, given = Random(seed), {"beta": 0.3, "ld_alpha": alpha}
    kind = "sigmoid_norm" if length_average else "sigmoid"
    same(our_loss("dpo", batch, **given, length_average=length_average), their_solved(batch, kind, **given))
    plain = our_loss("dpo", batch, beta=0.3, length_average=length_average)[0]
    assert (abs(our_loss("dpo", batch, **given)[0] - plain) > 1e-3) == (alpha != 1 or length_average)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sum_of_losses_is_trls(seed: int) -> None:
    batch = Random(seed)
    losses = [{"name": "dpo", "weight": 0.8}, {"name": "bco", "weight": 0.2}, {"name": "nca", "weight": 2.0}]
    ours = our_loss("mpo", batch, losses=[{**one, "beta": 0.3} for one in losses], nll_coef=0.0)
    given = {"loss_types": ["sigmoid", "bco_pair", "nca_pair"], "loss_weights": [0.8, 0.2, 2.0], "beta": 0.3}
    same(ours, gradient_of(batch, lambda lp: their_dpo(batch, lp, **given)))


@pytest.mark.parametrize("seed", SEEDS)
def test_mpo_is_trls_on_responses_of_one_length(seed: int) -> None:
    """On others TRL's sft is a mean over tokens, ours and the paper's over responses."""
    given = {"loss_types": ["sigmoid", "bco_pair", "sft"], "loss_weights": [0.8, 0.2, 1.0], "beta": 0.1}
    batch, ragged = Random(seed), Random(seed)
    batch.mask = torch.ones_like(batch.mask)
    same(our_loss("mpo", batch), gradient_of(batch, lambda lp: their_dpo(batch, lp, **given)))
    assert abs(our_loss("mpo", ragged)[0] - float(their_dpo(ragged, ragged.lp, **given))) > 1e-3


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("sides", [(4, 4), (5, 2), (3, 0)])
def test_apo_zero_of_single_responses_is_trls(seed: int, sides: tuple[int, int]) -> None:
    batch = Random(seed, *sides)
    given = {"beta": 0.4, "desirable_weight": 1.3, "undesirable_weight": 0.6}
    none = torch.zeros(sum(sides)), torch.zeros(sum(sides))
    unpaired = {"loss_type": "apo_zero_unpaired", "calculate_KL": False}
    theirs = gradient_of(batch, lambda lp: their_kto(batch, lp, none, **unpaired, **given))
    same(our_loss("apo_zero_unpaired", batch, **given), theirs)


def their_cpo(batch: Random, coefficient: float, label_smoothing: float) -> Solved:
    given = {"beta": 0.4, "label_smoothing": label_smoothing, "alpha": 0.0, "cpo_alpha": coefficient}
    return gradient_of(
        batch,
        lambda lp: their_pairwise(trainer_of("experimental.cpo.CPOTrainer", loss_type="sigmoid", **given), batch, lp),
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("coefficient", [0.0, 0.7])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_cpo_is_trls_on_responses_of_one_length(seed: int, coefficient: float, label_smoothing: float) -> None:
    batch = Random(seed)
    if coefficient:
        batch.mask = torch.ones_like(batch.mask)
    ours = our_loss("cpo", batch, beta=0.4, nll_coef=coefficient, label_smoothing=label_smoothing)
    same(ours, their_cpo(batch, coefficient, label_smoothing))


def test_trls_cpo_means_the_likelihood_over_tokens_ours_over_responses() -> None:
    batch = Random(2)
    chosen = batch.lists()[0]
    per_response = -sum(w.mean for w in chosen) / len(chosen)
    per_token = -sum(sum(w.lp) for w in chosen) / sum(len(w.lp) for w in chosen)
    pairs = our_loss("cpo", batch, beta=0.4, nll_coef=0.0)[0]
    assert our_loss("cpo", batch, beta=0.4)[0] == pytest.approx(pairs + per_response, rel=1e-9)
    assert their_cpo(batch, 1.0, 0.0)[0] == pytest.approx(pairs + per_token, rel=1e-9)
    assert abs(per_response - per_token) > 1e-2
