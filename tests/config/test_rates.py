"""Learning rates that are left open: the table's, by what is trained; and a warning for rates far from it."""

import pytest

from tests.stages.tiny import tiny
from verizero.pipeline.checks.before.checks import rates
from verizero.pipeline.checks.before.parts import read_local_parts
from verizero.pipeline.config.auto import far_rates, leaves_rates_open, with_rates
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.rates import LORA, RATES, learning_rate
from verizero.pipeline.config.recipes import OTHER_FOLDERS, RECIPES
from verizero.pipeline.run.build import num_parameters_of

OPEN = {"learning_rate": None}
STAGES = [
    "sft",
    {"name": "more", "kind": "sft", "with": {"steps": 2, "optimizer": {"schedule": "linear", "learning_rate": None}}},
    "rl",
    "preference",
    "reward_model",
]
SECTIONS = {
    "stages": STAGES,
    "sft": {"optimizer": OPEN},
    "rl": {"optimizer": OPEN},
    "preference": {"loss": {"name": "dpo"}, "steps": 2},
    "reward_model": {"steps": 2},
}


def rates_of(num_parameters, *overrides):
    config = with_rates(tiny(SECTIONS, overrides), num_parameters)
    return {s.name: config.section_of(s).optimizer.rate for s in config.stages}


@pytest.mark.parametrize("num_parameters", [1000, 5_000_000, 5_000_001, 494_000_000])
def test_an_open_rate_is_the_tables_by_stage_and_size(num_parameters):
    assert leaves_rates_open(tiny(SECTIONS))
    texts, ranks = learning_rate("texts", num_parameters), learning_rate("ranks", num_parameters)
    rewards, pairs = learning_rate("rewards", num_parameters), learning_rate("preferences", num_parameters)
    expected = {"sft": texts, "more": texts, "rl": rewards, "preference": pairs, "reward_model": ranks}
    assert rates_of(num_parameters) == expected
    adapters = {stage: rate * (1 if stage == "reward_model" else LORA) for stage, rate in expected.items()}
    assert rates_of(num_parameters, "train.lora={rank: 4}") == pytest.approx(adapters)


def test_a_rate_that_is_given_stays():
    assert rates_of(494_000_000, "rl.optimizer.learning_rate=0.5")["rl"] == 0.5
    config = with_rates(tiny(SECTIONS), 1000)
    assert not leaves_rates_open(config)
    assert with_rates(config, 494_000_000) == config


def test_larger_models_take_smaller_steps_and_every_size_has_a_rate():
    for rows in RATES.values():
        assert [most for most, _ in rows] == sorted(most for most, _ in rows)
        assert [rate for _, rate in rows] == sorted((rate for _, rate in rows), reverse=True)
        assert rows[-1][0] == float("inf")


def test_parameters_are_counted_without_weights():
    from verizero.pipeline.data.tokenizer import character_tokenizer
    from verizero.pipeline.models.load import create_model

    config = tiny({})
    created = config.model.create
    model = create_model(created.model_type, created.config, character_tokenizer(created.characters), 0)
    assert num_parameters_of(config) == model.num_parameters()


def test_shipped_recipes_name_their_rates():
    for path in sorted(p for p in RECIPES.rglob("*.yaml") if p.parent.name not in OTHER_FOLDERS):
        config = load_recipe(path)
        assert not leaves_rates_open(config), path
        if config.model.create is not None:
            assert list(far_rates(config, num_parameters_of(config))) == [], path


@pytest.mark.parametrize(("rate", "cause"), [(1e-6, "learning_rate_low"), (1e-4, None), (1e-1, "learning_rate_high")])
def test_a_rate_far_from_the_table_is_a_warning_before_the_run(rate, cause, tmp_path):
    recipe = tiny({"stages": ["rl"], "rl": {"optimizer": {"learning_rate": rate}}})
    findings = rates(read_local_parts(recipe, tmp_path)).findings
    assert [f.cause for f in findings] == ([cause] if cause else [])
    for found in findings:
        assert f"Stage rl has a learning rate of {rate:g}" in found.sentence
        assert found.remedy.startswith("--set rl.optimizer.learning_rate=0.0003")
