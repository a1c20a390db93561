"""Checks of a recipe before any training: nothing in the shipped recipes, and planted rows are found."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from benchmarks.diagnose.remedied import CHANGE
from tests.diagnosis.before import looked, recipe, sums
from tests.stages.tiny import TREE, tiny
from verizero.pipeline.cli import main
from verizero.pipeline.commands.preflight.checks import check
from verizero.pipeline.config.data import validated_params
from verizero.pipeline.config.load import load_recipe, parse
from verizero.pipeline.config.recipes import RECIPES, recipe_names
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.models.gguf_file import is_gguf

FOLDERS = sorted({str(Path(name).parent) for name in recipe_names()})


@cache
def distinct_recipes() -> dict[str, RunConfig]:
    """Return the shipped recipes by name, one of those that are equal in all that the checks read."""
    distinct: dict[str, tuple[str, RunConfig]] = {}
    for name in recipe_names():
        config = load_recipe(RECIPES / f"{name}.yaml")
        read = (config.data, config.model, config.rollout.max_response_tokens, config.stages[0], config.sft is None)
        distinct.setdefault(repr(read), (name, config))
    return dict(distinct.values())


def shorter(config: RunConfig, folder: Path) -> RunConfig:
    """Return the recipe with a quarter of the rows that its generators make where it names no other number."""
    changes = []
    for part in ("train", "evaluation"):
        for i, generator in enumerate(source.generator for source in getattr(config.data, part)):
            usual = {} if generator is None else validated_params(generator.name, {}).model_dump()
            for name in ("num_train", "num_demonstrations"):
                if name in usual and generator.params[name] == usual[name]:
                    changes.append(f"data.{part}.{i}.generator.params.{name}={usual[name] // 4}")
    return parse(config.model_dump(mode="json"), changes, base=folder)


def check_that_nothing_is_found(name: str) -> None:
    folder = (RECIPES / name).parent
    config = shorter(distinct_recipes()[name], folder)
    checks, findings = check(config, folder)
    here = [s.file is None or (folder / s.file).is_file() for s in (*config.data.train, *config.data.evaluation)]
    expected = set() if all(here) else {"data_refused"}  # the head of such a recipe says how to download its files
    assert {f.cause for f in findings if f.level != "note"} == expected, name
    assert all(c.result for c in checks), name
    assert all(c.tried or str(c)[15:].startswith("not tried: ") for c in checks), name
    if config.model.create is not None:  # others need a model and rows of the hub, which no test may reach
        assert {c.name for c in checks if c.tried} >= {"template", "stop token", "rows", "room"}, name


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_nothing_is_found_in_the_shipped_recipes(folder: str) -> None:
    for name, config in distinct_recipes().items():
        if str(Path(name).parent) == folder and not is_gguf(config.model.path):
            check_that_nothing_is_found(name)


@pytest.mark.integration  # samples from a model of millions of parameters, where its package is installed
def test_nothing_is_found_in_a_shipped_recipe_of_a_pretrained_model() -> None:
    pretrained = [name for name, config in distinct_recipes().items() if is_gguf(config.model.path)]
    assert pretrained
    for name in pretrained:
        check_that_nothing_is_found(name)


def test_a_healthy_recipe_of_files_has_nothing(tmp_path: Path) -> None:
    checks, findings = looked(recipe(tmp_path, sums()), tmp_path)
    assert findings == {}
    assert "120 references of math: 0 refused" in checks["references"].result


def test_a_reference_that_its_verifier_refuses_is_found_with_its_line(tmp_path: Path) -> None:
    rows = sums()
    rows[3] |= {"verifier": "numeric", "answer": "six"}
    rows[5] |= {"verifier": "choice", "answer": "C"}
    checks, findings = looked(recipe(tmp_path, rows), tmp_path)
    assert findings["wrong_references"].level == "problem"
    assert "the verifier fails on 1" in findings["wrong_references"].sentence
    assert str(findings["wrong_references"].evidence[0]).startswith("train.jsonl:4  'six'")
    assert "1 references of choice: 0 refused" in checks["references"].result


def test_a_held_out_row_is_named_by_its_own_file_also_where_a_training_row_has_its_id(tmp_path: Path) -> None:
    held_out = [r | {"question": f"1{r['question']}"} for r in sums(80)]
    held_out[6] |= {"verifier": "numeric", "answer": "twelve"}
    _, findings = looked(recipe(tmp_path, sums(), held_out), tmp_path)
    assert [(e.file, e.line) for e in findings["wrong_references"].evidence] == [("evaluation.jsonl", 7)]
    held_out = [r | {"question": f"1{r['question']}"} for r in sums(80)]
    held_out[6] |= {"question": sums()[9]["question"], "answer": "18"}
    _, findings = looked(recipe(tmp_path, sums(), held_out), tmp_path)
    assert [str(e) for e in findings["evaluation_leak"].evidence] == [
        "evaluation.jsonl:7  held out: '9+9='",
        "train.jsonl:10  trained on (exact): '9+9='",
    ]


def test_two_references_of_one_prompt_are_found_unless_they_are_equal(tmp_path: Path) -> None:
    again = [{**sums()[4], "id": "again", "answer": "9"}, {**sums()[5], "id": "equal", "answer": "20/2"}]
    _, findings = looked(recipe(tmp_path, sums() + again), tmp_path)
    finding = findings["wrong_references"]
    assert finding.sentence.startswith("1 rows of math ask what another row asks")
    assert [(e.file, e.line) for e in finding.evidence] == [("train.jsonl", 5), ("train.jsonl", 41)]


def test_a_reference_that_is_no_answer_is_not_tried(tmp_path: Path) -> None:
    code = {"verifier": "code", "answer": {"fn": "f", "tests": [{"args": [1], "expected": 2}]}}
    checks, findings = looked(recipe(tmp_path, sums(**code), sums(120, **code)[40:]), tmp_path)
    assert "wrong_references" not in findings
    assert str(checks["references"])[15:].startswith("not tried: code: a reference of it holds no")


def test_a_function_of_a_file_is_judged_only_if_its_references_pass(tmp_path: Path) -> None:
    source = (
        "from verizero.verifiers.base import verifier\n\n@verifier\ndef f(attempt):\n    return attempt.response {}\n"
    )
    for name, body in (("equal", "== attempt.reference and attempt.reference != '8'"), ("other", "== 'x'")):
        (tmp_path / f"{name}.py").write_text(source.format(body))
        config = recipe(
            tmp_path, sums(), data={"train": [{"file": "train.jsonl", "verifier": {"path": f"{name}.py:f"}}]}
        )
        checks, findings = looked(config, tmp_path)
        assert ("wrong_references" in findings) == (name == "equal")
        if name == "equal":
            assert findings["wrong_references"].evidence[0].line == 5
        assert ("0 of 40 references pass" in checks["references"].result) == (name == "other")


def test_a_held_out_prompt_that_is_trained_on_is_found_with_both_lines(tmp_path: Path) -> None:
    held_out = [r | {"id": f"h{r['id']}"} for r in sums(100)[39:]]
    for on_overlap in ("report", "error", "drop"):
        config = recipe(tmp_path, sums(45), held_out, data={"overlap": {"on_overlap": on_overlap}})
        _, findings = looked(config, tmp_path)
        assert ("evaluation_leak" in findings) == (on_overlap != "drop")
        if on_overlap != "drop":
            shown = findings["evaluation_leak"].evidence
            assert [(e.file, e.line) for e in shown][:2] == [("evaluation.jsonl", 1), ("train.jsonl", 40)]
            assert CHANGE.findall(findings["evaluation_leak"].remedy) == ["data.overlap.on_overlap=drop"]


@pytest.mark.parametrize("on_overlap", ["report", "error"])
def test_a_single_copy_is_found_where_the_run_refuses_it(on_overlap: str, tmp_path: Path) -> None:
    held_out = [r | {"id": f"h{r['id']}"} for r in sums(140)[39:]]
    _, findings = looked(recipe(tmp_path, sums(), held_out, data={"overlap": {"on_overlap": on_overlap}}), tmp_path)
    assert ("evaluation_leak" in findings) == (on_overlap == "error")


@pytest.mark.parametrize(("num", "level"), [(80, None), (40, "note"), (12, "warning")])
def test_an_evaluation_of_few_prompts_is_found(num: int, level: str | None, tmp_path: Path) -> None:
    held_out = [r | {"question": f"1{r['question']}", "answer": str(10)} for r in sums(num)]
    _, findings = looked(recipe(tmp_path, [r | {"question": f"2{r['question']}"} for r in sums()], held_out), tmp_path)
    assert (findings["evaluation_too_small"].level if level else None) == level
    assert level is not None or "evaluation_too_small" not in findings


def test_rows_that_copy_each_other_are_found(tmp_path: Path) -> None:
    copies = [{**sums()[7], "id": f"copy{i}"} for i in range(60)]
    _, findings = looked(recipe(tmp_path, sums() + copies), tmp_path)
    assert findings["prompts_repeat"].level == "warning"
    assert (
        "100 training rows hold 40 different prompts, and one of them 61 times" in findings["prompts_repeat"].sentence
    )


def test_prompts_without_room_are_found(tmp_path: Path) -> None:
    rows = [*sums(), {**sums()[0], "id": "long", "question": "1+" * 20 + "1="}]
    _, findings = looked(recipe(tmp_path, rows), tmp_path)
    assert findings["no_room"].level == "problem"
    assert findings["no_room"].evidence[0].line == 41
    assert CHANGE.findall(findings["no_room"].remedy) == ["data.on_long_prompt=drop"]
    _, findings = looked(recipe(tmp_path, rows, data={"on_long_prompt": "drop"}), tmp_path)
    assert findings["no_room"].level == "note"
    _, findings = looked(
        recipe(tmp_path, rows, data={"max_prompt_tokens": 20}, rollout={"max_response_tokens": 20}), tmp_path
    )
    assert CHANGE.findall(findings["no_room"].remedy) == ["data.max_prompt_tokens=42"]


def test_responses_that_leave_no_room_at_all_are_found(tmp_path: Path) -> None:
    _, findings = looked(recipe(tmp_path, sums(), rollout={"max_response_tokens": 64}), tmp_path)
    assert findings["no_room"].level == "problem"
    assert CHANGE.findall(findings["no_room"].remedy) == ["rollout.max_response_tokens=32"]


def test_demonstrations_that_are_longer_than_a_response_are_found(tmp_path: Path) -> None:
    config = tiny({"rollout": {"max_response_tokens": 12}})
    _, findings = looked(config, tmp_path)
    assert findings["length_cap"].level == "problem"
    (change,) = CHANGE.findall(findings["length_cap"].remedy)
    _, findings = looked(tiny(overrides=["rollout.max_response_tokens=12", change]), tmp_path)
    assert "length_cap" not in findings


def test_the_command_prints_each_check_and_ends_with_3_for_a_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = recipe(tmp_path, sums())
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(config.model_dump(mode="json")))
    assert main(["diagnose", "--before", str(path)]) == 0
    told = capsys.readouterr().out
    assert told.startswith("Nothing was found.\n\n7 of 10 checks were tried, without training:")
    assert "  references   120 references of math: 0 refused" in told
    assert main(["diagnose", "--before", str(path), "--set", "rollout.max_response_tokens=64"]) == 3
    assert "PROBLEM  no_room" in capsys.readouterr().out
    assert main(["diagnose", "--before", str(path), "--json", "--set", "rollout.max_response_tokens=64"]) == 3
    output = capsys.readouterr()
    assert [f["cause"] for f in json.loads(output.out)] == ["no_room"]
    assert "  references " in output.err
    assert main(["diagnose", str(tmp_path), "--set", "seed=1"]) == 1
    assert "give it with --before" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [0, 20, 40])
def test_demonstrations_that_are_wrong_by_their_own_rows_are_found(wrong: int, tmp_path: Path) -> None:
    rows = [r | {"demonstration": f"\\boxed{{{int(r['answer']) + (i < wrong)}}}"} for i, r in enumerate(sums())]
    checks, findings = looked(recipe(tmp_path, rows, stages=["sft", "rl"], sft=TREE["sft"]), tmp_path)
    assert checks["demonstrated"].result == f"{40 - wrong} of 40 demonstrations of math are right"
    assert ("wrong_references" in findings) == (wrong == 40)
    if wrong == 40:
        assert findings["wrong_references"].evidence[0].line == 1
        assert "40 of 40 demonstrations" in findings["wrong_references"].sentence


def test_a_recipe_of_the_hub_is_told_to_be_out_of_reach(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--before", "gsm8k", "--set", "model.path=nobody/has-this"]) == 0
    told = capsys.readouterr().out
    assert "template     not tried: nobody/has-this is not on this machine, and the hub is not asked" in told
