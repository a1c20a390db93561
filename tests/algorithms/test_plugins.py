"""A new algorithm is one file: dropped in a folder, or next to the recipe that names its path. No list is edited."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
import yaml

import verizero.pipeline.algorithms as base
from tests.stages.tiny import TREE
from tests.test_documents import CONTRIBUTING, block
from verizero.pipeline.algorithms.base import explain_algorithm, load_algorithm
from verizero.pipeline.config.load import dump, load_recipe, parse
from verizero.pipeline.config.rl import parts_of
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.rl.credit import AdvantageInputs, compute_advantages
from verizero.pipeline.rl.loss import Counts, LossInputs, count_denominators, policy_loss
from verizero.pipeline.run.choose_checkpoint import recipe_fields

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
def put(tmp_path, monkeypatch):
    """A function that writes a file into a folder that the package also looks into; it returns the file's name."""
    monkeypatch.setattr(base, "__path__", [*base.__path__, str(tmp_path)])

    def write(text):
        (tmp_path / "cubic.py").write_text(text)
        return "cubic"

    yield write
    sys.modules.pop("verizero.pipeline.algorithms.cubic", None)


def train(parts):
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


def test_one_file_is_an_algorithm(put):
    name = put(FILE)
    _, parts = load_algorithm(name, {"bend": 3.0})
    loss, grad = train(parts)
    # A = 2, 2, -2 at a log-ratio of 0.25 each
    assert loss == pytest.approx(-2 * (0.25 + 3 * 0.015625) / 3)
    assert grad[0].tolist() == pytest.approx([-2 * (1 + 9 * 0.0625) / 2 / 3] * 2)
    assert float(grad[1, 1]) == 0.0
    page = explain_algorithm(name, {"bend": 3.0}, max_response_tokens=8)
    words = ("cubic(bend=3)", "the square root of the ratio", "there is no paper", "bend is 3.0, the preset has 2.0")
    assert [word for word in words if word not in page] == []
    with pytest.raises(ConfigError, match=r"'bent'.*bend"):
        load_algorithm(name, {"bent": 3.0})


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("x = 1\n", "'cubic'.*Params"),
        (FILE.replace("return params.of_parts", "return dict() and params.of_parts"), "Parts.*dict"),
        (FILE.replace("Part(doubled)", 'Part("gae")'), "'gae'.*gamma"),
        (FILE.replace('"token_mean"', '"mean"'), "aggregate.*'mean'"),
    ],
)
def test_a_file_that_is_no_algorithm_says_why(body, says, put):
    name = put(body)
    with pytest.raises(ConfigError, match=says):
        load_algorithm(name)


SOURCE = block(CONTRIBUTING, "python", "ratio")


def recipe(folder, algorithm, **more):
    folder.mkdir(exist_ok=True)
    (folder / "mine.py").write_text(SOURCE)
    tree = copy.deepcopy(TREE) | more
    tree["rl"]["algorithm"] = algorithm
    (folder / "my.yaml").write_text(yaml.safe_dump(tree))
    return folder / "my.yaml"


def rl_fields(config):
    return recipe_fields(config.of_stage("rl"))


def test_the_path_starts_from_the_recipes_folder_and_a_dumped_recipe_still_finds_it(tmp_path):
    config = load_recipe(recipe(tmp_path / "a", {"path": "mine.py", "clip_high": 0.04}))
    assert parse(yaml.safe_load(dump(config)), base=tmp_path) == config


def test_a_stage_is_stale_if_the_code_changed_and_not_if_it_moved(tmp_path):
    first, second = (load_recipe(recipe(tmp_path / name, {"path": "mine.py"})) for name in ("a", "b"))
    before = rl_fields(first)
    assert before == rl_fields(second)
    (tmp_path / "b" / "mine.py").write_text(SOURCE.replace("0.03", "0.04"))
    assert {k for k, v in rl_fields(second).items() if v != before[k]} == {"rl.algorithm.path"}


def test_a_stage_may_have_one_of_its_own(tmp_path):
    mine = {"name": "later", "kind": "rl", "with": {"algorithm": {"path": "mine.py", "name": None}}}
    config = load_recipe(recipe(tmp_path, {"name": "grpo"}, stages=["sft", "rl", mine]))
    assert [str(parts_of(rl).ratio) for s in ("rl", "later") if (rl := config.of_stage(s).rl)] == [
        "token",
        "root_length",
    ]
    del mine["with"]["algorithm"]["name"]
    with pytest.raises(ConfigError, match="a name or the path"):
        load_recipe(recipe(tmp_path, {"name": "grpo"}, stages=["sft", "rl", mine]))


@pytest.mark.parametrize(
    ("algorithm", "says"),
    [
        ({"path": "yours.py"}, r"yours\.py': there is no such file"),
        ({"path": "mine.py", "clip_hi": 1}, "no parameter 'clip_hi'; did you mean clip_high"),
        ({"path": 3}, "a name or the path of a file"),
        ({}, "a name or the path of a file"),
    ],
)
def test_what_is_wrong_is_named(algorithm, says, tmp_path):
    with pytest.raises(ConfigError, match=says):
        load_recipe(recipe(tmp_path, algorithm))
