"""Every preset as its paper has it, and the recipes that loading refuses."""

import pytest

from verizero.pipeline import registry
from verizero.pipeline.algorithms.base import explain_algorithm, load_algorithm, weighted
from verizero.pipeline.config.pairs import loop_parts
from verizero.pipeline.config.rl import RlConfig, check_rl, parts_of
from verizero.pipeline.config.scoring import ScoringConfig
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.rl.parts import PolicyParams
from verizero.pipeline.rl.rules import check

CLIP = ("clip", {"clip_low": 0.2, "clip_high": 0.2})
SEQUENCE = ("clip", {"clip_low": 3e-4, "clip_high": 4e-4})
DPPO = {
    "divergence": "tv",
    "symmetric": False,
    "threshold_low": 0.15,
    "threshold_high": 0.15,
    "ratio_cap": 20.0,
    "drift_coef": 0.0,
}
TABLE = {
    "ppo": ("gae", "token", CLIP, "token_mean", ("reward", "k1")),
    "vapo": ("gae", "token", ("clip", {"clip_low": 0.2, "clip_high": 0.28}), "token_mean", None),
    "reinforce": ("none", "none", ("reinforce", {}), "sequence_mean_token_sum", ("reward", "k1")),
    "grpo": ("group_norm", "token", CLIP, "sequence_mean_token_mean", ("loss", "k3", 0.04)),
    "grpo_process": ("group_norm", "token", CLIP, "sequence_mean_token_mean", ("loss", "k3", 0.04)),
    "r1_zero": ("group_norm", "token", CLIP, "sequence_mean_token_mean", ("loss", "k3", 0.001)),
    "dr_grpo": ("group_mean", "token", CLIP, "sequence_mean_token_sum_norm", None),
    "dapo": ("group_norm", "token", ("clip", {"clip_low": 0.2, "clip_high": 0.28}), "token_mean", None),
    "gspo": ("group_norm", "sequence", SEQUENCE, "sequence_mean_token_mean", None),
    "gspo_token": ("group_norm", "sequence_token", SEQUENCE, "sequence_mean_token_mean", None),
    "flash_reinforce": ("batch_mean", "none", ("reinforce", {}), "sequence_mean_token_mean", None),
    "rloo": ("leave_one_out", "none", ("reinforce", {}), "sequence_mean_token_sum", ("reward", "k1")),
    "remax": ("greedy_baseline", "none", ("reinforce", {}), "sequence_mean_token_sum", ("reward", "k1")),
    "reinforce_pp": ("reward_to_go_norm", "token", CLIP, "token_mean", ("reward", "k1")),
    "reinforce_pp_baseline": ("group_mean_batch_norm", "token", CLIP, "token_mean", ("loss", "k2")),
    "kimi_k2": ("group_mean", "sequence_product", ("squared", {"tau": 0.5}), "sequence_mean", None),
    "cispo": ("group_norm", "token", ("cispo", {"clip_low": None, "clip_high": 4.0}), "token_mean", None),
    "gmpo": ("group_norm", "token", ("geometric_mean", {"clip": 0.4}), "sequence_mean", None),
    "sapo": (
        "group_norm",
        "token",
        ("soft_gate", {"tau_positive": 1.0, "tau_negative": 1.05}),
        "sequence_mean_token_mean",
        None,
    ),
    "deepseek_v32": ("group_mean", "token", CLIP, "sequence_mean_token_mean", ("loss", "k3_unbiased")),
    "otb": ("optimal_token_baseline", "none", ("reinforce", {}), "sequence_mean_token_sum", None),
    "opo": ("optimal_baseline", "none", ("reinforce", {}), "sequence_mean_token_sum", None),
    "gdpo": ("normalize_then_sum", "token", CLIP, "sequence_mean_token_mean", None),
    "luspo": ("group_norm", "sequence", SEQUENCE, "sequence_mean_token_sum", None),
    "vespo": (
        "group_norm",
        "sequence_product",
        (
            "gamma_weight",
            {"k_positive": 2.0, "lambda_positive": 3.0, "k_negative": 3.0, "lambda_negative": 2.0},
        ),
        "token_mean",
        None,
    ),
    "clip_cov": (
        "group_norm",
        "token",
        ("clip_cov", {**CLIP[1], "share": 2e-4, "cov_low": 1.0, "cov_high": 5.0}),
        "token_mean",
        None,
    ),
    "kl_cov": ("group_norm", "token", ("kl_cov", {"share": 2e-3, "coef": 1.0}), "token_mean", None),
    "max_rl": ("max_rl", "token", CLIP, "sequence_mean_token_sum_norm", None),
    "pass_at_k": ("best_of_k", "token", CLIP, "sequence_mean_token_sum_norm", None),
    "dppo": ("group_mean", "token", ("dppo", DPPO), "sequence_mean_token_sum_norm", None),
    "prime_rl": (
        "group_mean",
        "token",
        ("dppo", {**DPPO, "threshold_low": 0.2, "threshold_high": 0.2, "ratio_cap": None, "drift_coef": 1e-3}),
        "token_mean",
        None,
    ),
}


def test_the_table_has_every_preset():
    assert {*TABLE, "custom"} == set(registry.names("algorithms"))


@pytest.mark.parametrize("name", TABLE)
def test_a_preset_is_its_row_of_the_specification(name):
    advantage, ratio, (surrogate, options), aggregate, kl = TABLE[name]
    _, parts = load_algorithm(name)
    assert (parts.advantage.name, parts.ratio, parts.surrogate.name) == (advantage, ratio, surrogate)
    assert dict(parts.surrogate.options) == options
    assert parts.aggregate == aggregate
    found = (parts.params.kl_place, parts.params.kl_form, parts.params.kl_coef)
    assert found[: len(kl)] == kl if kl else parts.params.kl_place == "none"
    assert parts.needs_reference == (kl is not None)
    without = load_algorithm(name, {"kl_coef": 0})[1]
    assert (without.needs_reference, without.params.schedule) == (False, "frozen")


def test_what_some_presets_turn_on_besides():
    dapo = load_algorithm("dapo")[1]
    assert dapo.params.dynamic_sampling
    assert dapo.params.overlong_buffer == 0.2
    assert load_algorithm("r1_zero")[1].params.schedule == "every_round"
    v32 = load_algorithm("deepseek_v32")[1].params
    assert v32.keep_routing
    assert v32.keep_sampling
    assert v32.off_policy_delta is not None
    ppo = load_algorithm("ppo", {"lam_critic": 1.0, "length_alpha": 0.05, "critic_warmup_steps": 50})[1]
    assert ppo.critic.warmup_steps == 50
    assert ppo.advantage.options["lam_critic"] == 1.0
    for divergence, usual in (("tv", 0.15), ("kl", 0.05)):
        options = load_algorithm("dppo", {"divergence": divergence, "threshold_low": 0.3})[1].surrogate.options
        assert (options["threshold_low"], options["threshold_high"]) == (0.3, usual)
    assert load_algorithm("ppo", {"dual_clip": 3.0})[1].surrogate.name == "dual_clip"


@pytest.mark.parametrize("name", [*TABLE, "custom"])
def test_every_file_says_its_source_and_describes_every_parameter(name):
    module = registry.find("algorithms", name)
    assert module.SOURCE
    assert all(isinstance(text, str) and text for text in module.DEPARTURES)
    assert issubclass(module.Params, PolicyParams)
    assert [key for key, field in module.Params.model_fields.items() if not field.description] == []


@pytest.mark.parametrize("name", [*TABLE, "custom"])
def test_every_way_from_a_recipe_to_parts_checks_them(name):
    """`rules.check` alone refuses an unknown name in `allow`, so this shows that it ran."""
    custom = {"advantage": "none", "ratio": "token", "surrogate": "clip", "aggregate": "token_mean"}
    params = {"allow": ["nonsense"], **(custom if name == "custom" else {})}
    numbers = {"rounds": 1, "steps_per_round": 1, "prompts_per_step": 8, "group_size": 4}

    def rl():
        return RlConfig(algorithm={"name": name, **params}, **numbers)

    for way in (
        lambda: load_algorithm(name, params),
        lambda: explain_algorithm(name, params, max_response_tokens=9),
        lambda: parts_of(rl()),
        lambda: check_rl(rl(), ScoringConfig()),
    ):
        with pytest.raises(ConfigError, match="'nonsense'"):
            way()


CORRECTED = {"mismatch_level": "token", "mismatch_action": "truncate", "mismatch_cap": 2.0}
"""The correction that a recipe adds where engine and trainer differ."""


@pytest.mark.parametrize("name", TABLE)
def test_a_recipes_corrections_and_lengths_keep_parts_that_pass_the_rules(name):
    parts = load_algorithm(name)[1]
    check((parts if parts.needs_rollout_logprobs else parts.with_params(**CORRECTED)).resolve(9))
    check(weighted(parts, (1.0, 0.5)))
    check(loop_parts())


def test_weights_of_another_kind_are_refused():
    with pytest.raises(ConfigError, match=r"advantage\.weights"):
        weighted(load_algorithm("gdpo")[1], ("a",))


def test_parameters_are_frozen():
    params, parts = load_algorithm("grpo")
    with pytest.raises(ValueError, match="frozen"):
        params.clip_low = 0.3
    with pytest.raises(AttributeError):
        parts.ratio = "none"
