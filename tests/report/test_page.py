"""The page as a document: whole, safe against what a model wrote, bounded, and made of the files alone."""

import base64
import hashlib
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.runs import HOSTILE, RECIPE, make_run, read_rows, write
from tests.shown_texts import Reader
from verizero.pipeline.errors import RunError
from verizero.pipeline.report.curves import Chart, Series
from verizero.pipeline.report.page import MAX_ALARMS, SETTINGS, Card, _duration, build_page, embed, result_line
from verizero.pipeline.report.run_files import read_run
from verizero.pipeline.report.samples import choose_samples
from verizero.pipeline.report.summary import build_summary
from verizero.pipeline.shown import visible


@pytest.fixture(scope="module")
def page(run_dir):
    return Reader(build_page(run_dir).read_text(encoding="utf-8"))


def payload(page):
    found = json.loads(page.scripts[0])
    return found


@pytest.mark.run
def test_the_page_is_one_whole_document(page):
    assert page.open == []
    ids = [a["id"] for _, a in page.tags if a.get("id")]
    assert len(ids) == len(set(ids))
    links = [a["href"] for tag, a in page.tags if tag == "a"]
    assert links
    assert {str(link).removeprefix("#") for link in links} <= set(ids)


@pytest.mark.run
def test_the_page_asks_nothing_of_a_network(page):
    for tag, attrs in page.tags:
        for name in ("src", "href", "action", "data", "srcset", "xlink:href"):
            assert str(attrs.get(name) or "#")[:5] in {"#", "data:"} or str(attrs[name]).startswith("#"), (tag, attrs)
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy


def test_what_a_model_wrote_is_data(run_dir, page):
    raw = (run_dir / "report.html").read_bytes()
    assert len(page.scripts) == 2, "a response opened or closed a script"
    assert raw.count(b"</script") == 2
    assert b"<img" not in raw
    responses = [s["response"] for g in payload(page)["groups"] for s in g["samples"]]
    assert HOSTILE in responses


@given(st.text() | st.just("]]></script><!--<script>"))
def test_embedded_text_survives_and_holds_no_markup(text):
    embedded = embed({"a": [text]})
    assert json.loads(embedded) == {"a": [text]}
    assert not re.search(r"[<>&\u2028\u2029\ud800-\udfff]", embedded)


@pytest.mark.run
def test_names_from_files_are_escaped(tmp_path):
    run_dir = make_run(tmp_path / "x", rounds=1, steps_per_round=2, sft_steps=2)
    rows = (run_dir / "metrics.jsonl").read_text()
    bad = '<b>&\'\\" id="x" #010101 \x1b[2J\u202e'
    (run_dir / "metrics.jsonl").write_text(rows.replace("arithmetic", json.dumps(bad)[1:-1]))
    (run_dir / "recipe.yaml").write_text("name: </pre><script>1</script>\x1b[2J\u202e")
    (run_dir / "run.json").write_text(json.dumps({"name": "</title><script>2", "isolation": {"level": "<i>3"}}))
    page = Reader(build_page(run_dir).read_text(encoding="utf-8"))
    assert page.open == []
    assert len(page.scripts) == 2
    assert visible(bad) in page.text
    assert visible(bad)[:23] + "…" in page.text, "a label of a curve"
    assert not re.search("[\x1b\u202e]", page.text)
    assert "name: </pre><script>1</script>" in page.text
    assert "<i>3" in page.text


@pytest.mark.run
def test_a_quantised_start_is_named_with_its_types_and_licence(tmp_path):
    run_dir = make_run(tmp_path / "x", rounds=1, steps_per_round=2, sft_steps=2)
    assert "quantised start" not in Reader(build_page(run_dir).read_text(encoding="utf-8")).text
    start = {"file": "<b>.gguf", "sha256": "0123456789abcdef" * 4, "architecture": "llama", "model": "Tiny"}
    start |= {"licence": "apache-2.0", "types": {"Q4_1": 0.789, "F32": 0.211}, "is_quantized": True}
    for wanted, changes in (
        ("A quantised start: <b>.gguf (Tiny, llama; weights 78.9% Q4_1, 21.1% F32, made float32", {}),
        ("licence as the file says: apache-2.0; sha256 0123456789abcdef…", {}),
        ("The start: <b>.gguf", {"is_quantized": False}),
        ("the file names no licence", {"licence": ""}),
    ):
        (run_dir / "run.json").write_text(json.dumps({"name": "x", "start": start | changes}))
        page = Reader(build_page(run_dir).read_text(encoding="utf-8"))
        assert page.open == []
        assert wanted in page.text


def test_the_page_says_what_the_files_say(run_dir, page):
    summary = build_summary(run_dir)
    assert result_line(summary) in page.text
    assert summary["sharpening"] in page.text
    for row in summary["domains"].values():
        for side in ("before", "after"):
            for name in ("pass@1", "pass@k", "maj@k", "greedy", "truncated"):
                low, high = row[side]["intervals"][name]
                assert f"{row[side][name]:.3f}[{low:.2f}, {high:.2f}]" in page.text
        assert f"{row['gain']:+.3f}[{row['interval'][0]:+.2f}, {row['interval'][1]:+.2f}]" in page.text
    assert RECIPE in page.text
    assert "isolation level3" in page.text
    assert "960 distinct prompts seen" in page.text
    assert f"{summary['shares']['update']:.1%}" in page.text
    charts = {c["name"]: c for c in payload(page)["charts"]}
    assert sum(tag == "svg" for tag, _ in page.tags) == len(charts)
    steps = read_run(run_dir).rl_steps
    assert charts["entropy"]["series"][0]["y"] == pytest.approx([r.metrics["entropy"] for r in steps], rel=1e-4)


@pytest.mark.parametrize(
    ("seconds", "shown"), [(59.5, "59.5 s"), (61, "1 min 1 s"), (119.6, "2 min 0 s"), (3599.6, "1 h 0 min")]
)
def test_times_are_rounded_to_seconds_before_they_are_divided(seconds, shown):
    assert _duration(seconds) == shown


@pytest.mark.run
def test_a_long_run_stays_small_and_says_what_is_left_out(tmp_path):
    run_dir = make_run(tmp_path / "long", rounds=4, steps_per_round=250, sft_steps=10)
    path = build_page(run_dir)
    page = Reader(path.read_text(encoding="utf-8"))
    shown = sum(len(g["samples"]) for g in payload(page)["groups"])
    total = len(read_rows(run_dir / "rollouts.jsonl"))
    assert shown <= 2000 < total
    assert f"{shown:,} of the {total:,} answers" in page.text
    assert path.stat().st_size < 3_000_000
    assert all(len(c["x"]) <= 360 for c in payload(page)["charts"])
    assert "Each point is the mean of 3 steps." in page.text


@pytest.mark.parametrize("kept", [0, 1, 5, 62, 64])
def test_a_run_at_any_moment_has_a_page(run_dir, tmp_path, kept):
    lines = (run_dir / "metrics.jsonl").read_bytes().splitlines(keepends=True)[:kept]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(lines))
    page = Reader(build_page(tmp_path).read_text(encoding="utf-8"))
    assert page.open == []
    for note in ("No sampled answer is recorded", "recipe.yaml is not in", "run.json is not in"):
        assert note in page.text
    assert ("No held-out evaluation yet" in page.text) == (kept == 0)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunError, match=r"metrics\.jsonl"):
        build_page(tmp_path)


CURVE = Chart("diagnosis_1", "surprise", "", (1.0, 2.0, 3.0), (Series("surprise", (0.4, 0.3, 0.2)),))
DRAWN = Card(
    "sampling_differs", "problem", 0.85, "It is cold.", ("metrics.jsonl:7  step 7: x=1",), "--set a.b=1", CURVE
)
TEXTS = Card("false_positives", "warning", 0.7, "It <i>lies</i>.", (f"rollouts.jsonl:3  {HOSTILE}",), "read it", None)


@pytest.mark.run
def test_the_page_shows_cause_curve_lines_and_remedy(tmp_path):
    folder = make_run(tmp_path, rounds=1, steps_per_round=3, sft_steps=2)
    plain = Reader(build_page(folder).read_text(encoding="utf-8"))
    assert "Diagnosis" not in plain.text
    text = build_page(folder, [DRAWN, TEXTS]).read_text(encoding="utf-8")
    page = Reader(text)
    for words in (
        "problem sampling_differs confidence 85%",
        "It is cold.",
        "metrics.jsonl:7  step 7: x=1",
        "It <i>lies</i>.",
        "Remedy: read it",
    ):
        assert words in page.text
    assert '<pre class="remedy" tabindex="0">--set a.b=1</pre>' in text
    svgs = [sum(tag == "svg" for tag, _ in read.tags) for read in (plain, page)]
    assert svgs[1] == svgs[0] + 1
    assert "diagnosis_1" in [chart["name"] for chart in payload(page)["charts"]]
    assert sum(tag == "script" for tag, _ in page.tags) == sum(tag == "script" for tag, _ in plain.tags)


@pytest.mark.run
def test_a_run_without_a_cause_has_one_quiet_line(tmp_path):
    folder = make_run(tmp_path, rounds=1, steps_per_round=3, sft_steps=2)
    text = build_page(folder, [], "No cause was found; it stays.").read_text(encoding="utf-8")
    section = text.partition('<section id="diagnosis">')[2].partition("</section>")[0]
    assert section.count("<p") == 1
    assert "No cause was found; it stays." in section


@pytest.mark.parametrize(
    ("remedy", "line"),
    [
        ("--set rollout.top_p=1 --set rollout.top_k=0, and remove such options", 2),
        ("--set rl.algorithm.mismatch={level: token, cap: 2.0}", 1),
        ("--set 'data.template={name: \"r1_zero\"}' or so", 1),
        ("--set rl.select.keep=informative skips such groups; harder ones are better", 1),
        ("train on easier prompts first: --set rl.group_size=16", 0),
    ],
)
def test_the_options_at_the_beginning_of_a_remedy_are_told_from_words(remedy, line):
    match = SETTINGS.match(remedy)
    assert (match[0].count("--set ") if match else 0) == line
    if match:
        assert match[0].rstrip()[-1] not in ",;"
        assert remedy.startswith(match[0])


SIGN = {"measure": "entropy", "value": 0.003, "limit": 0.02, "said": "entropy fell to 0.003 (guard.min_entropy: 0.02)"}


def collapse(**more):
    place = {"stage": "rl", "stage_kind": "rl", "round": 3, "step": 60}
    return {"kind": "alarm", "alarm": "collapse", **place, "signs": [SIGN], "time": {}, **more}


def rolled_back(to_step):
    return collapse(action="roll_back", to_step=to_step, roll_backs=1, knob={"rl.optimizer.learning_rate": 1.5e-4})


def test_a_run_without_alarms_has_no_such_section(run_dir):
    assert "alarms" not in build_page(run_dir).read_text(encoding="utf-8").partition("</style>")[2]


@pytest.mark.run
def test_alarms_are_said_in_words_and_escaped(run_dir, tmp_path):
    rows = read_rows(run_dir / "metrics.jsonl")
    graders = {"kind": "alarm", "alarm": "verifier", "stage": "rl", "step": 4, "where": "round 1 step 4"}
    graders |= {"failure_rate": 0.125, "responses": 512, "first": f"First: verifier_error: {HOSTILE}", "time": {}}
    rows += [graders, collapse(action="warn"), collapse(action="stop"), rolled_back(40)]
    write(tmp_path / "metrics.jsonl", rows)
    page = build_page(tmp_path).read_text(encoding="utf-8")
    assert "round 1 step 4: graders failed on 12% of 512 responses. First: verifier_error: &lt;/script&gt;" in page
    assert "<img src=x" not in page
    said = "rl step 60: RL may be collapsing: entropy fell to 0.003 (guard.min_entropy: 0.02). "
    for end in ("The run went on", "The run was stopped", "Rolled back to step 40, with rl.optimizer.learning_rate ="):
        assert said + end in page


def test_of_many_alarms_the_last_are_listed(run_dir, tmp_path):
    rows = [collapse(action="warn") | {"step": i} for i in range(MAX_ALARMS + 7)]
    write(tmp_path / "metrics.jsonl", read_rows(run_dir / "metrics.jsonl") + rows)
    section = (
        build_page(tmp_path)
        .read_text(encoding="utf-8")
        .partition('<section id="alarms">')[2]
        .partition("</section>")[0]
    )
    assert section.count("<li>") == MAX_ALARMS
    assert f"The last {MAX_ALARMS} of {MAX_ALARMS + 7}." in section
    assert f"rl step {MAX_ALARMS + 6}:" in section
    assert "rl step 6:" not in section


def test_undone_steps_and_evaluations_count_no_more(run_dir, tmp_path):
    """A run rolled back from step 60 to 40 has the summary of the run that went right at once."""
    rows = read_rows(run_dir / "metrics.jsonl")
    at = next(i for i, r in enumerate(rows) if r["stage"] == "rl" and r["step"] == 41)
    bad = json.loads(json.dumps(rows[at:]))
    for row in bad:
        if row["kind"] == "step":
            row["metrics"]["reward/sampled"] = -100.0
        else:
            row["domains"]["arithmetic"]["pass@1"]["value"] = 0.0
    write(tmp_path / "demo" / "metrics.jsonl", [*rows[:at], *bad, rolled_back(40), *rows[at:]])
    (tmp_path / "demo" / "run.json").write_text((run_dir / "run.json").read_text())
    assert build_summary(tmp_path / "demo") == build_summary(run_dir)
    assert [r.step for r in read_run(tmp_path / "demo").rl_steps] == list(range(1, 61))


def test_answers_of_a_step_done_twice_are_two_groups(run_dir, tmp_path):
    rows = read_rows(run_dir / "rollouts.jsonl")
    write(tmp_path / "rollouts.jsonl", rows + [r | {"roll_backs": 1} for r in rows if r["step"] == 60])
    twice = [g for g in choose_samples(tmp_path).groups if g["step"] == 60]
    once = [g for g in choose_samples(run_dir).groups if g["step"] == 60]
    assert len(twice) == 2 * len(once)
    assert {len(g["samples"]) for g in twice} == {len(g["samples"]) for g in once}
    assert sorted(g["roll_backs"] for g in twice) == [0] * len(once) + [1] * len(once)
