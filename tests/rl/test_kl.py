"""KL estimates at their edges; test_loss.py compares each of them, capped too, with its double."""

import pytest
import torch

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.rl.ratios import estimate_kl as estimate


def scalar(x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64, requires_grad=True)


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
