"""The objective of a whole recipe, as `verizero check` shows it."""

from pathlib import Path

import pytest

from tests.stages.tiny import tiny
from verizero.pipeline.commands.check import objectives
from verizero.pipeline.config.load import load_recipe

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
RECIPES = sorted([*CONFIGS.glob("*.yaml"), *CONFIGS.glob("algorithms/*.yaml")])
MODEL = "[{verifier: {name: reward_model, params: {model: judges/small}}, weight: 0.5}]"


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_every_recipe_has_a_page_without_holes(path):
    page = objectives(load_recipe(path))
    labels = [line[:12].strip() for line in page.splitlines()]
    for label in ("algorithm", "maximise", "advantage", "ratio", "models", "updates", "departs"):
        assert label in labels
    assert "{" not in page
    assert "None" not in page
    assert "w = none" not in page


def test_the_recipe_decides_weights_models_reference_and_cut():
    gdpo = tiny(overrides=["rl.algorithm={name: gdpo}", f"scoring.components={MODEL}"])
    page = objectives(gdpo)
    assert "w = (1, 0.5)" in page
    assert "reward model judges/small (verifier reward_model, frozen, here)" in page
    assert "reference (every_round; no term uses it, its KL is measured)" in page
    none = tiny(overrides=["rl.algorithm={name: dapo}", "rl.reference={schedule: none}"])
    assert "reference" not in objectives(none)
    cut = tiny(overrides=["rl.algorithm={name: deepseek_v32}", "rollout.top_p=0.9"])
    assert "among the fewest of probability 0.9" in objectives(cut)
    assert "the policy has no experts" in objectives(cut)
    assert (
        objectives(tiny({"stages": ["sft"]}))
        == "this recipe has no stage of RL, preferences, reward models or distillation"
    )


def test_the_page_has_the_numbers_and_when_the_reference_moves():
    moves = "rl.reference={schedule: every_n_steps, every: 7}"
    page = objectives(tiny(overrides=[moves, "rl.algorithm={name: grpo, kl_coef: 0.125}"]))
    assert page.startswith("algorithm   grpo")
    for text in (
        "0.125 (exp(d) - d - 1)", "reference (every_n_steps, every 7)", "kl_coef is 0.125, the preset has 0.04",
    ):  # fmt: skip
        assert text in page
    own = objectives(tiny(overrides=["rl.reference=null", "rl.algorithm={name: r1_zero}"]))
    assert "reference (replaced by the policy every round)" in own


def test_several_stages_of_rl_have_a_page_each():
    again = {"name": "rl_again", "kind": "rl", "with": {"algorithm": {"name": "dr_grpo"}}}
    both = objectives(tiny({"stages": ["rl", "sft", again]}))
    first, second = both.split("\n\nstage rl_again\n")
    assert first == "stage rl\n" + objectives(tiny({"stages": ["rl"]}))
    assert second == objectives(tiny({"stages": [again]}))


def test_a_loss_of_preferences_is_its_formula_with_its_numbers():
    section = {"loss": {"name": "bco", "beta": 0.3}, "steps": 2}
    page = objectives(tiny({"stages": ["sft", "preference"], "preference": section})).splitlines()
    assert page[0] == "loss        bco  (arXiv:2404.04656, on pairs (TRL's bco_pair))"
    assert page[1].startswith("minimise    the mean over pairs of -log sigmoid(r_w) - log sigmoid(-r_l)")
    assert page[2] == "numbers     beta 0.3"
    assert page[-1].startswith("departs     rewards are not shifted")


def test_a_term_of_distillation_and_what_its_teacher_reads_are_on_the_page():
    term = {"coef": 0.25, "teacher": {"feedback": {"right": None, "template": "{question}{message}"}}}
    page = objectives(tiny({"rl": {"distill": term}}))
    assert page.startswith(objectives(tiny()))
    assert "besides 0.25 J, J = " in page
    assert "which reads '{question}{message}', message = " in page
    assert "right = " not in page


def test_a_reward_model_has_its_loss_and_rl_names_the_model_that_grades():
    again = {"name": "again", "kind": "reward_model", "with": {"continues": "reward_model", "replay": 0.2}}
    reward = {"name": "reward_model", "params": {"model": "stage:again"}}
    trained = {"steps": 2, "sampled": {"samples": 6}}
    page = objectives(
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
    steps = objectives(tiny({"stages": ["reward_model"], "reward_model": {"steps": 2, "step_end": "x"}}))
    assert "minimise    the mean over steps of -log sigmoid(r) if right, -log sigmoid(-r) if wrong" in steps
    assert "steps       pieces up to a match of 'x' in which a labelled step ends" in steps
