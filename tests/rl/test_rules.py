"""Rules for combining parts, and the catalog against the functions that it names."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.rl import catalog
from verizero.pipeline.rl.advantages import Rewarded
from verizero.pipeline.rl.credit import AdvantageInputs, compute_advantages
from verizero.pipeline.rl.explain import explain
from verizero.pipeline.rl.loss import Counts, LossInputs, count_denominators, policy_loss
from verizero.pipeline.rl.parts import Kl, Part, Parts
from verizero.pipeline.rl.rules import BY_RECIPE, UNUSUAL, check
from verizero.pipeline.rl.selection import select_tokens
from verizero.pipeline.rl.surrogates import SurrogateInputs

BASE: dict[str, Any] = {"advantage": "group_norm", "ratio": "token", "surrogate": "clip", "aggregate": "token_mean"}
CRITIC = {"shared": True, "loss_coef": 1.0, "clip": None, "warmup_steps": 0}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"advantage": "gae"}, ["'gae'", "critic"]),
        ({"critic": CRITIC}, ["'group_norm'", "critic"]),
        ({"ratio": "none"}, ["'clip'", "'none'"]),
        ({"surrogate": "reinforce"}, ["'reinforce'", "ratio none"]),
        ({"surrogate": "squared"}, ["'squared'", "ratio sequence_product"]),
        ({"surrogate": "geometric_mean"}, ["'token_mean'", "sequence_mean"]),
        ({"aggregate": "sequence_mean"}, ["'sequence_mean'", "'clip'"]),
        (
            {"surrogate": "geometric_mean", "aggregate": "sequence_mean", "advantage": "gae", "critic": CRITIC},
            ["'geometric_mean'", "'gae'"],
        ),
        ({"kl": {"coef": 0.1}}, ["kl_coef is 0.1", "kl_in"]),
        ({"kl": {"in": "loss"}}, ["kl_coef is 0", "'loss'"]),
        ({"kl": {"in": "reward", "form": "k3_unbiased", "coef": 0.1}}, ["kl_form 'k3_unbiased'", "k1"]),
        ({"kl": {"in": "reward", "form": "k1_plus", "coef": 0.1}}, ["kl_form 'k1_plus'", "use k1 or k3"]),
        ({"kl": {"in": "reward", "form": "k3_ratio", "coef": 0.1}}, ["kl_form 'k3_ratio'", "use k1 or k3"]),
        (
            {"kl": {"in": "loss", "form": "k3_ratio", "coef": 0.1}, "ratio": "none", "surrogate": "reinforce"},
            ["'k3_ratio'", "'none'", "k3_unbiased"],
        ),
        ({"overlong_counts": True}, ["overlong_counts", "overlong_filter"]),
        ({"kl": {"in": "reward", "form": "k1", "coef": 0.1, "target": 1.0}}, ["kl_target", "kl_horizon"]),
        ({"kl": {"target": 1.0, "horizon": 10}}, ["kl_target is 1", "kl_in"]),
        ({"kl": {"cap": 10.0}}, ["kl_cap is 10", "kl_in"]),
        ({"kl": {"in": "loss", "form": "k2", "coef": 0.1, "cap": 10.0}}, ["kl_cap", "k3_unbiased", "'k2'"]),
        ({"kl": {"in": "loss", "coef": 0.1, "cap": 0.0}}, ["kl_cap", "0"]),
        ({"kl": {"in": "reward", "form": "k1", "coef": 0.1}, "advantage": "normalize_then_sum"}, ["kl_in"]),
        ({"advantage": "normalize_then_sum", "reward_clip": 1.0}, ["reward_clip"]),
        ({"advantage": "normalize_then_sum", "group_length_penalty": 0.1}, ["group_length_penalty", "component"]),
        ({"advantage": "none", "group_length_penalty": 0.1}, ["group_length_penalty", "'none'", "group_mean"]),
        (
            {
                "surrogate": "geometric_mean",
                "aggregate": "sequence_mean",
                "advantage": "none",
                "kl": {"in": "reward", "form": "k1", "coef": 0.1},
            },
            ["'geometric_mean'", "kl_credit: response"],
        ),
        ({"advantage": "max_rl", "overlong_buffer": 0.2}, ["overlong_buffer", "'max_rl'", "at least 0", "null"]),
        ({"advantage": "max_rl", "group_length_penalty": 0.1}, ["group_length_penalty", "'max_rl'", "group_mean"]),
        ({"advantage": "max_rl", "kl": {"in": "reward", "form": "k1", "coef": 0.1}}, ["kl", "'max_rl'", "set kl_in"]),
        ({"reference": "every_round"}, ["'every_round'", "kl_in"]),
        ({"surrogate": {"name": "dual_clip", "dual": 1.1}}, ["surrogate.dual", "clip_high = 1.2", "1.1"]),
        ({"surrogate": {"name": "two_sided", "delta": 1.2}}, ["surrogate.delta", "clip_high = 1.2", "1.2"]),
        ({"surrogate": {"name": "clip_cov", "cov_low": 6.0}}, ["cov_low", "cov_high = 5", "6"]),
        ({"surrogate": {"name": "clip", "clip_hi": 0.1}}, ["'clip_hi'", "clip_low, clip_high"]),
        ({"surrogate": {"name": "clip", "clip_low": -0.1}}, ["surrogate.clip_low", "> 0 and <= 1", "-0.1"]),
        ({"surrogate": {"name": "clip_cov", "cov_low": float("nan")}}, ["surrogate.cov_low", "nan"]),
        ({"advantage": {"name": "group_norm", "std": "gruop"}}, ["advantage.std", "group, batch", "'gruop'"]),
        ({"advantage": {"name": "group_norm", "ddof": 2}}, ["advantage.ddof", "2"]),
        ({"advantage": {"name": "best_of_k", "k": 2.5}}, ["advantage.k", "whole", "2.5", "null"]),
        ({"advantage": {"name": "best_of_k", "k": 1}}, ["advantage.k", ">= 2", "1"]),
        ({"advantage": {"name": "gae", "whiten": 1}, "critic": CRITIC}, ["advantage.whiten", "true or false"]),
        ({"advantage": {"name": "normalize_then_sum", "weights": []}}, ["advantage.weights", "list", "null"]),
        ({"advantage": {"name": "leave_one_out", "std": "group"}}, ["'leave_one_out'", "'std'"]),
        ({"advantage": "group_nrom"}, ["'group_nrom'", "group_norm"]),
        ({"advantage": {"std": "group"}}, ["advantage", "name"]),
        ({"mismatch_level": "token", "mismatch_floor": 3.0}, ["floor 3", "cap 2"]),
        ({"entropy_target": 0.3}, ["entropy_target", "entropy_step"]),
        ({"entropy_target": 0.3, "entropy_step": 0.1, "entropy_coef": 0.2}, ["entropy_max", "0.2"]),
        ({"allow": ["nonsense"]}, ["'nonsense'"]),
        ({"clip_high": 0.3}, ["'clip_high'"]),
        ({"num_epochs": 0}, ["num_epochs = 0"]),
    ],
)
def test_refused_with_field_value_and_remedy(changes: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_algorithm("custom", {**BASE, **changes})
    assert [name for name in names if name not in str(refusal.value)] == []


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
    "k1_in_loss": {"kl": {"in": "loss", "form": "k1", "coef": 0.1}},
}


@pytest.mark.parametrize("name", [n for n in UNUSUAL if n not in BY_RECIPE])
def test_unusual_needs_its_name_and_nothing_else(name: str) -> None:
    params = {**BASE, **ASKED[name]}
    with pytest.raises(ConfigError) as refusal:
        load_algorithm("custom", params)
    assert f"allow: [{name}]" in str(refusal.value)
    assert UNUSUAL[name] in str(refusal.value)
    load_algorithm("custom", {**params, "allow": [name]})


def test_what_the_rest_of_a_recipe_decides_is_known_to_the_algorithm() -> None:
    assert set(UNUSUAL) > BY_RECIPE
    page = explain(load_algorithm("custom", {**BASE, "allow": sorted(BY_RECIPE)})[1])
    assert all(UNUSUAL[name] in page for name in BY_RECIPE)


@pytest.mark.parametrize("table", [catalog.ADVANTAGES, catalog.SURROGATES])
def test_functions_take_the_options_of_their_entries_which_alone_have_defaults(table: Any) -> None:
    for name, entry in table.items():
        numbers = list(inspect.signature(catalog.load(entry.function)).parameters.values())[1:]
        named = {p.name for p in numbers if p.kind is not p.VAR_KEYWORD}
        spread = catalog.SPREAD.keys() if len(named) < len(numbers) else set()
        assert named | spread == entry.options.keys(), name
        assert all(p.default is inspect.Parameter.empty for p in numbers)
        for key, option in entry.options.items():
            option.check(key, option.default)
            assert option.description


def test_no_name_is_both_an_advantage_and_a_surrogate() -> None:
    assert not catalog.ADVANTAGES.keys() & catalog.SURROGATES.keys()


def leaning(x: SurrogateInputs, *, lean: float) -> Tensor:
    """The log-prob times the advantage, and `lean` on the selected tokens."""
    return x.logprobs * x.advantages * torch.where(x.selected, lean, 1.0)


def first_token(cov: Tensor, mask: Tensor, generator: Any, gather: Any, *, lean: float) -> Tensor:
    return mask & (mask.cumsum(1) == 1)


def centred(x: Rewarded, *, scale: float) -> Tensor:
    return scale * (x.rewards - x.rewards.mean())


def test_one_function_and_one_entry_are_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe names it, its rules hold, the page shows it, tokens are selected, and a loss trains with it."""
    lean = catalog.Option(3.0, "weight of the first token", above=0)
    entry = catalog.SurrogateEntry("lean {lean}", "a test", leaning, {"lean": lean}, ("token",), selects=first_token)
    monkeypatch.setitem(catalog.SURROGATES, "leaning", entry)
    scale = catalog.Option(2.0, "size")
    advantage = catalog.AdvantageEntry("A = {scale}", "a test", centred, {"scale": scale}, frozenset({"group"}))
    monkeypatch.setitem(catalog.ADVANTAGES, "centred", advantage)
    recipe = {"advantage": "centred", "ratio": "token", "surrogate": "leaning", "aggregate": "token_mean"}
    parts = load_algorithm("custom", recipe)[1]
    assert parts.needs_group
    assert parts.needs_selection
    assert "lean 3" in explain(parts)
    with pytest.raises(ConfigError, match=r"surrogate\.lean"):
        load_algorithm("custom", {**recipe, "surrogate": {"name": "leaning", "lean": 0}})
    with pytest.raises(ConfigError, match="ratio token"):
        load_algorithm("custom", {**recipe, "ratio": "sequence"})
    lp = torch.tensor([[-1.0, -0.5], [-0.2, -0.1]], requires_grad=True)
    mask, old = torch.ones(2, 2), lp.detach()
    batch = AdvantageInputs(torch.tensor([1.0, 0.0]), torch.tensor([0, 0]), mask)
    advantages = compute_advantages(parts, batch).advantages
    chosen = select_tokens(parts, advantages=advantages, old_logprobs=old, response_mask=mask)
    inputs = LossInputs(lp, advantages, mask, old, selected=chosen.selected)
    policy_loss(parts, inputs, Counts(*count_denominators(parts, mask).tolist())).loss.backward()
    assert lp.grad is not None
    assert lp.grad.tolist() == [[-0.75, -0.25], [0.75, 0.25]]


def test_what_parts_need() -> None:
    def needs(name: str, **params: Any) -> set[str]:
        parts = load_algorithm(name, params)[1]
        kinds = (
            "reference",
            "critic",
            "greedy",
            "components",
            "rollout_logprobs",
            "old_logprobs",
            "group",
            "score_norms",
        )
        return {kind for kind in kinds if getattr(parts, f"needs_{kind}")}

    assert needs("ppo") == {"reference", "critic", "old_logprobs"}
    assert needs("ppo", kl_coef=0) == {"critic", "old_logprobs"}
    assert needs("grpo") == {"reference", "old_logprobs", "group"}
    assert needs("dapo") == {"old_logprobs", "group"}
    assert needs("opo") == {"group"}
    assert needs("otb") == {"group", "score_norms"}
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


@pytest.mark.parametrize(
    ("options", "kl", "name"),
    [({"clip_low": 0.2, "clip_high": 0.2}, Kl(where="loss"), "kl_coef"), ({"clip_low": 0.2}, Kl(), "'clip_high'")],
)
def test_parts_made_by_hand_are_checked_as_those_of_a_recipe(options: Any, kl: Kl, name: str) -> None:
    advantage = Part("none", {"kl_credit": "to_go"})
    parts = Parts(advantage=advantage, ratio="token", surrogate=Part("clip", options), aggregate="token_mean", kl=kl)
    with pytest.raises(ConfigError, match=name):
        check(parts)


@pytest.mark.integration
def test_choosing_an_algorithm_loads_no_tensors() -> None:
    code = (
        "import sys; from verizero.pipeline import registry; from verizero.pipeline.algorithms.base import *\n"
        "for n in registry.names('algorithms'):\n"
        "    registry.find('algorithms', n)\n"
        "    n == 'custom' or explain_algorithm(n, {}, max_response_tokens=9)\n"
        "assert not {'torch', 'numpy'} & set(sys.modules), 'torch was loaded'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
