"""Recipes from YAML: what is joined, what is overridden, what is refused and how the refusal reads."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.tiny import TREE, tiny
from verizero.pipeline.config.load import dump, load_recipe, parse, read_tree
from verizero.pipeline.config.recipes import OTHER_FOLDERS
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.yaml_reader import merge
from verizero.pipeline.errors import ConfigError

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
RECIPES = sorted(p for p in CONFIGS.rglob("*.yaml") if p.parent.name not in OTHER_FOLDERS)


def write(folder: Path, **files: str) -> Path:
    """`folder`, with one YAML file for each keyword."""
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder


def refusal(overrides: list[str] | None = None, changes: dict[str, Any] | None = None) -> str:
    """Return the error for the tiny recipe with these changes."""
    with pytest.raises(ConfigError) as caught:
        tiny(changes, overrides or [])
    return str(caught.value)


class TestMerge:
    def test_a_mapping_of_another_name_replaces_whole(self) -> None:
        base = {"algorithm": {"name": "grpo", "kl_coef": 0.1}, "x": 1}
        assert merge(base, {"algorithm": {"name": "dapo"}}) == {"algorithm": {"name": "dapo"}, "x": 1}

    def test_a_mapping_of_the_same_name_or_of_none_joins(self) -> None:
        base = {"algorithm": {"name": "grpo", "kl_coef": 0.1}}
        same = merge(base, {"algorithm": {"name": "grpo", "eps": 1}})
        unnamed = merge(base, {"algorithm": {"eps": 1}})
        assert same == unnamed == {"algorithm": {"name": "grpo", "kl_coef": 0.1, "eps": 1}}


class TestExtends:
    def test_a_chain_and_a_list_join_in_order_and_the_file_itself_comes_last(self, tmp_path: Path) -> None:
        write(
            tmp_path,
            base="a: {x: 1, y: 1, z: 1}\n",
            middle="extends: base.yaml\na: {y: 2, z: 2}\n",
            other="a: {z: 3}\nb: other\n",
            top="extends: [middle.yaml, other.yaml]\nb: top\n",
        )
        assert read_tree(tmp_path / "top.yaml") == {"a": {"x": 1, "y": 2, "z": 3}, "b": "top"}

    def test_a_parent_is_taken_from_the_folder_of_the_file_that_names_it(self, tmp_path: Path) -> None:
        inner = tmp_path / "inner"
        inner.mkdir()
        write(tmp_path, base="a: outer\n")
        write(inner, top="extends: ../base.yaml\n", base="a: inner\n")
        assert read_tree(inner / "top.yaml") == {"a": "outer"}

    def test_one_parent_reached_twice_is_no_circle(self, tmp_path: Path) -> None:
        write(
            tmp_path,
            base="a: 1\n",
            left="extends: base.yaml\nb: 2\n",
            right="extends: base.yaml\nc: 3\n",
            top="extends: [left.yaml, right.yaml]\n",
        )
        assert read_tree(tmp_path / "top.yaml") == {"a": 1, "b": 2, "c": 3}

    def test_a_circle_is_refused_with_its_way(self, tmp_path: Path) -> None:
        write(tmp_path, one="extends: two.yaml\n", two="extends: three.yaml\n", three="extends: one.yaml\n")
        with pytest.raises(ConfigError, match=r"one\.yaml -> two\.yaml -> three\.yaml"):
            read_tree(tmp_path / "one.yaml")

    def test_a_missing_parent_answers_with_the_near_one(self, tmp_path: Path) -> None:
        write(tmp_path, demo="a: 1\n", top="extends: demmo.yaml\n")
        with pytest.raises(ConfigError, match=r"demmo\.yaml.* .*/demo\.yaml"):
            read_tree(tmp_path / "top.yaml")

    def test_a_shipped_recipe_is_found_from_anywhere_by_its_name(self, tmp_path: Path) -> None:
        write(tmp_path, top="extends: demo_short\nname: mine\n", other="extends: algorithms/dapo.yaml\n")
        assert read_tree(tmp_path / "top.yaml") == {**read_tree(CONFIGS / "demo_short.yaml"), "name": "mine"}
        assert read_tree(tmp_path / "other.yaml") == read_tree(CONFIGS / "algorithms" / "dapo.yaml")
        (tmp_path / "demo_short").write_text("a: of the user\n")
        assert read_tree(tmp_path / "top.yaml")["a"] == "of the user", "which comes first"

    @pytest.mark.parametrize("text", ["extends: 5\n", "extends: {a: b}\n", "extends: [a.yaml, 3]\n"])
    def test_what_names_no_recipe_is_refused(self, tmp_path: Path, text: str) -> None:
        with pytest.raises(ConfigError, match="extends"):
            read_tree(write(tmp_path, top=text) / "top.yaml")


class TestYaml:
    @pytest.mark.parametrize("text", ["3e-4", "3E-4", "+3e-4", "1e3", ".5e1", "2.e2", "-1.5e+2", "3.0e-4"])
    def test_an_exponent_makes_a_number(self, tmp_path: Path, text: str) -> None:
        value = read_tree(write(tmp_path, top=f"a: {text}\n") / "top.yaml")["a"]
        assert isinstance(value, float)
        assert value == float(text)

    @pytest.mark.parametrize("text", ["e4", "3e", "3e-4x", "'3e-4'", "1-2e3"])
    def test_what_only_looks_like_one_stays_text(self, tmp_path: Path, text: str) -> None:
        assert read_tree(write(tmp_path, top=f"a: {text}\n") / "top.yaml") == {"a": text.strip("'")}

    @pytest.mark.parametrize(
        ("text", "key", "line"),
        [("a: 1\nb: 2\na: 3\n", "a", 3), ("a:\n  b: 1\n  b: 1\n", "b", 3), ("1: x\n'1': y\n", "1", 2)],
    )
    def test_a_key_given_twice_is_refused_with_file_and_line(
        self, tmp_path: Path, text: str, key: str, line: int
    ) -> None:
        with pytest.raises(ConfigError, match=rf"'{key}'.*top\.yaml.*line {line},"):
            read_tree(write(tmp_path, top=text) / "top.yaml")

    @pytest.mark.parametrize("text", ["a: [\n", "? [x]\n: 1\n", "a: !!python/object:os.system {}\n", "a: \x01\n"])
    def test_what_is_no_yaml_is_refused_in_one_line(self, tmp_path: Path, text: str) -> None:
        with pytest.raises(ConfigError, match=r"top\.yaml") as caught:
            read_tree(write(tmp_path, top=text) / "top.yaml")
        assert "\n" not in str(caught.value)

    def test_bytes_that_are_no_text_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "top.yaml").write_bytes(b"a: \xff\xfe\n")
        with pytest.raises(ConfigError, match=r"top\.yaml.*utf-8"):
            read_tree(tmp_path / "top.yaml")

    @pytest.mark.parametrize(("text", "found"), [("- a\n", "list"), ("", "NoneType"), ("word\n", "str")])
    def test_what_is_no_mapping_is_refused(self, tmp_path: Path, text: str, found: str) -> None:
        with pytest.raises(ConfigError, match=found):
            read_tree(write(tmp_path, top=text) / "top.yaml")

    def test_an_alias_inside_its_own_anchor_is_refused(self) -> None:
        tree = copy.deepcopy(TREE)
        tree["rl"]["algorithm"]["self"] = tree["rl"]
        with pytest.raises(ConfigError, match="alias"):
            parse(tree)


class TestOverrides:
    @pytest.mark.parametrize(
        ("text", "read"),
        [
            ("rl.steps_per_round=20", lambda c: c.rl.steps_per_round == 20),
            ("rl.optimizer.learning_rate=3e-4", lambda c: math.isclose(c.rl.optimizer.learning_rate, 3e-4)),
            ("stages=[rl]", lambda c: c.stage_names == ("rl",)),
            ("sft.optimizer.max_grad_norm=null", lambda c: c.sft.optimizer.max_grad_norm is None),
            ("rl.select.carry_over=false", lambda c: c.rl.select.carry_over is False),
            ("name=other", lambda c: c.name == "other"),
            ("output=a=b", lambda c: c.output == "a=b"),
            ("data.train.0.generator.params.digits=2", lambda c: c.data.train[0].generator.params["digits"] == 2),
            (
                "rl.algorithm={name: dapo, clip_high: 0.3}",
                lambda c: c.rl.algorithm == {"name": "dapo", "clip_high": 0.3},
            ),
            ("scoring.no_answer=-0.5", lambda c: c.scoring.no_answer == -0.5),
        ],
    )
    def test_sets_one_field(self, text: str, read: Any) -> None:
        config = tiny(overrides=[text])
        assert read(config)
        assert not read(tiny())

    def test_makes_a_section_that_was_not_there(self) -> None:
        config = tiny(overrides=["train.lora.rank=4"])
        assert config.train.lora is not None
        assert config.train.lora.rank == 4

    def test_the_last_one_of_a_field_counts(self) -> None:
        assert tiny(overrides=["seed=1", "seed=2"]).seed == 2

    def test_changes_nothing_but_the_field_it_names(self) -> None:
        shared = load_recipe(CONFIGS / "demo.yaml")
        config = load_recipe(CONFIGS / "demo.yaml", ["data.train.0.generator.params.noise=0.99"])
        train, held_out = config.data.train[0].generator, config.data.evaluation[0].generator
        assert train is not None
        assert held_out is not None
        assert train.params["noise"] == 0.99
        assert config.data.evaluation == shared.data.evaluation, "an alias of the anchor is another field"

    def test_leaves_the_tree_it_was_given_alone(self) -> None:
        tree = copy.deepcopy(TREE)
        parse(tree, ["rl.group_size=6", "data.train.0.limit=3"])
        assert tree == TREE

    @pytest.mark.parametrize("text", ["seed", "=3", "rl.=4", ".rl=4", "rl..group_size=2", ""])
    def test_of_a_bad_form_is_refused(self, text: str) -> None:
        assert refusal([text]) == f"override {text!r} must read a.b=value, e.g. rl.steps_per_round=20"

    @pytest.mark.parametrize("at", ["1", "-1", "x", "²"])
    def test_of_no_item_of_a_list_is_refused(self, at: str) -> None:
        assert f"{at!r} must be an index below 1" in refusal([f"data.train.{at}.limit=1"])
        assert f"{at!r} must be an index below 1" in refusal([f"data.train.{at}={{}}"])

    @pytest.mark.parametrize("path", ["seed.x", "stages.0.x", "stages.0.x.y", "rl.algorithm.name.x"])
    def test_below_a_value_is_refused(self, path: str) -> None:
        assert f"override '{path}=1': {path.split('.x')[0]} is " in refusal([f"{path}=1"])

    def test_that_is_no_yaml_is_refused_in_one_line(self) -> None:
        said = refusal(["seed=[1"])
        assert "'[1' is not YAML" in said
        assert "\n" not in said


class TestRefusals:
    @pytest.mark.parametrize(
        ("override", "path", "near"),
        [
            ("rl.optimizer.lerning_rate=1", "rl.optimizer.lerning_rate", "learning_rate"),
            ("rl.goup_size=4", "rl.goup_size", "group_size"),
            ("evaluaton.k=4", "evaluaton", "evaluation"),
            ("rl.select.kep=all", "rl.select.kep", "keep"),
            ("data.train.0.generator.parms={}", "data.train.0.generator.parms", "params"),
            ("model.create.charactrs=x", "model.create.charactrs", "characters"),
        ],
    )
    def test_an_unknown_key_answers_with_its_path_and_the_near_one(self, override: str, path: str, near: str) -> None:
        assert f"unknown key '{path}'; did you mean {near}" in refusal([override])

    def test_an_unknown_key_near_none_lists_those_there(self) -> None:
        said = refusal(["checkpoint.zzz=1"])
        assert said == "recipe: unknown key 'checkpoint.zzz'; known here: every_steps, keep"

    @pytest.mark.parametrize(
        ("override", "field", "value"),
        [
            ("seed=-1", "seed", "-1"),
            ("seed=1.5", "seed", "1.5"),
            ("seed=many", "seed", "'many'"),
            ("rl.rounds=0", "rl.rounds", "0"),
            ("rl.optimizer.learning_rate=0", "rl.optimizer.learning_rate", "0"),
            ("rl.optimizer.learning_rate=.inf", "rl.optimizer.learning_rate", "inf"),
            ("rl.optimizer.learning_rate=.nan", "rl.optimizer.learning_rate", "nan"),
            ("scoring.no_answer=-.inf", "scoring.no_answer", "-inf"),
            ("rollout.temperature=0", "rollout.temperature", "0"),
            ("rollout.engine=vlm", "rollout.engine", "'vlm'"),
            ("model.dtype=float16", "model.dtype", "'float16'"),
            ("sandbox.memory_mib=1099511627776", "sandbox.memory_mib", "1099511627776"),
            ("name=../up", "name", "'../up'"),
            ("name=''", "name", "''"),
            ("rl=[1]", "rl", "[1]"),
            ("stages=[]", "stages", "[]"),
            ("stages=[sft, dpi]", "stages.1", "'dpi'"),
        ],
    )
    def test_a_wrong_value_answers_with_field_and_value(self, override: str, field: str, value: str) -> None:
        said = refusal([override])
        assert said.startswith(f"recipe: {field}: ")
        assert said.endswith(f", got {value}")

    @pytest.mark.parametrize("field", ["name", "model", "data", "rollout"])
    def test_a_section_that_is_not_there_is_named(self, field: str) -> None:
        tree = {k: v for k, v in TREE.items() if k != field}
        with pytest.raises(ConfigError, match=f"^mine.yaml: '{field}'"):
            parse(tree, source="mine.yaml")

    def test_all_that_is_wrong_is_said_at_once(self) -> None:
        said = refusal(["seed=-1", "rl.rounds=0", "evaluation.kk=3"])
        assert said.count("; ") >= 2
        for field in ("seed", "rl.rounds", "evaluation.kk"):
            assert field in said

    def test_a_huge_value_is_cut_short(self) -> None:
        assert len(refusal([f"seed={'x' * 100_000}"])) < 400


class TestBetweenSections:
    def test_a_group_of_one_forms_no_baseline(self) -> None:
        said = refusal(["rl.group_size=1"])
        assert "group_size must be >= 2 to form a baseline, got 1; set rl.group_size" in said

    def test_a_group_of_one_is_never_informative(self) -> None:
        alone = ["rl.algorithm={name: reinforce}", "rl.group_size=1"]
        assert "a group of 1 is never informative; set rl.select.keep: all" in refusal(alone)
        assert tiny(overrides=[*alone, "rl.select.keep=all"]).rl is not None

    def test_the_algorithm_must_exist_and_know_its_parameters(self) -> None:
        assert "no algorithm is called 'grp'; did you mean grpo" in refusal(["rl.algorithm={name: grp}"])
        assert "no parameter 'clip_hi'; did you mean clip_high" in refusal(["rl.algorithm={name: grpo, clip_hi: 1}"])
        assert "rl.algorithm needs a name" in refusal(changes={"rl": {"algorithm": {"name": None}}})

    def test_what_the_loop_cannot_give_an_algorithm_is_refused(self) -> None:
        assert "takes several rewards one by one and the recipe has one" in refusal(["rl.algorithm={name: gdpo}"])

    def test_an_algorithm_is_not_looked_at_where_no_rl_is_run(self) -> None:
        assert tiny(overrides=["stages=[sft]", "rl.algorithm={name: grp}"]).stage_names == ("sft",)

    def test_more_minibatches_than_prompts_are_refused(self) -> None:
        said = refusal(["rl.algorithm={name: grpo, num_minibatches: 4}"])
        assert "num_minibatches=4 is more than rl.prompts_per_step=3" in said

    def test_the_verifier_and_the_generator_must_exist(self) -> None:
        assert "no verifier is called 'exakt'; did you mean exact" in refusal(["data.train.0.verifier=exakt"])
        said = refusal(["data.train.0.generator={name: arithmetik}"])
        assert "no generator is called 'arithmetik'; did you mean arithmetic" in said

    @pytest.mark.parametrize(
        ("schedule", "field", "value"),
        [("every_n_steps", "every", 5), ("ema", "alpha", 0.1)],
    )
    def test_a_reference_schedule_takes_its_own_number_and_no_other(
        self, schedule: str, field: str, value: float
    ) -> None:
        good = [f"rl.reference={{schedule: {schedule}, {field}: {value}}}"]
        config = tiny(overrides=good)
        assert config.rl is not None
        assert config.rl.reference is not None
        assert getattr(config.rl.reference, field) == value
        without = refusal([f"rl.reference={{schedule: {schedule}}}"])
        assert f"reference.schedule={schedule} needs reference.{field}" in without
        for other in {"every", "alpha"} - {field} - ({"every"} if schedule == "ema" else set()):
            extra = refusal([f"rl.reference={{schedule: {schedule}, {field}: {value}, {other}: 1}}"])
            assert f"reference.schedule={schedule} has no use for reference.{other}" in extra

    def test_the_model_is_a_folder_or_made_here_and_not_both(self) -> None:
        assert "exactly one of model.path" in refusal(["model.path=somewhere"])
        assert "exactly one of model.path" in refusal(["model.create=null"])


class TestDump:
    @pytest.mark.parametrize("path", RECIPES, ids=lambda p: str(p.relative_to(CONFIGS)))
    def test_every_recipe_written_out_reads_back_the_same(self, path: Path, tmp_path: Path) -> None:
        config, written = load_recipe(path), tmp_path / "resolved.yaml"
        text = dump(config)
        written.write_text(text, encoding="utf-8")
        again = load_recipe(written)
        assert again == config
        assert dump(again) == text

    def test_holds_every_field_with_its_default(self) -> None:
        tree = yaml.safe_load(dump(tiny()))
        assert list(tree) == list(RunConfig.model_fields)
        assert tree["rl"]["ptx_batch_size"] == tiny().rl.ptx_batch_size  # type: ignore[union-attr]

    @pytest.mark.run
    @settings(max_examples=40)
    @given(rate=st.floats(1e-12, 1e3), text=st.text("αβ:#{}[]\"'\\ \n1e0~", min_size=1, max_size=12))
    def test_numbers_and_texts_survive(self, rate: float, text: str) -> None:
        config = tiny({"rl": {"optimizer": {"learning_rate": rate}}, "model": {"create": {"characters": text}}})
        assert parse(yaml.safe_load(dump(config))) == config
