"""Recipes by name, and what the fields of a form make of one."""

import pytest

from tests.stages.tiny import tiny
from verizero.pipeline.config.load import dump
from verizero.pipeline.config.recipes import RECIPES, find_recipe, recipe_names, request_of, settings_in
from verizero.pipeline.errors import ConfigError


@pytest.fixture
def own(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "mine.yaml").write_text(dump(tiny()))
    (tmp_path / "deep" / "other.yaml").write_text("extends: ../mine.yaml\nname: other\n")
    (tmp_path / "demo.yaml").write_text(dump(tiny({"name": "my-demo"})))
    (tmp_path / "compose.yaml").write_text("services: {}\n")
    (tmp_path / "torn.yaml").write_text("model: [")
    (tmp_path / "runs" / "x").mkdir(parents=True)
    (tmp_path / "runs" / "x" / "recipe.yaml").write_text(dump(tiny()))
    return tmp_path


def test_names_are_demo_then_the_users_own_then_the_shipped_ones(own):
    names = recipe_names(own)
    assert names[:4] == ["demo", "deep/other", "mine", "algorithms/cispo"]
    assert "algorithms/cispo" in recipe_names(RECIPES.parent)
    assert "configs/algorithms/cispo" not in recipe_names(RECIPES.parent)
    assert {"demo_short", "algorithms/grpo"} <= set(names)
    assert names.count("demo") == 1
    assert not [n for n in names if n.startswith(("data/", "runs/"))]
    assert not {"compose", "torn"} & set(names)


def test_every_name_is_a_recipe_that_loads(own):
    for name in recipe_names(own)[:3]:
        assert request_of(name, user_folder=own).config.name in ("other", "my-demo", "tiny")


def test_ones_own_recipe_comes_before_the_shipped_one(own):
    assert find_recipe("demo", own) == own / "demo.yaml"
    assert request_of("demo", user_folder=own).config.name == "my-demo"
    assert request_of("demo").config.name == "demo"
    assert find_recipe("demo") == find_recipe("demo.yaml") == RECIPES / "demo.yaml"
    assert find_recipe("algorithms/dapo") == RECIPES / "algorithms" / "dapo.yaml"


def test_fields_override_the_recipe_and_empty_ones_leave_it(own):
    plain = request_of("mine", user_folder=own)
    assert plain.config == tiny()
    changes = {"rl.optimizer.learning_rate": 1e-5, "model.dtype": "bfloat16", "rl.max_tokens": None}
    request = request_of("mine", user_folder=own, rounds=7, stages=["rl"], run_name="b-2", overrides=changes)
    config = request.config
    assert (config.rl.rounds, config.stage_names, config.name) == (7, ("rl",), "b-2")
    assert (config.rl.optimizer.learning_rate, config.model.dtype, config.rl.max_tokens) == (1e-5, "bfloat16", None)
    assert request.with_overrides("rl.rounds=2").config.name == "b-2"
    assert request_of("mine", user_folder=own, overrides="--set rl.rounds=7").config.rl.rounds == 7


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", []),
        ("rl.rounds=4", ["rl.rounds=4"]),
        ("--set rl.rounds=4  --set=sft.steps=9\nseed=5", ["rl.rounds=4", "sft.steps=9", "seed=5"]),
        ("problem: length_cap: k=8. Remedy: --set rl.rounds=4", ["rl.rounds=4"]),
        ("--set rl.rounds=4 --set stages=[sft,rl], or the engine's own", ["rl.rounds=4", "stages=[sft,rl]"]),
        ("--set 'data.template={stop: \"a b\"}'; for a chat model", ['data.template={stop: "a b"}']),
        ("--set rl.rounds=4, or --set rl.rounds=5", "'or' is no setting"),
        ("rl.rounds 4", "'rl.rounds' is no setting a.b=c; keep only those"),
        ("data.template={name: chat}", "'chat}' is no setting"),
        ("rl.rounds='4", "No closing quotation"),
    ],
)
def test_a_text_has_settings_as_a_remedy_or_a_command_line_has_them(own, text, settings):
    if isinstance(settings, list):
        assert settings_in("overrides", text) == settings
    else:
        with pytest.raises(ConfigError, match=settings):
            request_of("mine", user_folder=own, overrides=text)


def test_the_words_for_a_rank_ask_for_the_same_run(own):
    from verizero.pipeline.cli import parser

    request = request_of(
        "mine", user_folder=own, rounds=3, run_name="a b".replace(" ", "_"), overrides={"sft.steps": 9}
    )
    arguments = parser().parse_args(request.train_arguments("must"))
    assert (arguments.resume, arguments.no_prefect) == ("must", True)
    assert request_of(arguments.recipe).with_overrides(*arguments.set).config == request.config


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rounds": 0}, "rounds must be a whole number >= 1, got 0; leave it empty"),
        ({"rounds": "two"}, "rounds must be a whole number >= 1, got 'two'"),
        ({"rounds": True}, "got True"),
        ({"stages": ["sft", "dance"]}, "the recipe has no stage 'dance'"),
        ({"run_name": "../up"}, "name: "),
        ({"overrides": {"rl.group_sise": 4}}, "unknown key 'rl.group_sise'; did you mean group_size"),
        ({"overrides": {"rl.group_size": "many"}}, "rl.group_size"),
        ({"overrides": ["rl.group_size=4"]}, "overrides must be an object of dotted names"),
        ({"overrides": {"": 4}}, "must read a.b=value"),
    ],
)
def test_a_wrong_field_is_named_with_its_value(own, fields, message):
    with pytest.raises(ConfigError) as caught:
        request_of("mine", user_folder=own, **fields)
    assert message in str(caught.value)


def test_an_unknown_recipe_says_which_are_near(own):
    with pytest.raises(ConfigError, match=r"recipe='demo_shot'.*demo_short"):
        request_of("demo_shot", user_folder=own)
