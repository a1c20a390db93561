"""A new algorithm is one file: dropped in a folder, or in an installed package's entry point. No list is edited."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import verizero.pipeline.algorithms
from verizero.pipeline import registry
from verizero.pipeline.algorithms.base import explain_algorithm, load_algorithm
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.rl.credit import AdvantageInputs, compute_advantages
from verizero.pipeline.rl.loss import Counts, LossInputs, count_denominators, policy_loss
from verizero.pipeline.rl.parts import Parts

FILE = '''
"""Cubic: a surrogate, a ratio and an advantage that nobody has published."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from verizero.pipeline.rl.catalog import RatioEntry
from verizero.pipeline.rl.parts import Part, Parts, PolicyParams

if TYPE_CHECKING:
    from torch import Tensor

    from verizero.pipeline.rl.advantages import Rewarded
    from verizero.pipeline.rl.surrogates import SurrogateInputs

SOURCE = "a test"
DEPARTURES = ("there is no paper",)


class Params(PolicyParams):
    """Its number."""

    bend: float = Field(2.0, gt=0, description="how much")


def cubic(x: SurrogateInputs, *, bend: float) -> Tensor:
    """The log-ratio, bent."""
    return x.advantages * (x.log_ratio + bend * x.log_ratio**3)


def halved(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Half of the log-ratio."""
    return (logprobs - old_logprobs) / 2


HALVED = RatioEntry("halved", "the square root of the ratio", halved, per="token")


def doubled(x: Rewarded) -> Tensor:
    """Twice the reward."""
    return 2 * x.rewards


def parts(params: Params) -> Parts:
    """Its parts."""
    return params.of_parts(Part(doubled), HALVED, Part(cubic, {"bend": params.bend}), "token_mean")
'''


@pytest.fixture
def dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The file in a folder that the package also looks into."""
    (tmp_path / "cubic.py").write_text(FILE)
    monkeypatch.setattr(
        verizero.pipeline.algorithms, "__path__", [*verizero.pipeline.algorithms.__path__, str(tmp_path)]
    )
    yield "cubic"
    sys.modules.pop("verizero.pipeline.algorithms.cubic", None)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The file as a module of another distribution, which names it in its entry points."""
    (tmp_path / "someones_cubic.py").write_text(FILE)
    info = tmp_path / "someones_cubic-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: someones-cubic\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[verizero.algorithms]\ntheir_cubic = someones_cubic\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "their_cubic"
    sys.modules.pop("someones_cubic", None)


def train(parts: Parts) -> tuple[float, torch.Tensor]:
    lp = torch.tensor([[-1.0, -0.5], [-0.2, -0.1]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    rewards = torch.tensor([1.0, -1.0], dtype=torch.float64)
    advantages = compute_advantages(parts, AdvantageInputs(rewards, torch.tensor([0, 1]), mask)).advantages
    old = lp.detach() - 0.5
    out = policy_loss(
        parts, LossInputs(lp, advantages, mask, old_logprobs=old), Counts(*count_denominators(parts, mask).tolist())
    )
    out.loss.backward()
    return float(out.loss.detach()), lp.grad


@pytest.mark.parametrize("how", ["dropped", "installed"])
def test_one_file_is_an_algorithm(how: str, request: pytest.FixtureRequest) -> None:
    before = set(registry.names("algorithms"))
    name = request.getfixturevalue(how)
    assert set(registry.names("algorithms")) - before == {name}
    _, parts = load_algorithm(name, {"bend": 3.0})
    loss, grad = train(parts)
    # A = 2, 2, -2 at a log-ratio of 0.25 each
    assert loss == pytest.approx(-2 * (0.25 + 3 * 0.015625) / 3)
    assert grad[0].tolist() == pytest.approx([-2 * (1 + 9 * 0.0625) / 2 / 3] * 2)
    assert float(grad[1, 1]) == 0.0
    page = explain_algorithm(name, {"bend": 3.0}, max_response_tokens=8)
    assert "cubic(bend=3)" in page
    assert "the square root of the ratio" in page
    assert "there is no paper" in page
    assert "bend is 3.0, the preset has 2.0" in page
    with pytest.raises(ConfigError, match=r"'bent'.*bend"):
        load_algorithm(name, {"bent": 3.0})


def test_a_name_claimed_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[verizero.algorithms]\ngrpo = other\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="'grpo'"):
        load_algorithm("grpo")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("x = 1\n", "'broken'.*Params"),
        (FILE.replace("return params.of_parts", "return dict() and params.of_parts"), "Parts.*dict"),
        (FILE.replace("Part(doubled)", 'Part("gae")'), "'gae'.*gamma"),
        (FILE.replace('"token_mean"', '"mean"'), "aggregate.*'mean'"),
    ],
)
def test_a_file_that_is_no_algorithm_says_why(
    body: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text(body)
    monkeypatch.setattr(
        verizero.pipeline.algorithms, "__path__", [*verizero.pipeline.algorithms.__path__, str(tmp_path)]
    )
    try:
        with pytest.raises(ConfigError, match=says):
            load_algorithm("broken")
    finally:
        sys.modules.pop("verizero.pipeline.algorithms.broken", None)
