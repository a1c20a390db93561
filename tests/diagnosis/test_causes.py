"""The causes that are found in the recorded runs, and in runs that are changed by hand."""

from __future__ import annotations

import json
import lzma
import runpy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.diagnose.faults import BY_NAME, HEALTHY
from benchmarks.diagnose.recorded import RECORDED, unpack
from benchmarks.diagnose.remedied import CHANGE
from benchmarks.diagnose.score import place_of
from pipeline.cli import main
from pipeline.config.load import load_recipe
from pipeline.diagnosis.finding import Finding
from pipeline.diagnosis.ranking import causes, diagnose
from pipeline.diagnosis.reading import read
from pipeline.errors import DataError, RunError
from tests.source import ROOT

PATHS = sorted(RECORDED.glob("*.tar.xz"))


def fault_of(path: Path) -> str:
    return path.name.removesuffix(".tar.xz").rpartition("-")[0]


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], tuple[Path, list[Finding]]]:
    """A function that returns the folder and the findings of a recorded run, which several tests look at."""

    @cache
    def of(path: Path) -> tuple[Path, list[Finding]]:
        run = unpack(path, tmp_path_factory.mktemp("recorded"))
        return run, diagnose(read(run))

    return of


@pytest.mark.parametrize("path", [p for p in PATHS if BY_NAME[fault_of(p)] in HEALTHY], ids=lambda p: p.name)
def test_nothing_is_found_in_a_healthy_run(path: Path, diagnosed: Any) -> None:
    assert [f for f in diagnosed(path)[1] if f.level != "note"] == []


@pytest.mark.parametrize("path", [p for p in PATHS if BY_NAME[fault_of(p)] not in HEALTHY], ids=lambda p: p.name)
def test_the_cause_of_a_planted_fault_comes_first(path: Path, diagnosed: Any) -> None:
    run, findings = diagnosed(path)
    fault = BY_NAME[fault_of(path)]
    assert place_of(fault.cause, findings) == 0, [f.cause for f in findings]
    first = findings[0]
    assert first.level in ("problem", "warning")
    assert 0 < first.confidence <= 1
    assert first.evidence
    for evidence in first.evidence:
        assert evidence.line <= len((run / evidence.file).read_bytes().splitlines())
    assert first.sentence.endswith(".")
    assert first.remedy


def test_each_proposed_change_of_a_recipe_is_accepted_by_it(diagnosed: Any, tmp_path: Path) -> None:
    """A remedy is pasted after the command, so its fields exist and its values are allowed."""
    tried = 0
    for path in PATHS:
        run, findings = diagnosed(path)
        for change in [c for f in findings for c in CHANGE.findall(f.remedy)]:
            recipe = tmp_path / "changed.yaml"
            recipe.write_text((run / "recipe.yaml").read_text())
            load_recipe(recipe, [change])
            tried += 1
    assert tried > 20


def test_every_rule_finds_a_planted_fault() -> None:
    found = {BY_NAME[fault_of(p)].cause for p in PATHS if BY_NAME[fault_of(p)] not in HEALTHY}
    assert set(causes()) <= found


def test_the_page_of_causes_is_that_of_the_docstrings() -> None:
    text = (ROOT / "docs" / "diagnose.md").read_text(encoding="utf-8")
    assert runpy.run_path(str(ROOT / "docs" / "make_causes.py"))["page"](text) == text, "make docs"
    assert f"{len(BY_NAME) - len(HEALTHY)} faults" in text


@cache
def healthy() -> bytes:
    """The recorded run, packed again by the fastest level: many tests unpack it."""
    with lzma.open(next(p for p in PATHS if p.name == "healthy-0.tar.xz")) as file:
        return lzma.compress(file.read(), preset=0)


def changed(folder: Path, change: Any, stage: str = "rl") -> list[Finding]:
    """Return the findings of the healthy run with `change(row, number)` made to each step of a stage."""
    (folder / "packed").write_bytes(healthy())
    run, number = unpack(folder / "packed", folder / "run"), 0
    lines = (run / "metrics.jsonl").read_text().splitlines()
    for i, line in enumerate(lines):
        row = json.loads(line)
        if row["kind"] == "step" and row["stage"] == stage:
            change(row["metrics"], number)
            number += 1
        lines[i] = json.dumps(row)
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return diagnose(read(run))


NEAR: dict[str, tuple[dict[str, float], dict[str, float]]] = {
    "end_token_missing": ({"truncated": 0.95}, {"truncated": 0.1}),
    "length_cap": ({"truncated": 0.3}, {"truncated": 0.1}),
    "infrastructure_zeros": ({"verdict/timeout": 0.1}, {"verdict/timeout": 0.01}),
    "too_hard": ({"groups/all_wrong": 15.0}, {"groups/all_wrong": 11.0}),
    "starvation": ({"groups/trained": 3.0}, {"groups/trained": 9.0}),
    "engine_mismatch": ({"mismatch/k1": 0.02, "mismatch/k3": 0.02}, {"mismatch/k1": 1e-5, "mismatch/k3": 1e-5}),
    "sampling_differs": ({"mismatch/k1": 0.1, "mismatch/k3": 0.02}, {"mismatch/k1": 1e-4, "mismatch/k3": 1e-4}),
    "gradients_always_clipped": ({"grad_norm": 80.0}, {"grad_norm": 8.0}),
    "policy_lag": (
        {"policy/version": 40.0, "rollout/version": 30.0},
        {"policy/version": 40.0, "rollout/version": 39.0},
    ),
    "ratios_explode": ({"ratio/p99": 3.0}, {"ratio/p99": 1.3}),
    "clip_stops_learning": ({"clip_fraction/high": 0.2}, {"clip_fraction/high": 0.02}),
    "kl_too_strong": ({"kl/coef": 2.0}, {"kl/coef": 0.05}),
    "mask_trains_prompt": (
        {"response/length_mean": 20.0, "length/mean": 15.0},
        {"response/length_mean": 15.0, "length/mean": 15.0},
    ),
    "critic_not_learning": ({"critic/explained_variance": 0.005}, {"critic/explained_variance": 0.02}),
    "mask_leaves_end": (
        {"response/length_mean": 14.0, "length/mean": 15.0},
        {"response/length_mean": 15.0, "length/mean": 15.0},
    ),
}
"""Cause -> values of all steps that show it, and values near by that do not."""


@pytest.mark.parametrize("cause", NEAR)
def test_a_number_past_its_limit_is_found_and_one_before_it_is_not(cause: str, tmp_path: Path) -> None:
    past, before = NEAR[cause]
    (tmp_path / "past").mkdir()
    (tmp_path / "before").mkdir()
    assert place_of(cause, changed(tmp_path / "past", lambda m, _: m.update(past))) is not None
    assert place_of(cause, changed(tmp_path / "before", lambda m, _: m.update(before))) is None


def test_a_mask_is_compared_with_the_responses_of_the_update_where_they_were_counted(tmp_path: Path) -> None:
    # Selected responses are longer than all: only the recorded tokens of the update can be compared with its mask.
    selected = {"groups/trained": 9.0, "response/length_mean": 20.0, "length/mean": 15.0, "responses/trained": 72.0}
    for name, tokens in (("right", 20.0), ("prompt", 15.0), ("end", 21.0)):
        (tmp_path / name).mkdir()
        findings = changed(tmp_path / name, lambda m, _, n=tokens: m.update({**selected, "responses/tokens": 72.0 * n}))
        causes_of = {f.cause for f in findings} & {"mask_trains_prompt", "mask_leaves_end"}
        assert causes_of == {"right": set(), "prompt": {"mask_trains_prompt"}, "end": {"mask_leaves_end"}}[name]


def test_demonstrations_that_train_whole_are_found(tmp_path: Path) -> None:
    for name, extra in (("right", 100.0), ("wrong", 48.0)):
        (tmp_path / name).mkdir()
        rows = changed(
            tmp_path / name, lambda m, _, n=extra: m.update({"rows": 48.0, "rows/tokens": m["tokens"] + n}), "sft"
        )
        assert [f.cause for f in rows] == ([] if name == "right" else ["mask_trains_prompt"])


def test_prompts_that_end_otherwise_than_the_demonstrations_are_found(tmp_path: Path) -> None:
    (tmp_path / "same").mkdir()
    (tmp_path / "other").mkdir()
    name = "prompt/spaces_at_end"
    assert changed(tmp_path / "same", lambda m, _: m.update({name: 0.0})) == []
    run = tmp_path / "other"
    changed(run, lambda m, _: m.update({name: 1.0}))
    lines = [json.loads(line) for line in (run / "run" / "metrics.jsonl").read_text().splitlines()]
    for row in lines:
        if row["kind"] == "step" and row["stage"] == "sft":
            row["metrics"][name] = 0.0
    (run / "run" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    assert [f.cause for f in diagnose(read(run / "run"))] == ["other_template"]


def test_a_temperature_shows_in_the_mean_log_prob_of_what_was_sampled(tmp_path: Path) -> None:
    def at(share: float, **others: float) -> Any:
        return lambda m, _: m.update({"surprise": share * m["entropy"], **others})

    cases: dict[str, tuple[Any, bool]] = {
        "right": (at(1.05), False),
        "cold": (at(0.6), True),
        "hot": (at(1.5), True),
        # Groups that were kept because somebody erred have more rare tokens, at any temperature.
        "selected": (at(1.5, **{"groups/trained": 9.0}), False),
        "old": (at(0.6, **{"mismatch/stale": 1.0}), False),
    }
    for name, (change, is_found) in cases.items():
        (tmp_path / name).mkdir()
        assert (place_of("sampling_differs", changed(tmp_path / name, change)) is not None) == is_found, name


def test_the_template_that_a_model_was_trained_with_is_compared(tmp_path: Path) -> None:
    (tmp_path / "packed").write_bytes(healthy())
    run = unpack(tmp_path / "packed", tmp_path / "run")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(line for line in lines if '"stage":"sft"' not in line))
    info = json.loads((run / "run.json").read_text())
    for own, wanted in (({"name": "plain"}, []), ({"name": "r1_zero"}, ["other_template"])):
        (run / "run.json").write_text(json.dumps({**info, "model_template": own}))
        findings = diagnose(read(run))
        assert [f.cause for f in findings] == wanted
    assert findings[0].remedy == "--set 'data.template={name: \"r1_zero\"}'"


def sampled(folder: Path, change: Any) -> list[Finding]:
    """The findings of the healthy run whose sampled responses are changed."""
    folder.mkdir()
    (folder / "packed").write_bytes(healthy())
    run = unpack(folder / "packed", folder / "run")
    rows = [json.loads(line) for line in (run / "rollouts.jsonl").read_text().splitlines()]
    for row in rows:
        if row["stage"] == "rl":
            change(row)
    (run / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return diagnose(read(run))


def test_programs_that_fail_are_graded_and_graders_that_fail_are_not(tmp_path: Path) -> None:
    for number, (reason, is_failure) in enumerate(
        (
            ("runtime_error: test 1: SyntaxError: unmatched '}'", False),
            ("timeout: test 2", False),
            ("error: no such table: fish", False),
            ("503: the service is unavailable", True),
            ("ConnectionError: refused", True),
            ("KeyError: 'answer'", True),
            ("not a number", False),
        )
    ):

        def failed(row: dict[str, Any], text: str = reason) -> None:
            if row["score"] == 0:
                row["reason"] = text

        findings = sampled(tmp_path / str(number), failed)
        assert (place_of("infrastructure_zeros", findings) is not None) == is_failure, reason


def test_clips_of_whole_responses_are_many(tmp_path: Path) -> None:
    """GSPO clips a large part of the tokens and learns."""
    for name, clipped, wanted in (("grpo", 0.2, True), ("gspo", 0.2, False), ("gspo", 0.6, True)):
        folder = tmp_path / f"{name}{clipped}"
        folder.mkdir()
        changed(folder, lambda m, _, c=clipped: m.update({"clip_fraction/low": c}))
        recipe = yaml.safe_load((folder / "run" / "recipe.yaml").read_text())
        recipe["rl"]["algorithm"] = {"name": name}
        (folder / "run" / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        assert (place_of("clip_stops_learning", diagnose(read(folder / "run"))) is not None) == wanted, name


@pytest.mark.parametrize(("share", "too_easy"), [(0.95, None), (0.5, "warning")])
def test_a_run_that_has_learned_its_task_is_not_blamed_for_it(
    share: float, too_easy: str | None, tmp_path: Path
) -> None:
    """Responses are cut at first, and groups all right at the end; `share` of held-out prompts are solved."""

    def learned(metrics: dict[str, Any], number: int) -> None:
        begins = number < 10
        metrics.update({"truncated": 0.3 if begins else 0.0, "groups/all_right": 0.0 if begins else 16.0})
        metrics.update({"reward/sampled": 0.85 if begins else 1.0, "prompts/distinct": 16.0})

    changed(tmp_path, learned)
    path = tmp_path / "run" / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[-1]["domains"]["sums"]["pass@1"]["value"] = share
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    levels = {f.cause: f.level for f in diagnose(read(tmp_path / "run"))}
    assert levels == {"length_cap": "note", "prompts_repeat": "note"} | ({"too_easy": too_easy} if too_easy else {})


def test_prompts_that_the_run_has_left_out_are_no_leak(tmp_path: Path) -> None:
    (tmp_path / "packed").write_bytes(healthy())
    run = unpack(tmp_path / "packed", tmp_path / "run")
    info = json.loads((run / "run.json").read_text())
    note = "3 of 40 evaluation prompts occur in training (0 exact, 0 normalised, 3 ngram)"
    (run / "run.json").write_text(json.dumps({**info, "data_notes": [note]}))
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    for choice, wanted in (("report", ["evaluation_leak"]), ("drop", [])):
        recipe["data"]["overlap"] = {"on_overlap": choice}
        (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        assert [f.cause for f in diagnose(read(run))] == wanted


def test_an_explained_cause_is_a_note_behind_its_reason(tmp_path: Path) -> None:
    findings = changed(tmp_path, lambda m, _: m.update({"truncated": 1.0, "groups/all_wrong": 16.0}))
    assert [(f.cause, f.level) for f in findings] == [("end_token_missing", "problem"), ("too_hard", "note")]


def test_the_command_prints_the_finding_with_its_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = next(p for p in PATHS if fault_of(p) == "rate_times_ten")
    run = unpack(path, tmp_path / "run")
    assert main(["diagnose", str(run)]) == 3
    printed = capsys.readouterr().out
    assert printed.startswith("PROBLEM  learning_rate_high  (confidence ")
    assert "metrics.jsonl:" in printed
    assert "--set rl.optimizer.learning_rate=3e-04" in printed
    assert main(["diagnose", str(run), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)[0]["cause"] == "learning_rate_high"


def test_a_run_that_has_hardly_begun_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "packed").write_bytes(healthy())
    run = unpack(tmp_path / "packed", tmp_path / "run")
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join(lines[:602]) + b'{"kind": "step", "sta')
    for name in ("rollouts.jsonl", "recipe.yaml", "run.json"):
        (run / name).unlink()
    assert main(["diagnose", str(run)]) == 0
    assert "Nothing was found" in capsys.readouterr().out


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"holds no metrics\.jsonl"):
        read(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"kind": "mystery"}\n')
    with pytest.raises(DataError, match="row 1"):
        read(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / "recipe.yaml").write_text("a: [")
    with pytest.raises(RunError, match="not YAML"):
        read(tmp_path)
