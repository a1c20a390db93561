"""`verizero explain`: the page of a whole recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stages.tiny import tiny
from verizero.pipeline.commands.explain import explain_recipe
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.errors import ConfigError

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
RECIPES = sorted([*CONFIGS.glob("*.yaml"), *CONFIGS.glob("algorithms/*.yaml")])
MODEL = "[{verifier: {name: reward_model, params: {model: judges/small}}, weight: 0.5}]"


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_every_recipe_has_a_page_without_holes(path: Path) -> None:
    page = explain_recipe(load_recipe(path))
    labels = [line[:12].strip() for line in page.splitlines()]
    for label in ("algorithm", "maximise", "advantage", "ratio", "models", "updates", "departs"):
        assert label in labels
    assert "{" not in page
    assert "None" not in page
    assert "w = none" not in page


def test_the_recipe_decides_weights_models_reference_and_cut() -> None:
    gdpo = tiny(overrides=["rl.algorithm={name: gdpo}", f"scoring.components={MODEL}"])
    page = explain_recipe(gdpo)
    assert "w = (1, 0.5)" in page
    assert "reward model judges/small (verifier reward_model, frozen, here)" in page
    assert "reference (every_round; no term uses it, its KL is measured)" in page
    none = tiny(overrides=["rl.algorithm={name: dapo}", "rl.reference={schedule: none}"])
    assert "reference" not in explain_recipe(none)
    cut = tiny(overrides=["rl.algorithm={name: deepseek_v32}", "rollout.top_p=0.9"])
    assert "among the fewest of probability 0.9" in explain_recipe(cut)
    assert "the policy has no experts" in explain_recipe(cut)
    assert (
        explain_recipe(tiny({"stages": ["sft"]}))
        == "this recipe has no stage of RL, preferences, reward models or distillation"
    )


def test_no_reference_is_refused_where_a_term_needs_one() -> None:
    with pytest.raises(ConfigError, match=r"schedule .*'none'.* 'grpo'"):
        tiny(overrides=["rl.reference={schedule: none}"])


def test_several_stages_of_rl_have_a_page_each() -> None:
    again = {"name": "rl_again", "kind": "rl", "with": {"algorithm": {"name": "dr_grpo"}}}
    both = explain_recipe(tiny({"stages": ["rl", "sft", again]}))
    first, second = both.split("\n\nstage rl_again\n")
    assert first == "stage rl\n" + explain_recipe(tiny({"stages": ["rl"]}))
    assert second == explain_recipe(tiny({"stages": [again]}))
    assert (
        explain_recipe(tiny({"stages": ["sft"]}))
        == "this recipe has no stage of RL, preferences, reward models or distillation"
    )


def test_a_loss_of_preferences_is_its_formula_with_its_numbers() -> None:
    mpo = {"name": "mpo", "losses": [{"name": "ipo", "beta": 0.2}, {"name": "bco", "weight": 0.3}], "wpo": True}
    sampled = {"loss": mpo, "steps": 2}
    page = explain_recipe(tiny({"stages": ["sft", "preference"], "preference": sampled})).splitlines()
    assert page[0] == "loss        mpo  (arXiv:2411.10442 eq. 1)"
    assert page[1].startswith("minimise    the mean over pairs of sum_k weight_k loss_k - nll_coef log pi(w) / |w|")
    assert page[2] == "numbers     wpo True, nll_coef 1.0"
    assert page[3].startswith("  loss      1.0 ipo, beta 0.2: (h_w - h_l - 1 / (2 beta))^2")
    assert page[4].startswith("  loss      0.3 bco: -log sigmoid(r_w) - log sigmoid(-r_l)")
    assert "weights     the loss of a pair is multiplied by the policy's likelihood of both responses" in page
    assert page[-2].startswith("departs     BCO's rewards are not shifted")
    shortened = {"loss": {"name": "dpo", "ld_alpha": 0.5}, "steps": 2}
    page = explain_recipe(tiny({"stages": ["sft", "preference"], "preference": shortened})).splitlines()
    assert "log-ratio   tokens beyond the length of the other response count 0.5" in page


def test_observations_are_a_term_of_the_objective() -> None:
    page = explain_recipe(tiny({"episodes": {"observation_coef": 0.05}}))
    assert " + 0.05 mean log pi(observations)" in page
    assert "observations" not in explain_recipe(tiny())


def test_a_term_of_distillation_and_what_its_teacher_reads_are_on_the_page() -> None:
    term = {"coef": 0.25, "teacher": {"feedback": {"right": None, "template": "{question}{message}"}}}
    page = explain_recipe(tiny({"rl": {"distill": term}}))
    assert page.startswith(explain_recipe(tiny()))
    assert "besides 0.25 J, J = " in page
    assert "which reads '{question}{message}', message = " in page
    assert "right = " not in page


def test_a_reward_model_has_its_loss_and_rl_names_the_model_that_grades() -> None:
    again = {"name": "again", "kind": "reward_model", "with": {"continues": "reward_model", "replay": 0.2}}
    reward = {"name": "reward_model", "params": {"model": "stage:again"}}
    trained = {"steps": 2, "sampled": {"samples": 6}}
    page = explain_recipe(
        tiny({"stages": ["reward_model", again, "rl"], "reward_model": trained, "rl": {"reward": reward}})
    )
    first, second, rl = page.split("\n\n")
    assert first.splitlines()[1:] == [
        "loss        Bradley-Terry  (arXiv:2203.02155 eq. 1)",
        "minimise    the mean over pairs of -log sigmoid(r_w - r_l)",
        "pairs       6 answers of the policy to each prompt, graded",
        "models      reward model (trained; the policy's blocks, a new scalar head)",
    ]
    assert "replay      pairs of stage reward_model are trained on again, 0.2 for each new one" in second
    assert "reward model stage:again (verifier reward_model, frozen, here)" in rl
    assert "no reward model" not in rl
    steps = explain_recipe(tiny({"stages": ["reward_model"], "reward_model": {"steps": 2, "step_end": "x"}}))
    assert "minimise    the mean over steps of -log sigmoid(r) if right, -log sigmoid(-r) if wrong" in steps
    assert "steps       pieces up to a match of 'x' in which a labelled step ends" in steps
