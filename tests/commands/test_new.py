"""The files that `verizero new` copies work under any name; their own tests are in examples/."""

from typing import Literal

import pytest

from verizero.pipeline.cli import main
from verizero.pipeline.commands.new import EXAMPLES, NAMES, new_part
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.data.prompts import load_prompts, read_demonstrations
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.scoring.score import bind_verifiers
from verizero.pipeline.types import Attempt

Kind = Literal["verifier", "environment"]


@pytest.mark.parametrize("kind", NAMES)
def test_each_file_has_the_new_name_alone(kind, tmp_path, capsys):
    assert main(["new", kind, "mine", "--folder", str(tmp_path)]) == 0
    examples = [p for p in (EXAMPLES / kind).iterdir() if p.is_file()]
    assert capsys.readouterr().out.count("wrote ") == len(examples)
    for example in examples:
        text = (tmp_path / example.name.replace(NAMES[kind], "mine")).read_text()
        assert text == example.read_text().replace(NAMES[kind], "mine")


def written_of(config, base):
    shown = read_demonstrations(config.data.demonstrations, config.data.train, config.seed, base).prompts
    texts = [p.asked for p in shown]
    for p in shown:
        said = p.demonstration or ""
        texts.append(said if isinstance(said, str) else "\n" + "".join(m.content for m in said))
    return set("".join(texts))


def test_the_recipes_of_a_verifier_load_and_grade_its_data(tmp_path):
    new_part("verifier", "mine", tmp_path)
    for recipe, begin in (("mine", ""), ("mine_pretrained", "Sort the letters of ")):
        config = load_recipe(tmp_path / f"{recipe}.yaml")
        train = load_prompts(config.data.train, config.seed, tmp_path)
        held_out = load_prompts(config.data.evaluation, config.seed, tmp_path)
        assert (len(train), len(held_out)) == (300, 60)
        assert all(p.asked.startswith(begin) for p in train)
        assert not {p.question for p in train} & {p.question for p in held_out}
        bound = bind_verifiers([*train, *held_out], config.data.verifiers, tmp_path)
        shown = read_demonstrations(config.data.demonstrations, config.data.train, config.seed, tmp_path).prompts
        scores = [bound[p.verifier].score([Attempt(p.demonstration or "", p.reference)])[0].score for p in shown]
        assert 0.6 < sum(scores) / len(scores) < 0.8, "something is left to learn"
        gold = [bound[p.verifier].score([Attempt("".join(sorted(p.reference)), p.reference)])[0] for p in held_out]
        assert all(v.is_correct for v in gold)
        if config.model.create is not None:
            assert written_of(config, tmp_path) == set(config.model.create.characters)


def test_the_recipe_of_an_environment_loads_with_its_games(tmp_path):
    new_part("environment", "mine", tmp_path)
    config = load_recipe(tmp_path / "mine.yaml")
    assert written_of(config, tmp_path) == set(config.model.create.characters)
    assert {p.environment for p in load_prompts(config.data.evaluation, 0, tmp_path)} == set(config.data.environments)


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("name", ["my-domain", "class", "2nd", "_hidden", "", "installed"])
def test_a_name_that_cannot_be_one_is_refused(kind, name, tmp_path):
    taken = {"verifier": "numeric", "environment": "guess"}[kind]
    with pytest.raises(ConfigError, match=kind):
        new_part(kind, taken if name == "installed" else name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", NAMES)
def test_nothing_is_overwritten(kind, tmp_path):
    (tmp_path / "mine.yaml").write_text("precious")
    with pytest.raises(ConfigError, match=r"mine.yaml is already there"):
        new_part(kind, "mine", tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.yaml"]
    assert (tmp_path / "mine.yaml").read_text() == "precious"
