"""The page of a resolved objective: every number that was chosen is on it."""

from __future__ import annotations

from typing import Any

import pytest

from verizero.pipeline import registry
from verizero.pipeline.algorithms.base import explain_algorithm, load_algorithm
from verizero.pipeline.rl.explain import Setting, explain, models


def lines(name: str, **params: Any) -> dict[str, list[str]]:
    """The page as label -> texts."""
    out: dict[str, list[str]] = {}
    for line in explain_algorithm(name, params, max_response_tokens=512).splitlines():
        out.setdefault(line[:12].strip(), []).append(line[12:])
    return out


def test_grpo_is_its_equation() -> None:
    page = lines("grpo", clip_high=0.25)
    assert page["maximise"] == [
        "J = mean_i (1/|y_i|) sum_t [ min(r A, clip(r, 1 - 0.2, 1 + 0.25) A) - 0.04 (exp(d) - d - 1) ]"
    ]
    assert page["advantage"] == ["A_i = (R_i - mean of the group) / (std over group + 1e-06), ddof 1"]
    assert page["ratio"] == ["r_t = pi(y_t) / pi_old(y_t)"]
    assert page["kl"] == ["d = log pi_ref - log pi"]
    assert page["models"] == ["policy (trained); reference (frozen); no reward model: rewards come from verifiers"]
    assert "clip_high is 0.25, the preset has 0.2" in page["departs"]


def test_one_step_a_batch_is_said_to_bound_nothing_on_fresh_rows() -> None:
    note = "so pi is pi_old on rows of the newest policy: r is 1 there, and nothing that bounds r acts"
    assert note in lines("dapo")["updates"]
    assert note not in lines("dapo", num_minibatches=16)["updates"]
    assert note not in lines("ppo", num_epochs=2)["updates"]
    assert "updates" in lines("rloo")
    assert note not in lines("rloo")["updates"]
    for name, steps in {"dapo": 16, "cispo": 16, "vapo": 16, "r1_zero": 16, "gspo": 4}.items():
        assert any(f"the paper takes {steps} (num_minibatches)" in text for text in lines(name)["departs"]), name


def test_a_length_and_weights_are_on_the_page() -> None:
    assert "(1/512) sum_t" in lines("dr_grpo")["maximise"][0]
    page = lines("deepseek_v32", mismatch_level="token", high_entropy_share=0.2)
    assert "A)) w M H - 0.001" in page["maximise"][0]
    assert page["w"] == ["pi_old / pi_gen per token, clamped to [0, 2]"]
    assert page["M"] == ["0 where A < 0 and mean_t log(pi_gen / pi) > 0.1, else 1"]
    assert page["H"] == ["1 on the 0.2 of all tokens with the highest entropy, else 0"]


@pytest.mark.parametrize(
    ("params", "line"),
    [
        ({}, []),
        ({"mismatch_level": "token"}, ["the ratio is to pi_gen, and w is 1; masks compare pi_old to pi_gen"]),
        ({"mismatch_reject": {"max_k2": 1.0}}, ["the ratio is to pi_gen; masks compare pi_old to pi_gen"]),
        ({"mismatch_reject": {"max_k2": 0.1}}, ["the ratio is to pi_gen; masks compare pi_old to pi_gen"]),
    ],
)
def test_what_stale_rows_are_compared_to_is_on_the_page(params: dict[str, Any], line: list[str]) -> None:
    assert lines("grpo", **params).get("stale", []) == [f"on rows of an older policy {text}" for text in line]


@pytest.mark.parametrize("name", [n for n in registry.names("algorithms") if n != "custom"])
def test_every_number_of_every_preset_is_on_its_page(name: str) -> None:
    _, parts = load_algorithm(name)
    page = explain_algorithm(name, max_response_tokens=777)
    assert "{" not in page
    for part in (parts.advantage, parts.surrogate):
        hidden = {"lam"} if part.options.get("length_alpha") is not None else set()  # the length decides it
        for value in (v for k, v in part.options.items() if k not in hidden):
            assert (str(value) if isinstance(value, (bool, str)) else "none" if value is None else f"{value:g}") in page
    if parts.params.kl_place != "none":
        assert f"{parts.params.kl_coef:g}" in page
    assert registry.find("algorithms", name).SOURCE in page


EVERYTHING = {
    "entropy_coef": 0.011,
    "ptx_coef": 0.055,
    "reward_clip": 8.8,
    "overlong_buffer": 0.99,
    "overlong_factor": 1.11,
    "mismatch_level": "sequence",
    "mismatch_action": "mask",
    "mismatch_cap": 2.22,
    "mismatch_floor": 0.333,
    "off_policy_delta": 0.0444,
    "high_entropy_share": 0.555,
    "num_epochs": 6,
    "num_minibatches": 7,
}


@pytest.mark.parametrize("key", EVERYTHING)
def test_every_shared_option_shows_its_number(key: str) -> None:
    page = explain(load_algorithm("grpo", EVERYTHING)[1])
    value = EVERYTHING[key]
    assert (f"{value:g}" if isinstance(value, (int, float)) else {"mask": "0 outside"}.get(value, value)) in page


def test_models_in_memory() -> None:
    def of(name: str, **params: Any) -> str:
        return "; ".join(models(load_algorithm(name, params)[1]))

    assert "critic (trained, a backbone of its own)" in of("ppo")
    assert "critic (trained, a head on the policy)" in of("ppo", critic_shared=True)
    assert "reference (replaced by the policy every round)" in of("r1_zero")
    moving = Setting(reference="every 5 steps")
    assert "reference (every 5 steps)" in explain_algorithm("grpo", max_response_tokens=9, setting=moving)
    dapo = load_algorithm("dapo")[1]
    assert models(dapo)[1] == "reference (frozen; no term uses it, its KL is measured)"
    assert models(dapo, Setting(reference="none")) == [
        "policy (trained)",
        "no reward model: rewards come from verifiers",
    ]
    assert models(dapo, Setting(reward_models=["reward model x"]))[-1] == "reward model x"


def test_a_cut_of_the_sampled_distribution_is_on_the_page() -> None:
    def of(**setting: Any) -> str:
        return explain_algorithm("deepseek_v32", max_response_tokens=9, setting=Setting(**setting))

    assert "among the 20 most likely tokens, then the fewest of probability 0.9" in of(top_p=0.9, top_k=20)
    assert "cut off in pi, pi_old and pi_ref" in of(top_p=0.9)
    assert "none off" not in of(top_p=0.9)
    assert "top_p 1 and top_k 0 cut none off" in of()
    assert "no experts" in of(experts=False)
    assert "no experts" not in of()


def test_what_was_allowed_departs() -> None:
    page = lines("gspo", clip_high=0.2, clip_low=0.2, allow=["wide_sequence_clip"])
    assert any(text.startswith("asked for: a sequence-level ratio") for text in page["departs"])
    assert lines("dr_grpo")["departs"] == ["in nothing that is known"]
