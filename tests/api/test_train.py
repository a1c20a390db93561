"""`verizero.train`: the program of the README, the same by the command, and what it refuses."""

import json
import re
from functools import lru_cache, partial
from pathlib import Path
from runpy import run_path

import pytest
import yaml

import verizero as vz
from tests.api.tiny import SMALL, weights
from tests.source import ROOT
from verizero.pipeline.api.given import verifier_of
from verizero.pipeline.cli import main
from verizero.pipeline.config.rates import learning_rate
from verizero.pipeline.types import Attempt
from verizero.verifiers.base import load

README = (ROOT / "README.md").read_text(encoding="utf-8")


def reward(completion, answer):
    return 2.0 * (len(completion) > 4) + float(answer in completion)


@pytest.mark.run
def test_the_program_of_the_readme_on_rows_is_its_command_on_a_file(folder, monkeypatch, capsys):
    (program,) = re.findall(r"^```python\n(import verizero as vz\n.*?)^```$", README, re.MULTILINE | re.DOTALL)
    (command,) = re.findall(r"`verizero (train [^`]*--reward[^`]*r\.py:reward)`", README)
    model = command.split()[1]
    (folder / model).parent.mkdir()
    (folder / "tiny").rename(folder / model)
    rows = [{"question": f"The letter {letter}?", "answer": letter} for letter in "abcdefghijklmnopqrstuvwxyz"]
    (folder / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "r.py").write_text("def reward" + program.partition("def reward")[2].partition("\n\n")[0] + "\n")
    # The text as it is, but for the rows, and fewer steps.
    (folder / "program.py").write_text(program.replace('"qa.jsonl"', "rows"))
    with monkeypatch.context() as fewer:
        fewer.setattr(vz, "train", partial(vz.train, name="mine", steps=3, quiet=True, **SMALL), raising=False)
        run = run_path("program.py", {"rows": rows}, "__main__")["run"]
    words = [word for field, value in SMALL.items() for word in ("--set", f"{field}={value}")]
    assert main([*command.split(), "--name", "theirs", "--steps", "3", "--no-prefect", *words]) in (0, None)
    assert weights(vz.TrainedRun("runs/theirs")) == weights(run)
    assert weights(run) != (folder / model / "model.safetensors").read_bytes()
    # From another folder, the run alone is asked again.
    theirs = (folder / "runs" / "theirs").resolve()
    (folder / "elsewhere").mkdir()
    capsys.readouterr()
    with monkeypatch.context() as elsewhere:
        elsewhere.chdir(folder / "elsewhere")
        assert main(["eval", str(theirs), "--json"]) in (0, None)
        assert isinstance(vz.TrainedRun(theirs).chat("The letter z?"), str)
    measured = json.loads(capsys.readouterr().out)["default"]["pass@1"]["value"]
    again = vz.evaluate(theirs, quiet=True)
    assert again["default"]["pass@1"]["value"] == measured
    assert re.fullmatch(rf"default +pass@1 {measured:.3f} \(\d\.\d{{3}} to \d\.\d{{3}}\)  greedy .*", repr(again))
    assert measured == vz.TrainedRun(theirs).results["default"]["after"]["pass@1"]
    sampled = run.samples(stage="rl")
    assert all(float(r["prompt"][-2] in r["response"]) == r["reward"] for r in sampled)
    assert {r["reward"] for r in sampled} == {0.0, 1.0}
    assert [r["reward"] for r in run.samples(wrong=True, stage="rl")] == [0.0] * sum(not r["reward"] for r in sampled)
    before, after = (run.results["default"][side]["pass@1"] for side in ("before", "after"))
    assert f"pass@1 {before:.3f} -> {after:.3f}" in repr(run)
    assert len(run.metrics) == 3
    assert "<iframe" in run.report._repr_html_()
    assert isinstance(run.chat("The letter z?"), str)
    causes = run.diagnose()
    assert [f.cause for f in causes] == [f.cause for f in vz.TrainedRun(run.folder).diagnose()]
    assert "causes were looked for in 3 RL steps" in repr(causes)
    # The recipe that was written is a recipe like any other.
    again = vz.train(run.folder / "given" / "recipe.yaml", name="again", quiet=True)
    assert weights(again) == weights(run)


def test_a_function_of_a_script_keeps_its_place_and_its_caches(folder):
    names = {"__name__": "__main__", "lru_cache": lru_cache}
    source = "@lru_cache(9)\ndef helper(n):\n  return n and helper(n - 1)\n@lru_cache\ndef r(completion):\n" \
             "  if helper(3):\n    pass\n  return [][0]\n"  # fmt: skip
    exec(compile(source, "script.py", "exec"), names)
    choice = verifier_of(names["r"], folder, None, None)
    verdict = load(path=choice["path"], base=folder).bind().score([Attempt("", None)])[0]
    assert verdict.reason == "IndexError: list index out of range, at script.py:8"


@pytest.mark.run
def test_answers_that_are_numbers_need_no_reward(folder):
    run = vz.train("tiny", "qa.jsonl", name="math", steps=1, quiet=True, **SMALL)
    assert {r["status"] for r in run.samples()} <= {"graded", "no_answer"}
    assert "pass@1" in run.results["default"]["before"]


def test_defaults_by_the_model(folder):
    from verizero.pipeline.api.recipe import Wish, write_recipe

    Path("r.py").write_text("def reward(completion):\n    return 1.0\n")
    path, lines = write_recipe(Wish("tiny", "qa.jsonl", "r.py:reward", fields={"rl.group_size": 4}))
    tree = yaml.safe_load(path.read_text())
    assert path.parent == Path("runs/tiny-qa/given")
    assert tree["rl"]["optimizer"]["learning_rate"] == learning_rate("rewards", 5000)
    assert tree["rl"]["group_size"] == 4
    assert lines[0] == "qa.jsonl: question is 'question', answer 'answer'"
    path, _ = write_recipe(Wish("tiny", "qa.jsonl", "r.py:reward", fields={"train.lora.rank": 4}))
    assert yaml.safe_load(path.read_text())["rl"]["optimizer"]["learning_rate"] == learning_rate(
        "rewards", 5000, is_lora=True
    )
    assert learning_rate("rewards", 494_000_000) == 1e-6
    assert learning_rate("rewards", 494_000_000, is_lora=True) == 1e-5
