"""Rules for combining parts, and the catalog against the functions that it names."""

import inspect
from typing import Any

import pytest

from verizero.pipeline.algorithms.base import load_algorithm
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.rl import catalog
from verizero.pipeline.rl.catalog import load
from verizero.pipeline.rl.explain import explain
from verizero.pipeline.rl.parts import Part, Parts, PolicyParams
from verizero.pipeline.rl.rules import BY_RECIPE, UNUSUAL, check

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
        ({"kl_coef": 0.1}, ["kl_coef is 0.1", "kl_in"]),
        ({"kl_in": "loss"}, ["kl_coef is 0", "'loss'"]),
        ({"kl_in": "reward", "kl_form": "k3_unbiased", "kl_coef": 0.1}, ["kl_form 'k3_unbiased'", "k1"]),
        ({"kl_in": "reward", "kl_form": "k1_plus", "kl_coef": 0.1}, ["kl_form 'k1_plus'", "use k1 or k3"]),
        ({"kl_in": "reward", "kl_form": "k3_ratio", "kl_coef": 0.1}, ["kl_form 'k3_ratio'", "use k1 or k3"]),
        (
            {"kl_in": "loss", "kl_form": "k3_ratio", "kl_coef": 0.1, "ratio": "none", "surrogate": "reinforce"},
            ["'k3_ratio'", "'none'", "k3_unbiased"],
        ),
        ({"kl_cap": 10.0}, ["kl_cap is 10", "kl_in"]),
        ({"kl_in": "loss", "kl_form": "k2", "kl_coef": 0.1, "kl_cap": 10.0}, ["kl_cap", "k3_unbiased", "'k2'"]),
        ({"kl_in": "loss", "kl_coef": 0.1, "kl_cap": 0.0}, ["kl_cap", "0"]),
        ({"kl_in": "reward", "kl_form": "k1", "kl_coef": 0.1, "advantage": "normalize_then_sum"}, ["kl_in"]),
        ({"advantage": "normalize_then_sum", "reward_clip": 0.1}, ["reward_clip", "component"]),
        (
            {
                "surrogate": "geometric_mean",
                "aggregate": "sequence_mean",
                "advantage": "none",
                "kl_in": "reward",
                "kl_form": "k1",
                "kl_coef": 0.1,
            },
            ["'geometric_mean'", "kl_credit: response"],
        ),
        ({"advantage": "max_rl", "overlong_buffer": 0.2}, ["overlong_buffer", "'max_rl'", "at least 0", "null"]),
        ({"advantage": "max_rl", "kl_in": "reward", "kl_form": "k1", "kl_coef": 0.1}, ["kl", "'max_rl'", "set kl_in"]),
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
        ({"allow": ["nonsense"]}, ["'nonsense'"]),
        ({"clip_high": 0.3}, ["'clip_high'"]),
        ({"num_epochs": 0}, ["num_epochs = 0"]),
    ],
)
def test_refused_with_field_value_and_remedy(changes: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_algorithm("custom", {**BASE, **changes})
    assert [name for name in names if name not in str(refusal.value)] == []


TURNS = {"credit": "turns"}
GAE = {"credit": "turn_gae"}


@pytest.mark.parametrize(
    ("name", "params", "says"),
    [
        ("sapo", {"zzzz": 1}, "tau_positive"),
        ("gspo", {"clip_high": 0.2}, "wide_sequence_clip"),
        ("grpo", {"mismatch_reject": {"mean_k4": 1.0}}, "mismatch_reject.*mean_k"),
        ("grpo", {"mismatch_reject": {"mean_k1": [1.0, -1.0]}}, r"mismatch_reject.mean_k1 .* 1 and -1"),
        ("ppo", TURNS, "credits each token already; with a critic set credit: turn_gae"),
        ("reinforce_pp", TURNS, "credits each token already; use group_norm"),
        ("grpo", GAE, "use advantage gae"),
        ("vapo", GAE, "set length_alpha to null"),
        ("kimi_k2", TURNS, "takes one per response; set credit: outcome"),
        ("gspo", TURNS, "token_advantage_sequence_ratio"),
        ("dapo", {**TURNS, "credit_outcome": 0}, "or drop overlong_buffer"),
        ("grpo", {"credit_gamma": 0.5}, "credit_gamma is 0.5 but credit 'outcome' does not use it"),
        ("ppo", {**GAE, "credit_outcome": 0.5}, "credit_outcome is 0.5 but credit 'turn_gae'"),
        ("grpo", {**TURNS, "credit_coef": 0}, "credit_coef = 0"),
        ("grpo", {"credit": "turn"}, "credit = 'turn'"),
        ("grpo_process", {"kl_in": "reward", "kl_form": "k1"}, "kl_in changes the reward of the whole response"),
        ("grpo_process", {"overlong_buffer": 0.5}, "overlong_buffer changes"),
        ("grpo_process", {"reward_clip": 1.0}, "reward_clip changes"),
        ("grpo_process", {"credit": "turns", "overlong_buffer": 0.5}, "overlong_buffer changes .* credit 'turns'"),
        ("grpo_process", {"credit_gamma": 0.5}, "credit_gamma is 0.5 but credit 'process'"),
        ("grpo_process", {"credit_std": "group"}, "credit_std is 'group' but credit 'process'"),
    ],
)
def test_what_a_preset_does_not_know_or_leaves_out_is_refused(name: str, params: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_algorithm(name, params)


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
    "k1_in_loss": {"kl_in": "loss", "kl_form": "k1", "kl_coef": 0.1},
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
        numbers = list(inspect.signature(load(entry.function)).parameters.values())[1:]
        named = {p.name for p in numbers if p.kind is not p.VAR_KEYWORD}
        spread = catalog.SPREAD.keys() if len(named) < len(numbers) else set()
        assert named | spread == entry.options.keys(), name
        assert all(p.default is inspect.Parameter.empty for p in numbers)
        for key, option in entry.options.items():
            option.check(key, option.default)
            assert option.description


def test_what_parts_need() -> None:
    def needs(name: str, **params: Any) -> set[str]:
        parts = load_algorithm(name, params)[1]
        return {
            name.removeprefix("needs_") for name in dir(parts) if name.startswith("needs_") and getattr(parts, name)
        }

    assert needs("ppo") == {"reference", "critic", "old_logprobs"}
    assert needs("ppo", kl_coef=0) == {"critic", "old_logprobs"}
    assert needs("grpo") == {"reference", "old_logprobs", "group"}
    assert needs("dapo") == {"old_logprobs", "group"}
    assert needs("opo") == {"group"}
    assert needs("reinforce", kl_coef=0, **TURNS) == {"group"}
    assert needs("ppo", kl_coef=0, **GAE) == {"critic", "old_logprobs"}
    assert load_algorithm("ppo", GAE)[1].token_advantage
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
    ("options", "params", "name"),
    [
        ({"clip_low": 0.2, "clip_high": 0.2}, PolicyParams(kl_in="loss"), "kl_coef"),
        ({"clip_low": 0.2}, PolicyParams(), "'clip_high'"),
    ],
)
def test_parts_made_by_hand_are_checked_as_those_of_a_recipe(options: Any, params: PolicyParams, name: str) -> None:
    advantage = Part("none", {"kl_credit": "to_go"})
    parts = Parts(
        advantage=advantage, ratio="token", surrogate=Part("clip", options), aggregate="token_mean", params=params
    )
    with pytest.raises(ConfigError, match=name):
        check(parts)


@pytest.mark.parametrize(("longest", "buffer"), [(100, 0.2), (20480, 0.2), (7, 0.5), (10, 1.0)])
def test_the_overlong_penalty_is_0_then_a_line_then_minus_the_factor(longest: int, buffer: float) -> None:
    cache, params = longest * buffer, PolicyParams(overlong_buffer=buffer, overlong_factor=2.0)
    for n in range(longest + 5):
        share = min(1.0, max(0.0, (n - (longest - cache)) / cache))
        assert params.length_penalty(n, longest) == pytest.approx(-2.0 * share)
    assert PolicyParams().length_penalty(500, 100) == 0.0
    assert load_algorithm("dapo")[1].params.length_penalty(18432, 20480) == pytest.approx(-0.5), "as in the paper"
