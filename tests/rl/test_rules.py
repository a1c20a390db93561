"""What may be combined, what may not, and what needs asking; the catalog against the functions."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

from pipeline.algorithms import custom
from pipeline.algorithms.base import load_algorithm
from pipeline.errors import ConfigError
from pipeline.rl import catalog
from pipeline.rl.advantages import ADVANTAGES
from pipeline.rl.explain import explain
from pipeline.rl.parts import GROUPED, Kl, Part, Parts
from pipeline.rl.rules import BY_RECIPE, UNUSUAL
from pipeline.rl.surrogates import SURROGATES

BASE: dict[str, Any] = {"advantage": "group_norm", "ratio": "token", "surrogate": "clip", "aggregate": "token_mean"}
CRITIC = {"shared": True, "loss_coef": 1.0, "clip": None, "warmup_steps": 0}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"advantage": "gae"}, "needs a critic"),
        ({"critic": CRITIC}, "does not use it"),
        ({"ratio": "none"}, "no meaning with ratio 'none'"),
        ({"surrogate": "reinforce"}, "use ratio none"),
        ({"surrogate": "squared"}, "use ratio sequence_product"),
        ({"surrogate": "geometric_mean"}, "use sequence_mean"),
        ({"aggregate": "sequence_mean"}, "gives one per token"),
        (
            {
                "surrogate": "geometric_mean",
                "aggregate": "sequence_mean",
                "advantage": "gae",
                "critic": CRITIC,
            },
            "takes one advantage per response",
        ),
        ({"kl": {"coef": 0.1}}, "no reference is held"),
        ({"kl": {"in": "loss"}}, "kl_coef is 0"),
        ({"kl": {"in": "reward", "form": "k3_unbiased", "coef": 0.1}}, "use k1 or k3"),
        ({"kl": {"in": "reward", "form": "k1", "coef": 0.1, "target": 1.0}}, "set both or neither"),
        ({"kl": {"target": 1.0, "horizon": 10}}, "set kl_in"),
        ({"kl": {"in": "reward", "form": "k1", "coef": 0.1}, "advantage": "normalize_then_sum"}, "hold no kl"),
        ({"reference": "every_round"}, "no kl uses a reference"),
        ({"surrogate": {"name": "dual_clip", "dual": 1.1}}, "must be > 1 + clip_high"),
        ({"surrogate": {"name": "two_sided", "delta": 1.2}}, "must be > 1 + clip_high"),
        ({"surrogate": {"name": "clip_cov", "cov_low": 6.0}}, "cov_low must be <= cov_high"),
        ({"surrogate": {"name": "clip", "clip_hi": 0.1}}, "no option 'clip_hi'; it takes clip_low, clip_high"),
        ({"surrogate": {"name": "clip", "clip_low": -0.1}}, "surrogate.clip_low must be a number > 0"),
        ({"advantage": {"name": "group_norm", "std": "gruop"}}, "must be one of group, batch"),
        ({"advantage": {"name": "group_norm", "ddof": 2}}, "advantage.ddof"),
        ({"advantage": {"name": "leave_one_out", "std": "group"}}, "'leave_one_out' has no option 'std'"),
        ({"advantage": "group_nrom"}, "did you mean group_norm"),
        ({"advantage": {"std": "group"}}, "needs a name"),
        ({"mismatch_level": "token", "mismatch_floor": 3.0}, "floor < cap"),
        ({"entropy_target": 0.3}, "set entropy_step"),
        ({"entropy_target": 0.3, "entropy_step": 0.1, "entropy_coef": 0.2}, "entropy_max"),
        ({"allow": ["nonsense"]}, "allow has no 'nonsense'"),
        ({"clip_high": 0.3}, "no parameter 'clip_high'"),
        ({"num_epochs": 0}, "num_epochs = 0"),
    ],
)
def test_refused_with_the_reason(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_algorithm("custom", {**BASE, **changes})
    assert says in str(refusal.value)


TINY = {"name": "clip", "clip_low": 3e-4, "clip_high": 4e-4}
WHOLE = {"surrogate": "squared", "ratio": "sequence_product", "aggregate": "sequence_mean"}
ASKED: dict[str, dict[str, Any]] = {
    "wide_sequence_clip": {"ratio": "sequence", "aggregate": "sequence_mean_token_mean"},
    "narrow_token_clip": {"surrogate": TINY},
    "sequence_ratio_token_mean": {"ratio": "sequence", "surrogate": TINY},
    "token_advantage_sequence_ratio": {
        "ratio": "sequence",
        "surrogate": TINY,
        "aggregate": "sequence_mean_token_mean",
        "advantage": "gae",
        "critic": CRITIC,
    },
    "reuse_without_ratio": {"ratio": "none", "surrogate": "reinforce", "num_epochs": 2},
    "squared_with_std": WHOLE,
    "product_ratio_clip": {"ratio": "sequence_product"},
    "adaptive_kl_in_loss": {"kl": {"in": "loss", "coef": 0.1, "target": 1.0, "horizon": 10}},
}


@pytest.mark.parametrize("name", [n for n in UNUSUAL if n not in BY_RECIPE])
def test_unusual_needs_its_name_and_nothing_else(name: str) -> None:
    params = {**BASE, **ASKED[name]}
    with pytest.raises(ConfigError) as refusal:
        load_algorithm("custom", params)
    assert f"allow: [{name}]" in str(refusal.value)
    assert UNUSUAL[name] in str(refusal.value)
    load_algorithm("custom", {**params, "allow": [name]})


def test_what_hangs_on_the_recipe_is_known_to_the_algorithm() -> None:
    assert set(UNUSUAL) > BY_RECIPE
    page = explain(load_algorithm("custom", {**BASE, "allow": sorted(BY_RECIPE)})[1])
    assert all(UNUSUAL[name] in page for name in BY_RECIPE)


def test_the_catalog_has_every_function_and_exactly_its_numbers() -> None:
    for table, functions in ((catalog.ADVANTAGES, ADVANTAGES), (catalog.SURROGATES, SURROGATES)):
        assert table.keys() == functions.keys()
        for name, entry in table.items():
            numbers = list(inspect.signature(functions[name]).parameters.values())[1:]
            assert {p.name for p in numbers} == entry.options.keys()
            # defaults live with the parameters, nowhere else
            assert all(p.default is inspect.Parameter.empty for p in numbers)


def test_custom_knows_numbers_for_every_part_that_takes_some() -> None:
    for table in (catalog.ADVANTAGES, catalog.SURROGATES):
        for name, entry in table.items():
            assert custom.DEFAULTS.get(name, {}).keys() == entry.options.keys()
            for key, bound in entry.options.items():
                bound.check(key, custom.DEFAULTS[name][key])


def test_grouped_estimators_are_in_the_catalog() -> None:
    assert catalog.ADVANTAGES.keys() >= GROUPED


def test_what_parts_need() -> None:
    def needs(name: str, **params: Any) -> set[str]:
        parts = load_algorithm(name, params)[1]
        kinds = ("reference", "critic", "greedy", "components", "rollout_logprobs", "old_logprobs", "group")
        return {kind for kind in kinds if getattr(parts, f"needs_{kind}")}

    assert needs("ppo") == {"reference", "critic", "old_logprobs"}
    assert needs("ppo", kl_coef=0) == {"critic", "old_logprobs"}
    assert needs("grpo") == {"reference", "old_logprobs", "group"}
    assert needs("dapo") == {"old_logprobs", "group"}
    assert needs("opo") == {"group"}
    assert needs("remax") == {"reference", "greedy", "old_logprobs"}
    assert needs("gdpo") == {"components", "old_logprobs", "group"}
    assert needs("deepseek_v32") == {"reference", "rollout_logprobs", "old_logprobs", "group"}
    assert needs("opo", mismatch_level="token") == {"group", "rollout_logprobs", "old_logprobs"}


def test_resolve_fills_the_length_once() -> None:
    parts = load_algorithm("dr_grpo")[1]
    assert parts.norm_length is None
    assert parts.resolve(512).norm_length == 512
    assert parts.resolve(512).resolve(9).norm_length == 512
    grpo = load_algorithm("grpo")[1]
    assert grpo.resolve(512) is grpo
    with pytest.raises(ConfigError, match="max_response_tokens"):
        parts.resolve(0)


def test_parts_check_themselves_without_a_file() -> None:
    clip = Part("clip", {"clip_low": 0.2, "clip_high": 0.2})
    with pytest.raises(ConfigError, match="coefficient 0"):
        Parts(advantage=Part("none"), ratio="token", surrogate=clip, aggregate="token_mean", kl=Kl(where="loss"))
    with pytest.raises(ConfigError, match="needs option 'clip_high'"):
        Parts(advantage=Part("none"), ratio="token", surrogate=Part("clip", {"clip_low": 0.2}), aggregate="token_mean")


def test_choosing_an_algorithm_loads_no_tensors() -> None:
    code = (
        "import sys; from pipeline import registry; from pipeline.algorithms.base import *\n"
        "for n in registry.names('algorithms'):\n"
        "    registry.find('algorithms', n)\n"
        "    n == 'custom' or explain_algorithm(n, {}, max_response_tokens=9)\n"
        "assert not {'torch', 'numpy'} & set(sys.modules), 'torch was loaded'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
