"""Recipes side by side: from one start, with one budget, compared to the runs' own files."""

import contextlib
import io
import json
import re

import pytest
import yaml

from tests.stages.tiny import TREE, tiny
from tests.warm import warm
from verizero.pipeline.cli import main
from verizero.pipeline.commands.compare import check_comparable, compare
from verizero.pipeline.errors import ConfigError, RunError
from verizero.pipeline.report.compare_page import RunOutcome, interpolated, summarize_runs, text_table
from verizero.pipeline.report.run_files import read_run


def recipe(folder, name, **changes):
    path = folder / f"{name}.yaml"
    tree = {**TREE, "name": name, "rl": {**TREE["rl"], "select": {"keep": "all"}, **changes}}
    path.write_text(yaml.safe_dump(tree))
    return path


def printed_by(words):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(words) == 0
    return out.getvalue()


@pytest.mark.run
def test_two_recipes_from_one_start_under_one_budget(tmp_path):
    recipes = [recipe(tmp_path, "a", algorithm={"name": "dr_grpo"}), recipe(tmp_path, "b", algorithm={"name": "remax"})]
    folder = tmp_path / "out"
    words = ["--folder", str(folder), "--set", "sft.steps=60", "--seeds", "2", "--tokens", "1500"]
    printed = warm().call(printed_by, ["compare", *map(str, recipes), *words])
    assert len(re.findall("^(?:sft|[ab]), seed [34]$", printed, re.MULTILINE)) == 2 + 4
    firsts = set()
    for name in ("a", "b"):
        for seed in (0, 1):
            run = read_run(folder / f"{name}-{seed}")
            made = [r.metrics["tokens/generated"] for r in run.rl_steps]
            # no step passes the budget, and the last is the last that is sure not to
            longest = 3 * (6 + (name == "b")) * 30
            assert made[-1] <= 1500 < made[-1] + longest
            assert all(m + longest <= 1500 for m in made[:-1])
            assert len(made) < 6
            assert run.evaluations[-1].step == len(made)
            domain = run.evaluations[0].domains["arithmetic"]
            firsts.add((seed, json.dumps(domain["by_prompt"])))
            assert run.steps[0].stage == "rl"
    assert len(firsts) == 2, "runs of one seed begin alike, whatever their recipe"
    page = (folder / "compare.html").read_text()
    assert page.count("<svg") == 3
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")
    again = []
    rows = compare(recipes, folder, overrides=["sft.steps=60"], seeds=2, max_tokens=1500, say=again.append)
    assert again == [], "no run is repeated"
    assert (folder / "compare.html").read_text() == page
    assert text_table(rows) in printed
    assert rows["a"]["against_first"] is None
    assert rows["b"]["against_first"]["low"] < rows["b"]["against_first"]["high"]
    assert "Means of 2 seeds" in page
    assert rows["a"]["before"] == rows["b"]["before"]
    assert all(row["num_runs"] == 2 for row in rows.values())
    with pytest.raises(RunError, match=r"max_tokens 1500.* 9 "):
        compare(recipes, folder, overrides=["sft.steps=60"], seeds=2, max_tokens=9, say=again.append)


def test_recipes_of_different_jobs_are_refused():
    check_comparable([tiny(), tiny(overrides=["name=b", "rl.algorithm={name: rloo}"])])
    with pytest.raises(ConfigError, match="tiny, tiny"):
        check_comparable([tiny(), tiny()])
    for override, section in (("evaluation.k=3", "evaluation"), ("rollout.temperature=0.5", "rollout")):
        with pytest.raises(ConfigError, match=f"'{section}'"):
            check_comparable([tiny(), tiny(overrides=["name=b", override])])
    mined = {"stages": ["sft", "sample", "rl"], "sample": {"samples": 4}}
    for changes, override, section in (({}, "sft.steps=9", "sft"), (mined, "sample.samples=5", "sample")):
        with pytest.raises(ConfigError, match=f"'{section}'"):
            check_comparable([tiny(changes), tiny(changes, ["name=b", override])])
    check_comparable([tiny(), tiny(overrides=["name=b", "scoring.components=[{verifier: length}]"])])
    with pytest.raises(ConfigError, match="'scoring'"):
        check_comparable([tiny(), tiny(overrides=["name=b", "scoring.no_answer=-1"])])


def test_between_evaluations_the_curve_is_straight():
    assert interpolated((0, 10), (0.0, 1.0), 2.5) == 0.25
    assert interpolated((0, 10, 20), (0.0, 1.0, 0.0), 15) == 0.5
    assert interpolated((0, 10), (0.0, 1.0), 10) == 1.0
    assert interpolated((0, 10), (0.0, 1.0), 11) is None


def of(before, after):
    at = {"steps": (0.0, 2.0), "tokens": (0.0, 300.0), "seconds": (0.0, 1.5)}
    return RunOutcome(at, (0.0, 0.0), before, after)


def test_differences_pair_prompts_within_each_seed():
    first = [of({"p": 0.0, "q": 1.0}, {"p": 0.0, "q": 1.0}), of({"p": 1.0, "q": 0.0}, {"p": 1.0, "q": 0.0})]
    better = [of(r.before, {p: v * 0.5 + 0.25 for p, v in r.after.items()}) for r in first]
    row = summarize_runs(better, first)
    assert row["against_first"]["value"] == pytest.approx(0.0)
    nearly = [of(r.before, {p: v + 0.1 + 0.001 * s for p, v in r.after.items()}) for s, r in enumerate(first)]
    row = summarize_runs(nearly, first)
    # pairs differ by nearly the same: pairing leaves little spread, unpaired seeds and prompts would leave much
    assert row["against_first"] == pytest.approx(
        {"value": 0.1005, "low": 0.1005 - 0.00635, "high": 0.1005 + 0.00635}, abs=1e-5
    )
    line = text_table({"x": row}).splitlines()[2]
    assert line.startswith("| x | 0.500 | 0.601 | +0.101 [+0.094, +0.107] |")


def test_seeds_that_differ_are_seen_and_one_seed_speaks_of_prompts_alone():
    prompts = {str(i): 0.5 for i in range(320)}
    first = [of(prompts, prompts), of(prompts, prompts)]
    moved = [of(prompts, {p: v + by for p, v in prompts.items()}) for by in (0.1, -0.1)]
    row = summarize_runs(moved, first)
    assert row["against_first"] == {"value": pytest.approx(0.0), "low": -1.0, "high": 1.0}
    assert "Student's t over seeds" in text_table({"x": row})
    assert "prompts alone" not in text_table({"x": row})
    alone = summarize_runs(moved[:1], first[:1])
    assert 0 < alone["gain"]["low"] < 0.1 < alone["gain"]["high"]
    assert "they speak of prompts alone" in text_table({"x": alone})
    assert "1 to 2 seeds" in text_table({"x": row, "y": alone})
    assert summarize_runs(first, first)["against_first"] is None
