"""The page's section of causes: what it shows, that a run's words stay words, and what one click selects."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.runs import HOSTILE, make_run
from tests.report.test_page import Reader, payload
from verizero.pipeline.report.curves import Chart, Series
from verizero.pipeline.report.diagnosis_section import SETTINGS, Card
from verizero.pipeline.report.page import build_page

CURVE = Chart("diagnosis_1", "surprise", "", (1.0, 2.0, 3.0), (Series("surprise", (0.4, 0.3, 0.2)),))
DRAWN = Card(
    "sampling_differs", "problem", 0.85, "It is cold.", ("metrics.jsonl:7  step 7: x=1",), "--set a.b=1", CURVE
)
TEXTS = Card("false_positives", "warning", 0.7, "It <i>lies</i>.", (f"rollouts.jsonl:3  {HOSTILE}",), "read it", None)


@pytest.mark.integration
def test_the_page_shows_cause_curve_lines_and_remedy(tmp_path: Path) -> None:
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


@pytest.mark.integration
def test_a_run_without_a_cause_has_one_quiet_line(tmp_path: Path) -> None:
    folder = make_run(tmp_path, rounds=1, steps_per_round=3, sft_steps=2)
    text = build_page(folder, []).read_text(encoding="utf-8")
    section = text.partition('<section id="diagnosis">')[2].partition("</section>")[0]
    assert section.count("<p") == 1
    assert "No cause was found" in section


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
def test_the_options_at_the_beginning_of_a_remedy_are_told_from_words(remedy: str, line: int) -> None:
    match = SETTINGS.match(remedy)
    assert (match[0].count("--set ") if match else 0) == line
    if match:
        assert match[0].rstrip()[-1] not in ",;"
        assert remedy.startswith(match[0])
