"""The page of a resolved objective: every number that was chosen is on it."""

import pytest

from verizero.pipeline import registry
from verizero.pipeline.algorithms.base import explain_algorithm, load_algorithm
from verizero.pipeline.rl.explain import Setting, explain


def lines(name, **params):
    out = {}
    for line in explain_algorithm(name, params, max_response_tokens=512).splitlines():
        out.setdefault(line[:12].strip(), []).append(line[12:])
    return out


def test_grpo_is_its_equation():
    page = lines("grpo", clip_high=0.25)
    assert page["maximise"] == [
        "J = mean_i (1/|y_i|) sum_t [ min(r A, clip(r, 1 - 0.2, 1 + 0.25) A) - 0.04 (exp(d) - d - 1) ]"
    ]
    assert page["advantage"] == ["A_i = (R_i - mean of the group) / (std over group + 1e-06), ddof 1"]
    assert page["ratio"] == ["r_t = pi(y_t) / pi_old(y_t)"]
    assert page["kl"] == ["d = log pi_ref - log pi"]
    assert page["models"] == ["policy (trained); reference (frozen); no reward model: rewards come from verifiers"]
    assert "clip_high is 0.25, the preset has 0.2" in page["departs"]


NOTE = "so pi is pi_old on rows of the newest policy: r is 1 there, and nothing that bounds r acts"
STALE = "on rows of an older policy the ratio is to pi_gen"
MASKS = "masks compare pi_old to pi_gen"
CUTS = {"top_p": 0.9, "top_k": 20}
V32 = {"mismatch_level": "token", "high_entropy_share": 0.2}


@pytest.mark.parametrize(
    ("name", "params", "setting", "words", "absent"),
    [
        ("dapo", {}, {}, [NOTE, "the paper takes 16 (num_minibatches)"], []),
        ("dapo", {"num_minibatches": 16}, {}, [], [NOTE]),
        ("ppo", {"num_epochs": 2}, {}, ["critic (trained, a backbone of its own)"], [NOTE]),
        ("ppo", {"critic_shared": True}, {}, ["critic (trained, a head on the policy)"], []),
        ("rloo", {}, {}, ["updates"], [NOTE]),
        ("gspo", {}, {}, ["the paper takes 4 (num_minibatches)"], []),
        ("gspo", {"clip_high": 0.2, "clip_low": 0.2, "allow": ["wide_sequence_clip"]}, {},
         ["asked for: a sequence-level ratio"], []),
        ("dr_grpo", {}, {}, ["(1/512) sum_t", "departs     in nothing that is known"], []),
        ("deepseek_v32", V32, {}, ["A)) w M H - 0.001", "w           pi_old / pi_gen per token, clamped to [0, 2]",
         "M           0 where A < 0 and mean_t log(pi_gen / pi) > 0.1, else 1",
         "H           1 on the 0.2 of all tokens with the highest entropy, else 0",
         "top_p 1 and top_k 0 cut none off"], ["no experts"]),
        ("deepseek_v32", {}, CUTS, ["among the 20 most likely tokens, then the fewest of probability 0.9",
         "cut off in pi, pi_old and pi_ref"], ["none off"]),
        ("deepseek_v32", {}, {"experts": False}, ["no experts"], []),
        ("grpo", {}, {"reference": "every 5 steps"}, ["reference (every 5 steps)"], ["on rows of an older"]),
        ("grpo", {"mismatch_level": "token"}, {}, [f"{STALE}, and w is 1; {MASKS}"], []),
        ("grpo", {"mismatch_reject": {"max_k2": 1.0}}, {}, [f"{STALE}; {MASKS}"], []),
        ("r1_zero", {}, {}, ["reference (replaced by the policy every round)"], []),
        ("dapo", {}, {}, ["reference (frozen; no term uses it, its KL is measured)"], []),
        ("dapo", {}, {"reference": "none", "reward_models": ["a model x"]}, ["policy (trained); a model x"], []),
    ],
)  # fmt: skip
def test_what_a_recipe_decides_is_on_the_page(name, params, setting, words, absent):
    page = explain_algorithm(name, params, max_response_tokens=512, setting=Setting(**setting))
    assert [word for word in words if word not in page] == []
    assert [word for word in absent if word in page] == []


@pytest.mark.parametrize("name", [n for n in registry.names("algorithms") if n != "custom"])
def test_every_number_of_every_preset_is_on_its_page(name):
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
def test_every_shared_option_shows_its_number(key):
    page = explain(load_algorithm("grpo", EVERYTHING)[1])
    value = EVERYTHING[key]
    assert (f"{value:g}" if isinstance(value, (int, float)) else {"mask": "0 outside"}.get(value, value)) in page
