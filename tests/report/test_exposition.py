"""/metrics says what metrics.jsonl says, in a format that Prometheus' own parser reads, during the run."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.report.runs import make_run, read_rows
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.listening import free_port
from verizero.pipeline.report.exposition import CONTENT_TYPE, MetricsCollector, exposed
from verizero.pipeline.report.files import read_run
from verizero.pipeline.report.summary import count_seconds

Sample = tuple[str, frozenset[tuple[str, str]]]


def parsed(text: str) -> dict[Sample, float]:
    """Every sample of the text, by name and labels without `run`."""
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        assert family.type in ("gauge", "counter")
        for s in family.samples:
            assert s.labels["run"] in ("a", "early", "tiny")
            found[s.name, frozenset((k, v) for k, v in s.labels.items() if k != "run")] = s.value
    return found


def of(samples: dict[Sample, float], name: str, **labels: str) -> float:
    return samples[f"verizero_{name}", frozenset(labels.items())]


def samples_of(reading: MetricsCollector) -> dict[Sample, float]:
    return parsed(generate_latest(reading).decode())


def scrape(address: str) -> dict[Sample, float]:
    with urllib.request.urlopen(address, timeout=60) as answer:
        assert answer.headers["Content-Type"] == CONTENT_TYPE
        return parsed(answer.read().decode())


@pytest.fixture
def port() -> int:
    return free_port()


def test_it_says_what_the_file_says(tmp_path: Path) -> None:
    run = make_run(tmp_path / "demo")
    reading = MetricsCollector(run / "metrics.jsonl", "a")
    samples = samples_of(reading)
    rows = read_rows(run / "metrics.jsonl")
    steps = [r for r in rows if r["kind"] == "step" and r["stage"] == "rl"]
    evaluations = [r for r in rows if r["kind"] == "evaluation"]
    assert of(samples, "step", stage="rl") == 60
    assert of(samples, "step", stage="sft") == 60
    assert of(samples, "reward") == steps[-1]["metrics"]["reward/sampled"]
    assert of(samples, "kl") == steps[-1]["metrics"]["kl/k3"]
    assert of(samples, "entropy") == steps[-1]["metrics"]["entropy"]
    clipped = steps[-1]["metrics"]["clip_fraction/low"] + steps[-1]["metrics"]["clip_fraction/high"]
    assert of(samples, "clip_fraction_ratio") == clipped
    last = evaluations[-1]["domains"]["induction"]["pass@1"]["value"]
    assert of(samples, "pass_at_1", domain="induction") == last
    files = read_run(run)
    seconds = count_seconds(files.steps, files.evaluations)
    assert of(samples, "phase_seconds_total", stage="rl", phase="update") == pytest.approx(seconds["update"], abs=1e-3)
    assert of(samples, "alarms_total", alarm="collapse") == 0


def test_counts_add_up_and_alarms_are_counted(tmp_path: Path) -> None:
    shares = {"verdict/graded": 0.75, "verdict/timeout": 0.25, "verdict/responses": 8.0, "tokens/generated": 100.0}
    step = {"kind": "step", "stage": "rl", "round": 1, "step": 1, "metrics": shares, "time": {}}
    alarm = {"kind": "alarm", "alarm": "collapse", "stage": "rl", "round": 1, "step": 1, "action": "warn", "signs": []}
    evaluation = {"kind": "evaluation", "stage": "rl", "round": 1, "step": 1, "label": "after round 1", "k": 1}
    evaluation |= {"domains": {}, "verdicts": {"graded": 5}, "time": {}}
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in (step, alarm, evaluation, step)) + '{"kind":"al')
    reading = MetricsCollector(file, "a")
    samples = samples_of(reading)
    assert of(samples, "verdicts_total", status="graded", of="training") == 12
    assert of(samples, "verdicts_total", status="timeout", of="training") == 4
    assert of(samples, "verdicts_total", status="graded", of="evaluation") == 5
    assert of(samples, "generated_tokens_total") == 100
    assert of(samples, "alarms_total", alarm="collapse") == 1
    with file.open("a") as more:  # the torn line is written to its end, and counted once
        more.write(
            'arm","alarm":"verifier","stage":"rl","step":1,"failure_rate":1,"responses":4,"where":"","first":""}\n'
        )
    samples_of(reading)
    samples = samples_of(reading)
    assert of(samples, "alarms_total", alarm="verifier") == 1
    assert of(samples, "verdicts_total", status="graded", of="training") == 12
    assert of(samples, "unreadable_lines_total") == 0
    file.write_text(json.dumps(step) + "\n")  # cut back by a resumed run
    samples = samples_of(reading)
    assert of(samples, "verdicts_total", status="graded", of="training") == 6
    assert of(samples, "alarms_total", alarm="collapse") == 0


@pytest.mark.parametrize("damage", ["{", "[1]", "3", "{}", '{"kind":"step","stage":"rl"}'])
def test_a_damaged_line_is_counted_and_the_rest_is_served(damage: str, tmp_path: Path) -> None:
    step = {"kind": "step", "stage": "rl", "round": 1, "step": 1, "metrics": {"entropy": 0.5}, "time": {}}
    (tmp_path / "metrics.jsonl").write_text(damage + "\n" + json.dumps(step) + "\n")
    reading = MetricsCollector(tmp_path / "metrics.jsonl", "a")
    samples = samples_of(reading)
    assert of(samples, "unreadable_lines_total") == 1
    assert of(samples, "entropy") == 0.5


def test_labels_that_need_it_are_escaped(tmp_path: Path) -> None:
    metrics = {'reward/mean/a"b\\c\nd': 0.5}
    row = {"kind": "step", "stage": "rl", "round": 1, "step": 1, "metrics": metrics, "time": {}}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    reading = MetricsCollector(tmp_path / "metrics.jsonl", "a")
    assert of(samples_of(reading), "domain_reward", domain='a"b\\c\nd') == 0.5


def test_it_is_served_on_loopback_as_long_as_the_block_lasts(tmp_path: Path, port: int) -> None:
    with exposed(tmp_path, "early", port) as address:
        assert address == f"http://127.0.0.1:{port}/metrics"
        assert of(scrape(address), "alarms_total", alarm="collapse") == 0  # nothing is written yet
        make_run(tmp_path)
        assert of(scrape(address), "step", stage="rl") == 60
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/../recipe.yaml", timeout=60)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=60)


def test_a_port_in_use_is_an_error_that_says_so(tmp_path: Path, port: int) -> None:
    with exposed(tmp_path, "first", port):
        with pytest.raises(ConfigError, match=rf"report\.metrics_port={port} .*in use"):
            with exposed(tmp_path, "second", port):
                pass


def test_none_serves_nothing(tmp_path: Path) -> None:
    with exposed(tmp_path, "off", None) as address:
        assert address is None


@pytest.mark.integration
def test_a_run_serves_its_metrics_while_it_goes_on(tmp_path: Path, port: int) -> None:
    """Asked from inside the run at the end of each round; the count of verdicts is that of the responses."""
    from tests.stages.sessions import run_all
    from tests.stages.tiny import tiny
    from verizero.pipeline.report.progress import Silent
    from verizero.pipeline.run.opening import open_run

    config = tiny({"report": {"metrics_port": port}})
    seen: list[dict[Sample, float]] = []

    def listen(name: str, fields: dict[str, Any]) -> None:
        if name == "verizero.round.completed":
            seen.append(scrape(f"http://127.0.0.1:{port}/metrics"))

    with open_run(config, Path.cwd(), tmp_path / "tiny", "auto", Silent()) as session:
        session.recorder.listener = listen
        run_all(session)
        responses = session.state.num_responses
    assert [of(s, "step", stage="rl") for s in seen] == [3, 6]
    verdicts = {k: v for k, v in seen[-1].items() if k[0] == "verizero_verdicts_total" and ("of", "training") in k[1]}
    assert sum(verdicts.values()) == responses > 0
    rows = read_rows(tmp_path / "tiny" / "metrics.jsonl")
    assert (
        of(seen[-1], "generated_tokens_total")
        == [r for r in rows if r["kind"] == "step"][-1]["metrics"]["tokens/generated"]
    )
