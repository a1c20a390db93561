"""Recipes from YAML: what is joined, what is overridden, what is refused and how the refusal reads."""

import copy
import functools
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.tiny import TREE, tiny
from verizero.pipeline.checks.run_facts import read as read_run
from verizero.pipeline.config.load import dump, load_recipe, parse, read_tree
from verizero.pipeline.config.recipes import OTHER_FOLDERS, recipe_names
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.yaml_reader import merge
from verizero.pipeline.errors import ConfigError, RunError

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
RECIPES = sorted(p for p in CONFIGS.rglob("*.yaml") if p.parent.name not in OTHER_FOLDERS)


def write(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder


def refusal(overrides=None, changes=None):
    with pytest.raises(ConfigError) as caught:
        tiny(changes, overrides or [])
    return str(caught.value)


class TestMerge:
    def test_a_mapping_of_another_name_replaces_whole(self):
        base = {"algorithm": {"name": "grpo", "kl_coef": 0.1}, "x": 1}
        assert merge(base, {"algorithm": {"name": "dapo"}}) == {"algorithm": {"name": "dapo"}, "x": 1}

    def test_a_mapping_of_the_same_name_or_of_none_joins(self):
        base = {"algorithm": {"name": "grpo", "kl_coef": 0.1}}
        same = merge(base, {"algorithm": {"name": "grpo", "eps": 1}})
        unnamed = merge(base, {"algorithm": {"eps": 1}})
        assert same == unnamed == {"algorithm": {"name": "grpo", "kl_coef": 0.1, "eps": 1}}


class TestExtends:
    def test_a_chain_and_a_list_join_in_order_and_the_file_itself_comes_last(self, tmp_path):
        write(
            tmp_path,
            base="a: {x: 1, y: 1, z: 1}\n",
            middle="extends: base.yaml\na: {y: 2, z: 2}\n",
            other="a: {z: 3}\nb: other\n",
            top="extends: [middle.yaml, other.yaml]\nb: top\n",
        )
        assert read_tree(tmp_path / "top.yaml") == {"a": {"x": 1, "y": 2, "z": 3}, "b": "top"}

    def test_a_parent_is_taken_from_the_folder_of_the_file_that_names_it(self, tmp_path):
        inner = tmp_path / "inner"
        inner.mkdir()
        write(tmp_path, base="a: outer\n")
        write(inner, top="extends: ../base.yaml\n", base="a: inner\n")
        assert read_tree(inner / "top.yaml") == {"a": "outer"}

    def test_one_parent_reached_twice_is_no_circle(self, tmp_path):
        write(
            tmp_path,
            base="a: 1\n",
            left="extends: base.yaml\nb: 2\n",
            right="extends: base.yaml\nc: 3\n",
            top="extends: [left.yaml, right.yaml]\n",
        )
        assert read_tree(tmp_path / "top.yaml") == {"a": 1, "b": 2, "c": 3}

    def test_a_circle_is_refused_with_its_way(self, tmp_path):
        write(tmp_path, one="extends: two.yaml\n", two="extends: three.yaml\n", three="extends: one.yaml\n")
        with pytest.raises(ConfigError, match=r"one\.yaml -> two\.yaml -> three\.yaml"):
            read_tree(tmp_path / "one.yaml")

    def test_a_missing_parent_answers_with_the_near_one(self, tmp_path):
        write(tmp_path, demo="a: 1\n", top="extends: demmo.yaml\n")
        with pytest.raises(ConfigError, match=r"demmo\.yaml.* .*/demo\.yaml"):
            read_tree(tmp_path / "top.yaml")

    def test_a_shipped_recipe_is_found_from_anywhere_by_its_name(self, tmp_path):
        write(tmp_path, top="extends: demo_short\nname: mine\n", other="extends: algorithms/dapo.yaml\n")
        assert read_tree(tmp_path / "top.yaml") == {**read_tree(CONFIGS / "demo_short.yaml"), "name": "mine"}
        assert read_tree(tmp_path / "other.yaml") == read_tree(CONFIGS / "algorithms" / "dapo.yaml")
        (tmp_path / "demo_short").write_text("a: of the user\n")
        assert read_tree(tmp_path / "top.yaml")["a"] == "of the user", "which comes first"

    @pytest.mark.parametrize("text", ["extends: 5\n", "extends: {a: b}\n", "extends: [a.yaml, 3]\n"])
    def test_what_names_no_recipe_is_refused(self, tmp_path, text):
        with pytest.raises(ConfigError, match="extends"):
            read_tree(write(tmp_path, top=text) / "top.yaml")


class TestYaml:
    @pytest.mark.parametrize("text", ["3e-4", "3E-4", "+3e-4", "1e3", ".5e1", "2.e2", "-1.5e+2", "3.0e-4"])
    def test_an_exponent_makes_a_number(self, tmp_path, text):
        value = read_tree(write(tmp_path, top=f"a: {text}\n") / "top.yaml")["a"]
        assert isinstance(value, float)
        assert value == float(text)

    @pytest.mark.parametrize("text", ["e4", "3e", "3e-4x", "'3e-4'", "1-2e3"])
    def test_what_only_looks_like_one_stays_text(self, tmp_path, text):
        assert read_tree(write(tmp_path, top=f"a: {text}\n") / "top.yaml") == {"a": text.strip("'")}

    def test_words_that_fields_take_are_words(self, tmp_path):
        text = "a: [on, off, No, y, true, False]\n"
        assert read_tree(write(tmp_path, top=text) / "top.yaml") == {"a": ["on", "off", "No", "y", True, False]}
        config = parse(TREE, ["train.packing=off", "rollout.parity={action: off}", "train.deterministic=no"])
        assert (config.train.packing, config.rollout.parity.action) == ("off", "off")
        assert config.train.deterministic is False

    @pytest.mark.parametrize(
        ("text", "key", "line"),
        [("a: 1\nb: 2\na: 3\n", "a", 3), ("a:\n  b: 1\n  b: 1\n", "b", 3), ("1: x\n'1': y\n", "1", 2)],
    )
    def test_a_key_given_twice_is_refused_with_file_and_line(self, tmp_path, text, key, line):
        with pytest.raises(ConfigError, match=rf"'{key}'.*top\.yaml.*line {line},"):
            read_tree(write(tmp_path, top=text) / "top.yaml")

    @pytest.mark.parametrize("text", ["a: [\n", "? [x]\n: 1\n", "a: !!python/object:os.system {}\n", "a: \x01\n"])
    def test_what_is_no_yaml_is_refused_in_one_line(self, tmp_path, text):
        with pytest.raises(ConfigError, match=r"top\.yaml") as caught:
            read_tree(write(tmp_path, top=text) / "top.yaml")
        assert "\n" not in str(caught.value)

    def test_bytes_that_are_no_text_are_refused(self, tmp_path):
        (tmp_path / "top.yaml").write_bytes(b"a: \xff\xfe\n")
        with pytest.raises(ConfigError, match=r"top\.yaml.*utf-8"):
            read_tree(tmp_path / "top.yaml")

    @pytest.mark.parametrize(("text", "found"), [("- a\n", "list"), ("", "NoneType"), ("word\n", "str")])
    def test_what_is_no_mapping_is_refused(self, tmp_path, text, found):
        with pytest.raises(ConfigError, match=found):
            read_tree(write(tmp_path, top=text) / "top.yaml")

    def test_an_alias_inside_its_own_anchor_is_refused(self):
        tree = copy.deepcopy(TREE)
        tree["rl"]["algorithm"]["self"] = tree["rl"]
        with pytest.raises(ConfigError, match="alias"):
            parse(tree)

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("a: &a {b: *a}\n", "recursive"),
            ("a: &a [*a]\n", "recursive"),
            (f"a: {'[' * 600}{']' * 600}\n", "deep|depth"),
            ("- " * 5_000 + "a\n", "deep|depth"),
        ],
    )
    def test_what_is_too_deep_or_holds_itself_is_refused_by_name(self, tmp_path, text, reason):
        write(tmp_path, top=text, child="extends: top.yaml\n", recipe=text)
        for name in ("top.yaml", "child.yaml"):
            with pytest.raises(ConfigError, match=rf"top\.yaml.*({reason})"):
                read_tree(tmp_path / name)
        with pytest.raises(ConfigError, match=reason):
            parse(copy.deepcopy(TREE), [f"rl.algorithm={text}"])
        assert recipe_names(tmp_path) == ["demo", "child", *recipe_names()[1:]]
        (tmp_path / "metrics.jsonl").touch()
        with pytest.raises(RunError, match=reason):
            read_run(tmp_path)

    def test_few_aliases_are_read(self, tmp_path):
        write(tmp_path, top="a: &a {x: 1}\nb: {<<: *a, y: [*a, *a]}\nc: {<<: *a, x: 2}\n")
        tree = read_tree(tmp_path / "top.yaml")
        assert tree["b"] == {"x": 1, "y": [{"x": 1}, {"x": 1}]}
        assert tree["c"] == {"x": 2}


def value_at(config, path):
    """The value at a dotted path of the recipe as it is written out."""
    return functools.reduce(lambda own, key: own[int(key) if key.isdigit() else key], path.split("."), config)


class TestOverrides:
    @pytest.mark.parametrize(
        ("path", "text", "value"),
        [
            ("rl.steps_per_round", "20", 20),
            ("rl.optimizer.learning_rate", "3e-4", 3e-4),
            ("stages", "[rl]", ["rl"]),
            ("sft.optimizer.max_grad_norm", "null", None),
            ("rl.select.carry_over", "false", False),
            ("output", "a=b", "a=b"),
            ("data.train.0.generator.params.digits", "2", 2),
            ("rl.algorithm", "{name: dapo, clip_high: 0.3}", {"name": "dapo", "clip_high": 0.3}),
            ("scoring.no_answer", "-0.5", -0.5),
        ],
    )
    def test_sets_one_field(self, path, text, value):
        plain, changed = (yaml.safe_load(dump(tiny(overrides=own))) for own in ((), [f"{path}={text}"]))
        assert value_at(changed, path) == value != value_at(plain, path)

    def test_the_last_one_of_a_field_counts(self):
        assert tiny(overrides=["seed=1", "seed=2"]).seed == 2

    def test_changes_nothing_but_the_field_it_names(self):
        shared = load_recipe(CONFIGS / "demo.yaml")
        config = load_recipe(CONFIGS / "demo.yaml", ["data.train.0.generator.params.noise=0.99"])
        assert config.data.train[0].generator.params["noise"] == 0.99
        assert config.data.evaluation == shared.data.evaluation, "an alias of the anchor is another field"

    def test_leaves_the_tree_it_was_given_alone(self):
        tree = copy.deepcopy(TREE)
        parse(tree, ["rl.group_size=6", "data.train.0.limit=3"])
        assert tree == TREE

    @pytest.mark.parametrize("text", ["seed", "=3", "rl.=4", ".rl=4", "rl..group_size=2", ""])
    def test_of_a_bad_form_is_refused(self, text):
        assert refusal([text]) == f"override {text!r} must read a.b=value, e.g. rl.steps_per_round=20"

    @pytest.mark.parametrize("at", ["1", "-1", "x", "²"])
    def test_of_no_item_of_a_list_is_refused(self, at):
        assert f"{at!r} must be an index below 1" in refusal([f"data.train.{at}.limit=1"])
        assert f"{at!r} must be an index below 1" in refusal([f"data.train.{at}={{}}"])

    @pytest.mark.parametrize("path", ["seed.x", "stages.0.x", "stages.0.x.y", "rl.algorithm.name.x"])
    def test_below_a_value_is_refused(self, path):
        assert f"override '{path}=1': {path.split('.x')[0]} is " in refusal([f"{path}=1"])

    def test_that_is_no_yaml_is_refused_in_one_line(self):
        said = refusal(["seed=[1"])
        assert "'[1' is not YAML" in said
        assert "\n" not in said


class TestDump:
    @pytest.mark.parametrize("path", RECIPES, ids=lambda p: str(p.relative_to(CONFIGS)))
    def test_every_recipe_written_out_reads_back_the_same(self, path, tmp_path):
        config, written = load_recipe(path), tmp_path / "resolved.yaml"
        text = dump(config)
        written.write_text(text, encoding="utf-8")
        again = load_recipe(written)
        assert again == config
        assert dump(again) == text

    def test_holds_every_field_with_its_default(self):
        tree = yaml.safe_load(dump(tiny()))
        assert list(tree) == list(RunConfig.model_fields)
        assert tree["rl"]["ptx_batch_size"] == tiny().rl.ptx_batch_size

    @pytest.mark.run
    @settings(max_examples=40)
    @given(rate=st.floats(1e-12, 1e3), text=st.text("αβ:#{}[]\"'\\ \n1e0~", min_size=1, max_size=12))
    def test_numbers_and_texts_survive(self, rate, text):
        config = tiny({"rl": {"optimizer": {"learning_rate": rate}}, "model": {"create": {"characters": text}}})
        assert parse(yaml.safe_load(dump(config))) == config
