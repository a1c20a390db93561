"""The causes that are found in the recorded runs, and in runs that are changed by hand."""

import copy
import functools
import json
import runpy
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from pydantic import ValidationError

from tests.checks.before import CHANGE
from tests.checks.recorded import OF_TRL, OWN, cause_of, place_of, unpack
from tests.source import ROOT
from verizero.pipeline.checks.cause import CAUSES
from verizero.pipeline.checks.diagnosis import diagnose
from verizero.pipeline.checks.page import cards_of
from verizero.pipeline.checks.run_facts import by_group, read
from verizero.pipeline.cli import main
from verizero.pipeline.config.load import parse
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.host.disk import read_jsonl
from verizero.pipeline.report.page import build_page

PATHS = sorted(OWN.glob("*.tar.xz"))
HEALTHY_RUN = OWN / "healthy-0.tar.xz"


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory):
    """A function that returns the folder and the findings of a recorded run, which several tests look at."""

    @cache
    def of(path):
        run = unpack(path, tmp_path_factory.mktemp("recorded"))
        return run, diagnose(read(run))

    return of


@pytest.mark.parametrize("path", [p for p in PATHS if cause_of(p) == "none"], ids=lambda p: p.name)
def test_nothing_is_found_in_a_healthy_run(path, diagnosed):
    assert [f for f in diagnosed(path)[1] if f.level != "note"] == []


@pytest.mark.parametrize("path", [p for p in PATHS if cause_of(p) != "none"], ids=lambda p: p.name)
def test_the_cause_of_a_planted_fault_comes_first(path, diagnosed):
    run, findings = diagnosed(path)
    assert place_of(cause_of(path), findings) == 0, [f.cause for f in findings]
    first = findings[0]
    assert first.level in ("problem", "warning")
    assert 0 < first.confidence <= 1
    assert first.evidence
    for evidence in first.evidence:
        assert evidence.line <= len((run / evidence.file).read_bytes().splitlines())
    assert first.sentence.endswith(".")
    assert first.remedy


def of_today(tree):
    """The recipe of a recorded run without the fields that are gone since."""
    try:
        RunConfig.model_validate(tree)
    except ValidationError as exc:
        for error in exc.errors():
            *path, name = error["loc"]
            section = functools.reduce(lambda own, key: own[key], path, tree)
            section.pop(name)
    return tree


@pytest.mark.run
def test_each_proposed_change_of_a_recipe_is_accepted_by_it(diagnosed):
    """A remedy is pasted after the command, so its fields exist and its values are allowed."""
    tried = 0
    for path in PATHS:
        run, findings = diagnosed(path)
        tree = of_today(yaml.safe_load((run / "recipe.yaml").read_text()))
        for change in [c for f in findings for c in CHANGE.findall(f.remedy)]:
            parse(tree, [change])
            tried += 1
    assert tried > 20


def test_every_rule_finds_a_planted_fault():
    planted = {*map(cause_of, PATHS), *map(cause_of, OF_TRL.glob("*.tar.xz"))}
    assert set(CAUSES) - planted <= {"not_finite", "gradient_zero"}


def test_the_page_of_causes_is_that_of_the_docstrings():
    text = (ROOT / "docs" / "diagnose.md").read_text(encoding="utf-8")
    assert runpy.run_path(str(ROOT / "docs" / "make_causes.py"))["page"](text) == text, "make docs"


@cache
def healthy():
    """The healthy run that was recorded. Tests change copies of it in memory, which is faster than in files."""
    with TemporaryDirectory() as folder:
        return read(unpack(HEALTHY_RUN, Path(folder)))


def with_steps(change, stage="rl", of=None):
    """The run, by default the healthy one, after `change(metrics, number)` of each step of a stage."""
    run = healthy() if of is None else of
    steps = []
    for number, (line, row) in enumerate(run.imitation if stage == "sft" else run.steps):
        metrics = dict(row.metrics)
        change(metrics, number)
        steps.append((line, replace(row, metrics=metrics)))
    return replace(run, imitation=tuple(steps)) if stage == "sft" else replace(run, steps=tuple(steps))


def with_rows(run, change):
    """The run with `change(row)` in the row of each sample."""
    return replace(run, samples=tuple(replace(s, row=replace(s.row, **change(s.row))) for s in run.samples))


def with_pass_at_1(evaluation, **numbers):
    domains = copy.deepcopy(dict(evaluation.row.domains))
    domains["sums"]["pass@1"].update(numbers)
    return replace(evaluation, row=replace(evaluation.row, domains=domains))


def changed(change):
    return diagnose(with_steps(change))


NEAR = {
    "end_token_missing": ({"truncated": 0.95}, {"truncated": 0.1}),
    "length_cap": ({"truncated": 0.3}, {"truncated": 0.1}),
    "infrastructure_zeros": ({"verdict/timeout": 0.1}, {"verdict/timeout": 0.01}),
    "too_hard": ({"groups/all_wrong": 15.0}, {"groups/all_wrong": 11.0}),
    "starvation": ({"groups/trained": 3.0}, {"groups/trained": 9.0}),
    "engine_mismatch": ({"mismatch/k1": 0.02, "mismatch/k3": 0.02}, {"mismatch/k1": 1e-5, "mismatch/k3": 1e-5}),
    "sampling_differs": ({"mismatch/k1": 0.1, "mismatch/k3": 0.02}, {"mismatch/k1": 1e-4, "mismatch/k3": 1e-4}),
    "policy_lag": (
        {"policy/version": 40.0, "rollout/version": 30.0},
        {"policy/version": 40.0, "rollout/version": 39.0},
    ),
    "ratios_explode": ({"ratio/p99": 3.0}, {"ratio/p99": 1.3}),
    "clip_stops_learning": ({"clip_fraction/high": 0.2}, {"clip_fraction/high": 0.02}),
    "kl_too_strong": ({"kl/coef": 2.0}, {"kl/coef": 0.05}),
    "not_finite": ({"not_finite": 1.0}, {}),
    "gradient_zero": ({"grad_norm": 0.0}, {"grad_norm": 1e-3}),
    "advantages_vanish": ({"groups/without_signal": 1.0}, {"groups/without_signal": 0.8}),
    "critic_not_learning": ({"critic/explained_variance": 0.005}, {"critic/explained_variance": 0.02}),
}
"""Cause -> values of all steps that show it, and values near by that do not."""


@pytest.mark.parametrize("cause", NEAR)
def test_a_number_past_its_limit_is_found_and_one_before_it_is_not(cause):
    past, before = NEAR[cause]
    assert place_of(cause, changed(lambda m, _: m.update(past))) is not None
    assert place_of(cause, changed(lambda m, _: m.update(before))) is None


def test_entropy_that_falls_in_a_run_that_has_learned_is_no_collapse():
    run = with_steps(lambda m, number: m.update({"entropy": 1.0 if number < 15 else 0.1, "reward/sampled": 0.5}))
    assert place_of("entropy_collapse", diagnose(run)) is None
    assert place_of("entropy_collapse", diagnose(replace(run, evaluations=()))) is not None


@pytest.mark.parametrize(("share", "level"), [(0.2, "warning"), (0.3, "problem")])
def test_a_limit_that_cuts_more_is_a_problem(share, level):
    (found,) = [f for f in changed(lambda m, _: m.update({"truncated": share})) if f.cause == "length_cap"]
    assert found.level == level


def test_prompts_that_end_otherwise_than_the_demonstrations_are_found():
    name = "prompt/spaces_at_end"
    assert changed(lambda m, _: m.update({name: 0.0})) == []
    spaces = with_steps(lambda m, _: m.update({name: 1.0}))
    findings = diagnose(with_steps(lambda m, _: m.update({name: 0.0}), "sft", spaces))
    assert [f.cause for f in findings] == ["other_template"]


def test_a_temperature_shows_in_the_mean_log_prob_of_what_was_sampled():
    def at(share, **others):
        return lambda m, _: m.update({"surprise": share * m["entropy"], **others})

    cases = {
        "right": (at(1.05), False),
        "cold": (at(0.6), True),
        "hot": (at(1.5), True),
        # Groups that were kept because somebody erred have more rare tokens, at any temperature.
        "selected": (at(1.5, **{"groups/trained": 9.0}), False),
        "old": (at(0.6, **{"mismatch/stale": 1.0}), False),
    }
    for name, (change, is_found) in cases.items():
        assert (place_of("sampling_differs", changed(change)) is not None) == is_found, name


def test_the_template_that_a_model_was_trained_with_is_compared():
    untaught = replace(
        healthy(), imitation=(), evaluations=tuple(e for e in healthy().evaluations if e.row.stage != "sft")
    )
    for own, wanted in (({"name": "plain"}, []), ({"name": "r1_zero"}, ["other_template"])):
        findings = diagnose(replace(untaught, info={**untaught.info, "model_template": own}))
        assert [f.cause for f in findings] == wanted
    assert findings[0].remedy == "--set 'data.template={name: \"r1_zero\"}'"


def test_clips_of_whole_responses_are_many():
    """GSPO clips a large part of the tokens and learns."""
    for name, clipped, wanted in (("grpo", 0.2, True), ("gspo", 0.2, False), ("gspo", 0.6, True)):
        run = with_steps(lambda m, _, c=clipped: m.update({"clip_fraction/low": c}))
        recipe = {**run.recipe, "rl": {**run.recipe["rl"], "algorithm": {"name": name}}}
        assert (place_of("clip_stops_learning", diagnose(replace(run, recipe=recipe))) is not None) == wanted, name


@pytest.mark.parametrize(("share", "too_easy"), [(0.95, None), (0.5, "warning")])
def test_a_run_that_has_learned_its_task_is_not_blamed_for_it(share, too_easy):
    """Responses are cut at first, and groups all right at the end; `share` of held-out prompts are solved."""

    def learned(metrics, number):
        begins = number < 10
        metrics.update({"truncated": 0.3 if begins else 0.0, "groups/all_right": 0.0 if begins else 16.0})
        share_right = 0.85 if begins else 1.0
        metrics.update({"reward/sampled": share_right, "correct/sampled": share_right, "prompts/distinct": 16.0})
        metrics["correct/mean/sums"] = share_right

    run = with_steps(learned)
    run = replace(run, evaluations=(*run.evaluations[:-1], with_pass_at_1(run.evaluations[-1], value=share)))
    levels = {f.cause: f.level for f in diagnose(run)}
    assert levels == {"length_cap": "note", "prompts_repeat": "note"} | ({"too_easy": too_easy} if too_easy else {})


def test_prompts_that_the_run_has_left_out_are_no_leak():
    note = "3 of 40 evaluation prompts occur in training (0 exact, 0 normalised, 3 ngram)"
    run = replace(healthy(), info={**healthy().info, "data_notes": [note]})
    for choice, wanted in (("report", ["evaluation_leak"]), ("drop", [])):
        data = {**run.recipe["data"], "on_overlap": choice}
        assert [f.cause for f in diagnose(replace(run, recipe={**run.recipe, "data": data}))] == wanted


def test_an_explained_cause_is_a_note_behind_its_reason():
    findings = changed(lambda m, _: m.update({"truncated": 1.0, "groups/all_wrong": 16.0}))
    assert [(f.cause, f.level) for f in findings] == [("end_token_missing", "problem"), ("too_hard", "note")]


def test_the_command_prints_the_finding_with_its_lines(tmp_path, capsys):
    path = OWN / "rate_times_ten-0.tar.xz"
    run = unpack(path, tmp_path / "run")
    assert main(["diagnose", str(run)]) == 3
    printed = capsys.readouterr().out
    assert printed.startswith("PROBLEM  learning_rate_high  (confidence ")
    assert "metrics.jsonl:" in printed
    assert "--set rl.optimizer.learning_rate=3e-04" in printed
    assert main(["diagnose", str(run), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)[0]["cause"] == "learning_rate_high"


def test_a_run_that_has_hardly_begun_is_no_error(tmp_path, capsys):
    run = unpack(HEALTHY_RUN, tmp_path / "run")
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join(lines[:602]) + b'{"kind": "step", "sta')
    for name in ("rollouts.jsonl", "recipe.yaml", "run.json"):
        (run / name).unlink()
    assert main(["diagnose", str(run)]) == 0
    assert capsys.readouterr().out.startswith("No cause was found.")


def test_a_share_of_right_responses_is_that_of_the_run_or_of_verdicts_that_are_all_or_nothing():
    plain = healthy()
    assert plain.share_right() == plain.mean_at_start("reward/sampled"), "an older run: its rewards are its verdicts"
    assert plain.share_right("sums", at_end=True) == plain.mean_at_end("reward/mean/sums")
    told = with_steps(lambda m, _: m.update({"correct/sampled": 0.25, "correct/mean/sums": 0.5}))
    assert (told.share_right(), told.share_right("sums")) == (0.25, 0.5)
    partial = scored(plain, lambda score: 0.5 + score / 2)
    assert partial.share_right() is None, "a mean reward is no share"
    grades = scored(plain, lambda score: 0.4 * score + 0.1)
    assert replace(told, samples=grades.samples).share_right() == 0.25
    none_right = with_steps(lambda m, _: m.update({"correct/sampled": 0.0}), of=grades)
    assert none_right.share_right() is None, "a verifier that never gives a full score does not say what is right"


def scored(run, change):
    """The run with other scores, and rewards that are the scores."""
    return with_rows(run, lambda row: {"score": change(row.score), "reward": change(row.score)})


WORDS, TEXTS = ("cat", "dog", "cow", "owl"), ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}', "[4]", "{}")


@pytest.mark.parametrize(
    ("forms", "num_right", "cause"),
    [
        ("abcd", 4, "false_positives"),
        ("abcd", 1, "wrong_references"),  # all references are the same
        (WORDS, 2, None),  # several may be right
        (TEXTS, 4, "false_positives"),
        (TEXTS, 1, "false_negatives"),
        (("a", "(A)", "The answer is a.", "b"), 1, "false_negatives"),
        (("one of a few", "or another", "or that one", "or none"), 4, None),
    ],
)
def test_answers_that_are_no_numbers_check_the_verdicts_too(forms, num_right, cause):
    rows = [
        replace(s, row=replace(s.row, response=forms[i % 4], extracted=None, score=float(i % 4 < num_right)))
        for group in by_group(healthy().samples)
        for i, s in enumerate(group)
    ]
    run = scored(replace(healthy(), samples=tuple(rows), evaluations=()), lambda score: score)
    assert [f.cause for f in diagnose(run) if f.level == "problem"] == [cause] * (cause is not None)


@pytest.mark.parametrize(
    ("recipe", "cause"),
    [
        ({"rl": {"algorithm": {"name": "grpo", "num_epochs": 6, "clip_low": 1e4}}}, "ratios_explode"),
        ({"rl": {"algorithm": {"name": "grpo", "num_epochs": 6, "clip_low": 0.2}}}, None),
        ({"rl": {"optimizer": {"max_grad_norm": 1e-12}}}, "learning_rate_low"),
        ({"rl": {"optimizer": {"max_grad_norm": 0.1}}}, None),
        *(({"rollout": {name: far}}, "sampling_differs") for name, far in
          (("top_p", 0.5), ("top_k", 2), ("min_p", 0.6), ("repetition_penalty", 1.8))),
        *(({"rollout": {name: near}}, None) for name, near in
          (("top_p", 0.95), ("top_k", 50), ("min_p", 0.05), ("repetition_penalty", 1.0))),
    ],
)  # fmt: skip
def test_an_option_alone_shows_a_cause_where_nothing_was_learned(recipe, cause):
    flat = with_steps(lambda m, number: m.update({"reward/sampled": 0.3 + 0.01 * (number % 3)}))
    run = replace(flat, evaluations=(), recipe=recipe)
    assert place_of(cause, diagnose(run)) == 0 if cause else recipe_causes(run) == set()


def recipe_causes(run):
    return {f.cause for f in diagnose(run)} & {"ratios_explode", "learning_rate_low", "sampling_differs"}


def test_copies_are_no_samples_where_the_entropy_is_large():
    run = with_rows(healthy(), lambda row: {"response": row.prompt})
    for entropy, are_found in ((1.0, True), (1e-4, False)):
        of_entropy = with_steps(lambda m, number, nats=entropy: m.update({"entropy": nats}), of=run)
        assert any("same text" in f.sentence for f in diagnose(of_entropy)) == are_found


@pytest.mark.parametrize(("reward", "score", "cause"), [(1.0, 0.0, "false_positives"), (0.0, 1.0, "false_negatives")])
def test_a_function_that_only_logs_judges_the_one_that_trains(reward, score, cause):
    def row(own):
        scores = {"reward": reward, "score": score} if own.sample % 2 == 0 else {"reward": own.score}
        return scores | {"response": f"{own.prompt_id}, {own.sample}", "extracted": None}  # no answer to compare

    run = replace(with_rows(healthy(), row), evaluations=(), info={"log_only": "exact"})
    assert place_of(cause, [f for f in diagnose(run) if "exact" in f.sentence]) == 0
    assert not [f for f in diagnose(replace(run, info={})) if "logged with weight 0" in f.sentence]


@pytest.mark.parametrize(("shift", "cause"), [(1, "wrong_references"), (0, None)])
def test_choices_that_are_right_as_often_as_guesses_have_other_references(shift, cause):
    rows = []
    for number, group in enumerate(by_group(healthy().samples)):
        right = "abcd"[(number + shift * (number // 4 % 4)) % 4]  # by the shift, one reference in four is the answer
        for i, s in enumerate(group):
            own = "abcd"[(number + (i > 2)) % 4]
            rows.append(replace(s, row=replace(s.row, response=own, extracted=None, score=float(own == right))))
    run = scored(replace(healthy(), samples=tuple(rows), evaluations=()), lambda score: score)
    run = with_steps(lambda m, number: m.update({"reward/sampled": 0.25 + 0.01 * (number % 3)}), of=run)
    assert [f.cause for f in diagnose(run) if "guesses" in f.sentence] == [cause] * (cause is not None)


@pytest.mark.parametrize(("entropy", "cause"), [(3.0, "learning_rate_high"), (0.5, "infrastructure_zeros")])
def test_a_reward_that_falls_in_one_step_and_stays_there_is_named_with_the_step(entropy, cause):
    before, after = ({"reward/sampled": r, "entropy": e} for r, e in ((0.48, 0.5), (0.02, entropy)))
    run = with_steps(lambda m, number: m.update(before if number < 20 else after))
    first = diagnose(replace(run, evaluations=()))[0]
    assert (first.cause, first.sentence[:46]) == (cause, "At step 21 the reward falls from 0.48 to 0.02 ")


@pytest.mark.parametrize("response", ["17 and 25 is 17 and 3 and", "42 and 42 and 42 and 42 and 42", "42\n9+8=17\n3+"])
def test_responses_that_are_all_cut_had_come_to_their_answer_or_not(response):
    run = with_steps(lambda m, _: m.update({"truncated": 1.0, "length/mean": 30.0, "reward/sampled": 0.0}))
    run = with_rows(run, lambda row: {"prompt": "4+7=", "response": response, "score": 0.0, "reward": 0.0})
    cause = "end_token_missing" if response.startswith("42") else "length_cap"
    assert [f.cause for f in diagnose(run) if f.level == "problem"][:1] == [cause]


def test_an_answer_that_is_accepted_once_shows_no_wrong_reference(diagnosed):
    """Of each answer in a group the first response is accepted, in a run where most common answers were refused."""
    run = read(diagnosed(OWN / "answers_of_the_next_row-0.tar.xz")[0])
    first = {(g[0].line, s.row.extracted): s.line for g in by_group(run.samples) for s in reversed(g)}.values()
    samples = tuple(
        replace(s, row=replace(s.row, score=1.0, reward=1.0)) if s.line in first else s for s in run.samples
    )
    assert place_of("wrong_references", diagnose(replace(run, samples=samples))) is None


def test_partial_credit_is_no_fooled_verifier():
    """A high mean reward and few right answers, in training as on held-out prompts, of references that are texts."""
    for right, wanted in ((0.4, False), (0.99, True)):
        run = with_steps(lambda m, _, r=right: m.update({"reward/mean/sums": 0.99, "correct/mean/sums": r}))
        *before, last = run.evaluations
        last = with_pass_at_1(last, value=0.42, low=0.38, high=0.46)
        run = replace(with_rows(run, lambda row: {"extracted": "a text"}), evaluations=(*before, last))
        assert (place_of("false_positives", diagnose(run)) is not None) == wanted


def test_components_are_blamed_where_they_rank_wrong_responses_first():
    for worth, reward, wanted in ((9.0, 5.0, False), (-9.0, 5.0, True), (-9.0, 1.0, False)):
        components = {"reward/component/0": 0.5, "reward/component/1": 0.5, "reward/sampled": reward}
        run = with_steps(lambda m, _, components=components: m.update(components))
        run = with_rows(run, lambda row, worth=worth: {"reward": row.score * (1 + worth)})
        assert (place_of("reward_scales", diagnose(run)) is not None) == wanted


def test_longer_responses_are_excused_by_more_right_ones_unless_length_is_paid():
    """The healthy run with twice the tokens at its end, and with a reward that pays for each token."""
    run = with_steps(lambda m, number: m.update({"length/mean": 13.0 if number < 15 else 26.0}))
    assert place_of("length_drift", diagnose(run)) is None
    run = with_rows(run, lambda row: {"reward": row.score + 0.1 * row.length})
    assert place_of("length_drift", diagnose(run)) == 0


def test_equal_last_turns_of_episodes_may_have_other_outcomes():
    run = healthy()
    for ending, wanted in ((None, True), ("done", False)):
        rows = [replace(s.row, ending=ending, response="7", score=float(i % 2)) for i, s in enumerate(run.samples)]
        mixed = replace(run, samples=tuple(replace(s, row=row) for s, row in zip(run.samples, rows, strict=True)))
        assert (place_of("infrastructure_zeros", diagnose(mixed)) is not None) == wanted


@pytest.mark.parametrize(
    ("solved_after_sft", "loss", "other", "is_found"),
    [
        (0.1, 0.01, None, True),
        (0.1, 0.1, None, False),
        (0.1, 0.1, "reward_model", False),  # its loss is that of pairs, and near zero where they are easy
        (0.1, 0.1, "preference", False),
        (0.6, 0.01, None, False),  # the policy fell later, in another stage
    ],
)
def test_demonstrations_are_learned_by_heart_where_sft_itself_ends_weak(
    tmp_path, solved_after_sft, loss, other, is_found
):
    folder = unpack(HEALTHY_RUN, tmp_path)
    rows = read_jsonl(folder / "metrics.jsonl")
    for row in rows:
        if row["kind"] == "evaluation":
            row["domains"]["sums"]["pass@1"]["value"] = solved_after_sft if row["stage"] == "sft" else 0.0
        elif row["kind"] == "step" and row["stage"] == "sft":
            row["metrics"]["loss"] = loss
    begin = next(i for i, row in enumerate(rows) if row["kind"] == "step" and row["stage"] == "rl")
    if other is not None:
        rows[begin:begin] = [{**rows[0], "stage": other, "stage_kind": other, "metrics": {"loss": 0.0}}] * 5
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert (place_of("sft_memorised", diagnose(read(folder))) is not None) == is_found


@pytest.mark.parametrize(("trend", "after", "is_found"), [(0.01, 0.1, True), (0.01, 0.4, False), (-0.01, 0.1, False)])
def test_a_model_that_likes_wrong_responses_is_found_in_a_later_stage_too(trend, after, is_found):
    """Pass@1 after SFT, after a stage that is not the last, and at the end."""

    def graded(metrics, number):
        metrics.pop("correct/sampled", None)
        metrics.pop("correct/mean/sums", None)
        metrics["reward/sampled"] = 0.6 + trend * number

    run = with_steps(graded, of=scored(healthy(), lambda score: 0.3 + 0.5 * score))
    first, last = run.evaluations
    fallen = (with_pass_at_1(e, value=after, low=after - 0.05, high=after + 0.05) for e in (first, last))
    run = replace(run, evaluations=(replace(first, line=first.line - 1), *fallen))
    assert ("false_positives" in {f.cause for f in diagnose(run)}) == is_found


def run_of(name, folder):
    return unpack(OWN / f"{name}-0.tar.xz", folder)


@pytest.mark.run
@pytest.mark.parametrize(
    ("name", "title", "x_label"),
    [
        ("rate_times_ten", "kl/k1", "RL step"),
        ("six_held_out_tasks", "Held-out pass@1", "evaluation"),
        ("answers_of_the_next_row", "reward/mean/sums", "RL step"),
    ],
)
def test_the_curve_is_that_of_the_number_that_shows_the_cause(name, title, x_label, tmp_path):
    run = run_of(name, tmp_path)
    cards, _ = cards_of(run, pytest.fail)
    assert cards
    chart = cards[0].chart
    assert (chart.title, chart.x_label) == (title, x_label)
    assert len(chart.x) == len(chart.series[0].y) > 1
    text = build_page(run, cards).read_text(encoding="utf-8")
    assert all(f'data-chart="{c.chart.name}"' in text for c in cards if c.chart)


def test_a_rule_that_fails_is_named_and_the_others_go_on(tmp_path, monkeypatch):
    heard = []

    def broken(run):
        raise ZeroDivisionError("division by zero")

    cause = CAUSES["learning_rate_high"]
    monkeypatch.setitem(CAUSES, cause.name, replace(cause, rules=(broken,)))
    run = run_of("rate_times_ten", tmp_path)
    cards, _ = cards_of(run, heard.append)
    assert heard == [
        "warning: the rule learning_rate_high of the diagnosis failed: ZeroDivisionError: division by zero"
    ]
    assert "learning_rate_high" not in {c.cause for c in cards}


def test_files_that_cannot_be_read_leave_the_page_without_a_diagnosis(tmp_path):
    heard = []
    run = run_of("healthy", tmp_path)
    (run / "recipe.yaml").write_text("a: [")
    assert cards_of(run, heard.append) == (None, "")
    assert len(heard) == 1
    assert "could not be diagnosed: RunError" in heard[0]
