"""KL estimates, and the coefficients that adapt to what they say."""

import random

import pytest
import torch

from tests.oracles import rl as oracle
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.rl.parts import KlForm
from verizero.pipeline.rl.ratios import estimate_kl as estimate

FORMS: tuple[KlForm, ...] = ("k1", "k2", "k3", "k3_unbiased", "k1_plus", "k3_plus")
"""All but `k3_ratio`, which is not of one token alone; variants.py has it."""


def scalar(x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("form", FORMS)
def test_values_and_gradients(form: KlForm) -> None:
    r = random.Random(0)
    for _ in range(20):
        lp, ref, old = (-r.expovariate(1) for _ in range(3))
        x = scalar(lp)
        value = estimate(form, x, scalar(ref).detach(), scalar(old).detach())
        value.backward()
        assert float(value.detach()) == pytest.approx(oracle.kl(form, lp, ref, old), rel=1e-9, abs=1e-14)
        slope = (oracle.kl(form, lp + 1e-6, ref, old, still=lp) - oracle.kl(form, lp - 1e-6, ref, old, still=lp)) / 2e-6
        assert float(x.grad) == pytest.approx(slope, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("form", ["k3", "k3_unbiased"])
def test_a_cap_bounds_the_value_and_stops_the_gradient(form: KlForm) -> None:
    for d in (-5.0, -0.1, 0.1, 2.0, 5.0, 15.0):
        x = scalar(-1.0)
        value = estimate(form, x, scalar(d - 1.0).detach(), scalar(-1.3).detach(), 10.0)
        value.backward()
        free = oracle.kl(form, -1.0, d - 1.0, -1.3)
        assert float(value.detach()) == pytest.approx(min(free, 10.0), rel=1e-9)
        assert (float(x.grad) == 0.0) == (free > 10.0)


def test_k3_is_never_negative_and_stays_finite() -> None:
    d = torch.tensor([-1e30, -1e3, -1e-9, 0.0, 1e-9, 1e3, 1e30], dtype=torch.float64)
    x = torch.zeros(7, dtype=torch.float64, requires_grad=True)
    value = estimate("k3", x, d)
    value.sum().backward()
    assert bool((value >= 0).all())
    assert bool(torch.isfinite(value).all())
    assert bool(torch.isfinite(x.grad).all())


def test_the_unbiased_form_needs_old_logprobs() -> None:
    with pytest.raises(ConfigError, match="old_logprobs"):
        estimate("k3_unbiased", scalar(0.0), scalar(0.0))
    with pytest.raises(ConfigError, match="log_ratio"):
        estimate("k3_ratio", scalar(0.0), scalar(0.0), scalar(0.0))
