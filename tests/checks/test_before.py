"""Checks of a recipe before any training: nothing in the shipped recipes, and planted rows are found."""

import json
import os
from functools import cache
from pathlib import Path

import pytest

from tests.checks.before import CHANGE, looked, recipe, sums
from tests.data.rows import write_rows
from tests.stages.tiny import tiny
from verizero.pipeline.checks.before import parts
from verizero.pipeline.checks.before.checks import check
from verizero.pipeline.cli import main
from verizero.pipeline.config.data import validated_params
from verizero.pipeline.config.load import load_recipe, parse
from verizero.pipeline.config.recipes import RECIPES, recipe_names
from verizero.pipeline.errors import DataError
from verizero.pipeline.models.gguf_file import is_gguf
from verizero.pipeline.run.build import build_tokenizer, context_of
from verizero.pipeline.run.data import prepare_data

FOLDERS = sorted({str(Path(name).parent) for name in recipe_names()})


@cache
def distinct_recipes():
    """Return the shipped recipes by name, one of those that are equal in all that the checks read."""
    distinct = {}
    for name in recipe_names():
        config = load_recipe(RECIPES / f"{name}.yaml")
        read = (config.data, config.model, config.rollout.max_response_tokens, config.stages[0], config.sft is None)
        distinct.setdefault(repr(read), (name, config))
    return dict(distinct.values())


def shorter(config, folder):
    """Return the recipe with a fifth of the rows that its generators make where it names no other number."""
    changes = []
    for part in ("train", "evaluation"):
        for i, generator in enumerate(source.generator for source in getattr(config.data, part)):
            usual = {} if generator is None else validated_params(generator.name, {}).model_dump()
            for name in ("num_train", "num_demonstrations"):
                if name in usual and generator.params[name] == usual[name]:
                    changes.append(f"data.{part}.{i}.generator.params.{name}={usual[name] // 5}")
    return parse(config.model_dump(mode="json"), changes, base=folder)


def check_that_nothing_is_found(name):
    folder = (RECIPES / name).parent
    config = shorter(distinct_recipes()[name], folder)
    checks, findings = check(config, folder)
    here = [s.file is None or (folder / s.file).is_file() for s in (*config.data.train, *config.data.evaluation)]
    expected = set() if all(here) else {"data_refused"}  # the head of such a recipe says how to download its files
    if config.data.on_overlap == "report":  # with the reason in a comment
        expected.add("evaluation_leak")
    assert {f.cause for f in findings if f.level != "note"} == expected, name
    assert all(c.result for c in checks), name
    assert all(c.tried or str(c)[15:].startswith("not tried: ") for c in checks), name
    if config.model.create is not None:  # others need a model and rows of the hub, which no test may reach
        assert {c.name for c in checks if c.tried} >= {"data", "template", "stop token", "rates"}, name


@pytest.mark.run
@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_is_found_in_the_shipped_recipes(folder):
    for name, config in distinct_recipes().items():
        if str(Path(name).parent) == folder and not is_gguf(config.model.path):
            check_that_nothing_is_found(name)


@pytest.mark.run  # samples from a model of millions of parameters, where its package is installed
def test_nothing_is_found_in_a_shipped_recipe_of_a_pretrained_model():
    pretrained = [name for name, config in distinct_recipes().items() if is_gguf(config.model.path)]
    assert pretrained
    for name in pretrained:
        check_that_nothing_is_found(name)


def test_a_reference_that_its_verifier_refuses_is_found_with_its_line(tmp_path):
    rows = sums()
    rows[3] |= {"verifier": "numeric", "answer": "six"}
    rows[5] |= {"verifier": "choice", "answer": "C"}
    checks, findings = looked(recipe(tmp_path, rows), tmp_path)
    assert findings["wrong_references"].level == "problem"
    assert "1 of 1 references of numeric are refused" in findings["wrong_references"].sentence
    assert "the verifier fails on 1" in checks["references"].result
    assert str(findings["wrong_references"].evidence[0]).startswith("train.jsonl:4  'six'")
    assert "1 references of choice: 0 refused" in checks["references"].result


def test_a_held_out_row_is_named_by_its_own_file_also_where_a_training_row_has_its_id(tmp_path):
    held_out = [r | {"question": f"1{r['question']}"} for r in sums(80)]
    held_out[6] |= {"verifier": "numeric", "answer": "twelve"}
    _, findings = looked(recipe(tmp_path, sums(), held_out), tmp_path)
    assert [(e.file, e.line) for e in findings["wrong_references"].evidence] == [("evaluation.jsonl", 7)]


def test_two_references_of_one_prompt_are_found_unless_they_are_equal(tmp_path):
    again = [{**sums()[4], "id": "again", "answer": "9"}, {**sums()[5], "id": "equal", "answer": "20/2"}]
    _, findings = looked(recipe(tmp_path, sums() + again), tmp_path)
    finding = findings["wrong_references"]
    assert finding.sentence.startswith("1 rows of math ask what another row asks")
    assert [(e.file, e.line) for e in finding.evidence] == [("train.jsonl", 5), ("train.jsonl", 41)]


def test_a_reference_that_is_no_answer_is_not_tried(tmp_path):
    code = {"verifier": "code", "answer": {"fn": "f", "tests": [{"args": [1], "expected": 2}]}}
    checks, findings = looked(recipe(tmp_path, sums(**code), sums(120, **code)[40:]), tmp_path)
    assert "wrong_references" not in findings
    assert str(checks["references"])[15:].startswith("not tried: code: a reference of it holds no")


def of_function(folder, body, rows):
    (folder / "own.py").write_text(
        f"from verizero.verifiers.base import verifier\n\n@verifier\ndef f(attempt):\n    return {body}\n"
    )
    return recipe(folder, rows, data={"train": [{"file": "train.jsonl", "verifier": {"path": "own.py:f"}}]})


@pytest.mark.parametrize(
    ("body", "rows", "line", "told"),
    [
        ("attempt.response == attempt.reference and attempt.reference != '8'", sums(), 5, "refused"),
        ("attempt.response == 'x'", sums(), None, "0 of 40 references pass as a response, so they may be none"),
        ("isinstance(attempt.reference, dict) and False", sums(20, answer={"tests": [1]}), None, "it fails on 0"),
    ],
)
def test_a_function_of_a_file_is_judged_only_if_its_references_pass(body, rows, line, told, tmp_path):
    checks, findings = looked(of_function(tmp_path, body, rows), tmp_path)
    assert {name: f.evidence[0].line for name, f in findings.items()} == ({"wrong_references": line} if line else {})
    assert told in checks["references"].result


@pytest.mark.parametrize(
    ("body", "answer"), [("1 / 0", "8"), ('attempt.reference["value"] == attempt.response', {"tests": [1]})]
)
def test_a_verifier_that_fails_on_every_reference_is_a_finding(body, answer, tmp_path):
    _, findings = looked(of_function(tmp_path, body, sums(20, answer=answer)), tmp_path)
    finding = findings["infrastructure_zeros"]
    assert finding.level == "problem"
    assert "fails on 20 of 20 references" in finding.sentence
    assert [(e.file, e.line) for e in finding.evidence[:1]] == [("train.jsonl", 1)]
    assert "verifier_error" in finding.evidence[0].text
    assert "verify --check" in finding.remedy


def test_a_held_out_prompt_that_is_trained_on_is_found_unless_it_is_dropped(tmp_path):
    held_out = [r | {"id": f"h{r['id']}"} for r in sums(100)[39:]]
    for on_overlap, cause in (("report", "evaluation_leak"), ("error", "data_refused"), ("drop", None)):
        config = recipe(tmp_path, sums(45), held_out, data={"on_overlap": on_overlap})
        checks, findings = looked(config, tmp_path)
        assert set(findings) == ({cause} if cause else set())
        if on_overlap != "error":
            assert "of 61 evaluation prompts occur in training" in checks["data"].result


def test_what_a_run_drops_is_told(tmp_path):
    rows = [*sums(), {**sums()[0], "id": "long", "question": "1+" * 20 + "1="}]
    _, findings = looked(recipe(tmp_path, rows), tmp_path)
    assert "'long' has 42 tokens" in findings["data_refused"].sentence
    assert "data.on_long_prompt: drop" in findings["data_refused"].sentence + findings["data_refused"].remedy
    checks, findings = looked(recipe(tmp_path, rows, data={"on_long_prompt": "drop"}), tmp_path)
    assert findings == {}
    assert "dropped 1 training prompts longer than" in checks["data"].result


def test_demonstrations_that_are_longer_than_a_response_are_found(tmp_path):
    config = tiny({"rollout": {"max_response_tokens": 12}})
    _, findings = looked(config, tmp_path)
    assert findings["length_cap"].level == "problem"
    (change,) = CHANGE.findall(findings["length_cap"].remedy)
    _, findings = looked(tiny(overrides=["rollout.max_response_tokens=12", change]), tmp_path)
    assert "length_cap" not in findings


def test_the_command_prints_each_check_and_ends_with_3_for_a_problem(tmp_path, capsys):
    config = recipe(tmp_path, sums())
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(config.model_dump(mode="json")))
    assert main(["diagnose", "--before", str(path)]) == 0
    told = capsys.readouterr().out
    assert told.startswith("Nothing was found.\n\n5 of 7 checks were tried, without training:")
    assert "  references   120 references of math: 0 refused" in told
    changes = ["--set", "rollout.max_response_tokens=64"]
    assert main(["diagnose", "--before", str(path), *changes]) == 3
    assert "PROBLEM  data_refused" in capsys.readouterr().out
    assert main(["diagnose", "--before", str(path), "--json", *changes]) == 3
    output = capsys.readouterr()
    (finding,) = json.loads(output.out)
    assert finding["cause"] == "data_refused"
    assert "leaves no room for a prompt" in finding["sentence"]
    assert "  references " in output.err
    assert main(["diagnose", str(tmp_path), "--set", "seed=1"]) == 1
    assert "give it with --before" in capsys.readouterr().err


def test_a_recipe_of_the_hub_is_told_to_be_out_of_reach(capsys, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(parts, "is_hub_reached", lambda: False)
    assert main(["diagnose", "--before", "gsm8k", "--set", "model.path=nobody/has-this"]) == 0
    told = capsys.readouterr().out
    assert "template     not tried: nobody/has-this is not on this machine, and the hub is not asked" in told
    assert os.environ["HF_HUB_OFFLINE"] == "1", "its libraries would try for half a minute, for each file"


PAIR = {"prompt": "1+1=", "chosen": "2", "rejected": "3"}


def of_pairs(folder, rows, **section):
    write_rows(folder / "pairs.jsonl", rows)
    source = {"file": "pairs.jsonl", **section.pop("source", {})}
    own = {"pairs": [source], "steps": 1, "loss": {"name": "dpo"}, **section}
    return recipe(folder, sums(), stages=["preference"], rl=None, preference=own)


REFUSED = [
    (lambda folder: recipe(folder, sums(), data={"evaluation": [{"file": "gone.jsonl"}]}), None, "gone.jsonl"),
    (lambda folder: recipe(folder, [*sums(4), {"question": "1+1=", "verifier": "math"}]), 5, "no answer"),
    (lambda folder: of_pairs(folder, []), None, "no row of pairs.jsonl is left"),
    (lambda folder: of_pairs(folder, [PAIR, {"prompt": "1+1=", "chosen": "2"}]), 2, "'rejected'"),
    (lambda folder: of_pairs(folder, [{**PAIR, "chosen": "2" * 100}] * 2), None, "longer than the model's context"),
]


@pytest.mark.parametrize(("make", "line", "named"), REFUSED)
def test_data_that_a_run_refuses_are_a_finding(make, line, named, tmp_path):
    config = make(tmp_path)
    with pytest.raises(DataError):
        prepare_data(config, build_tokenizer(config), context_of(config), tmp_path, tmp_path / "run")
    checks, findings = looked(config, tmp_path)
    assert findings["data_refused"].level == "problem"
    assert named in findings["data_refused"].sentence
    assert findings["data_refused"].remedy
    assert line is None or findings["data_refused"].evidence[0].line == line
    assert named != "gone.jsonl" or checks["references"].result == "first correct what the check data found"


def test_pairs_that_can_be_trained_on_have_nothing(tmp_path):
    rows = [{"prompt": f"{i}+{i}=", "chosen": str(2 * i), "rejected": "0", "answer": str(2 * i)} for i in range(1, 30)]
    config = of_pairs(tmp_path, rows, on_wrong_chosen="drop", source={"verifier": {"name": "math"}})
    checks, findings = looked(config, tmp_path)
    assert findings == {}
    assert "29 pairs of preference.pairs" in checks["data"].result
