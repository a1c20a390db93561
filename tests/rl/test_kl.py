"""KL estimates, and the coefficients that adapt to what they say."""

from __future__ import annotations

import math
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


def test_every_form_estimates_the_kl_of_the_policy_to_the_reference() -> None:
    """By summing over a whole vocabulary under pi: k1 and k3 are exact, the other way round is another number."""
    r = random.Random(1)
    logits = [[r.gauss(0, 1) for _ in range(6)] for _ in range(2)]
    pi, ref = ([math.exp(x) / sum(map(math.exp, row)) for x in row] for row in logits)
    exact = sum(p * math.log(p / q) for p, q in zip(pi, ref, strict=True))
    other = sum(q * math.log(q / p) for p, q in zip(pi, ref, strict=True))
    assert abs(exact - other) > 1e-2
    for form in ("k1", "k3"):
        expected = sum(
            p * float(estimate(form, scalar(math.log(p)), scalar(math.log(q))).detach())
            for p, q in zip(pi, ref, strict=True)
        )
        assert expected == pytest.approx(exact, rel=1e-12)


def test_the_unbiased_form_has_the_gradient_of_the_kl_though_sampled_from_old() -> None:
    r = random.Random(2)
    theta = torch.tensor([r.gauss(0, 1) for _ in range(6)], dtype=torch.float64, requires_grad=True)
    old, ref = (torch.tensor([r.gauss(0, 1) for _ in range(6)], dtype=torch.float64).log_softmax(0) for _ in range(2))
    lp = theta.log_softmax(0)
    (exact,) = torch.autograd.grad((lp.exp() * (lp - ref)).sum(), theta, retain_graph=True)
    sampled = {f: (old.exp() * estimate(f, lp, ref, old)).sum() for f in FORMS}
    grads = {f: torch.autograd.grad(v, theta, retain_graph=True)[0] for f, v in sampled.items()}
    assert torch.allclose(grads["k3_unbiased"], exact, rtol=1e-10)
    assert not torch.allclose(grads["k3"], exact, rtol=0.1)


@pytest.mark.parametrize("form", ["k1", "k3"])
def test_a_plus_form_has_the_value_of_its_name_and_the_gradient_of_k2(form: KlForm) -> None:
    d = torch.linspace(-3, 3, 13, dtype=torch.float64)
    x = torch.zeros_like(d).requires_grad_()
    found = estimate(f"{form}_plus", x, d)  # type: ignore[arg-type]
    found.sum().backward()
    assert torch.equal(found, estimate(form, torch.zeros_like(d), d))
    assert torch.equal(x.grad, -d)


def test_k1_in_the_loss_has_no_gradient_on_average_whatever_the_reference_is() -> None:
    r = random.Random(3)
    theta = torch.tensor([r.gauss(0, 1) for _ in range(6)], dtype=torch.float64, requires_grad=True)
    refs = [torch.tensor([r.gauss(0, 1) for _ in range(6)], dtype=torch.float64).log_softmax(0) for _ in range(2)]
    lp = theta.log_softmax(0)
    chances = lp.exp().detach()  # of the tokens as they were sampled: not part of the loss

    def expected(form: KlForm, ref: torch.Tensor) -> torch.Tensor:
        (gradient,) = torch.autograd.grad((chances * estimate(form, lp, ref)).sum(), theta, retain_graph=True)
        return gradient

    for ref in refs:
        assert float(expected("k1", ref).abs().max()) < 1e-15
        exact = torch.autograd.grad((lp.exp() * (lp - ref)).sum(), theta, retain_graph=True)[0]
        for form in ("k2", "k1_plus", "k3_plus"):
            assert torch.allclose(expected(form, ref), exact, rtol=1e-10)
        assert float(exact.abs().max()) > 0.01


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
