"""What a run's events become in Prefect."""

import json

import pytest

from tests.report.runs import ROLLOUT, make_run
from tests.shown_texts import TEXTS, rendered
from verizero.flows import artifacts
from verizero.flows.artifacts import Listener
from verizero.pipeline.report.result import evaluation_markdown, result_markdown, round_markdown
from verizero.pipeline.report.run_files import read_run
from verizero.pipeline.report.summary import build_summary
from verizero.pipeline.shown import one_line

TABLE = {"table", "thead", "tbody", "tr", "th", "td", "p", "code", "strong"}


@pytest.fixture
def made(monkeypatch):
    """Markdown artifacts by key, and their descriptions by key and "?"."""
    shown = {}

    def create(key, markdown, description):
        shown.update({key: markdown, f"{key}?": description})

    monkeypatch.setattr(artifacts, "create_markdown_artifact", create)
    monkeypatch.setattr(artifacts, "emit_event", lambda *_, **__: None)
    return shown


@pytest.mark.run
@pytest.mark.parametrize("name", ["raw HTML", "a new row", "half a pair", "ticks at both ends"])
def test_artifacts_show_what_was_written_as_text(tmp_path, made, name):
    """As a response, a prompt, a reason, a cause and an alarm, and as the names of a domain and of the run."""
    text = TEXTS[name]
    folder = make_run(tmp_path / "run", rounds=1, steps_per_round=1, sft_steps=0)
    alarm = {"kind": "alarm", "alarm": "verifier", "stage": "rl", "step": 1, "failure_rate": 0.5, "responses": 8}
    rows = (folder / "metrics.jsonl").read_text() + json.dumps({**alarm, "where": "rl", "first": text}) + "\n"
    (folder / "metrics.jsonl").write_text(rows.replace("arithmetic", json.dumps(text)[1:-1]))
    row = {**ROLLOUT, "domain": text, "prompt": text, "response": text, "reason": text}
    (folder / "rollouts.jsonl").write_text(json.dumps(row) + "\n")
    Listener(text, folder)("verizero.round.completed", {"stage": "rl", "round": 1, "causes": [text]})
    (samples,) = (value for key, value in made.items() if key.endswith("samples"))
    assert rendered(samples).cells[9:13] == [one_line(text)] * 3 + ["graded"]
    del made[next(key for key in made if key.endswith("samples?"))]  # has no text of others
    made["result"] = result_markdown(build_summary(folder), tmp_path / one_line(text).replace("/", "")[:50])
    made["evaluation"] = evaluation_markdown(read_run(folder).evaluations[-1].domains)
    for shown in made.values():
        page = rendered(shown)
        assert set(page.names) <= TABLE | ({"img"} if "image/svg" in shown else set()), page.names
        assert all(a.get("src", "data:image/svg").startswith("data:image/svg") for _, a in page.tags)
        assert one_line(text) in page.text


@pytest.mark.run
def test_the_artifact_of_a_round_begins_with_the_causes(tmp_path, made):
    folder = make_run(tmp_path / "run", rounds=1, steps_per_round=3, sft_steps=2)
    line = "problem: too_hard: All are wrong. Remedy: easier prompts"
    Listener("x", folder)("verizero.round.completed", {"stage": "rl", "round": 1, "causes": [line]})
    assert made["x-rounds"].startswith(f"**Diagnosis.** {line}\n\n")
    assert "Diagnosis" not in round_markdown(folder)
