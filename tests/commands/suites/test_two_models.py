"""Two models side by side, the two ends of a run, contamination, promotion on suites, and a killed command."""

import json
import os

import pytest

from tests.commands.suites.answering import answering
from tests.commands.suites.rows import COUNT, SUITES, write_rows
from tests.commands.suites.test_suites import answers_of, tiny_model
from tests.commands.test_promote import cell, first_cell
from tests.far import FarProgram
from tests.processes import until
from tests.stages.tiny import tiny
from tests.warm import ROOT, TRAINING
from verizero.pipeline.commands import promote
from verizero.pipeline.commands.eval import compared, evaluate_suites
from verizero.pipeline.commands.suites.asking import load_suites
from verizero.pipeline.commands.suites.models import Measured, measured_of
from verizero.pipeline.commands.suites.results import overlap_note, trained_on
from verizero.pipeline.config.load import dump
from verizero.pipeline.data.overlap import find_overlap
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.report.progress import Progress


def run_folder(folder, rows, changes=None):
    tiny_model(folder / "model")
    (folder / "data").mkdir()
    (folder / "data" / "train.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (folder / "recipe.yaml").write_text(dump(tiny({"name": folder.name, **(changes or {})})))
    (folder / "run.json").write_text("{}")
    (folder / "metrics.jsonl").write_text("")
    return folder


def question(number):
    return {"question": SUITES["gsm8k"](number).row["question"]}


@pytest.mark.run
def test_two_models_are_compared_row_by_row_with_a_paired_interval(tmp_path):
    data = write_rows(tmp_path / "rows", "gsm8k", "math500")
    loaded = load_suites(["gsm8k", "math500"], data, {"samples": 1})
    right, near = answers_of(loaded, "right"), answers_of(loaded, "near")
    weak = {m: text if i % 4 == 0 else near[m] for i, (m, text) in enumerate(right.items())}
    with answering(weak.__getitem__) as first, answering(right.__getitem__) as second:
        models = measured_of([f"{first.url}#weak", f"{second.url}#strong"])
        models = [Measured(m.label, m.model, tmp_path / m.label, served=m.served) for m in models]
        lines = compared(evaluate_suites(models, loaded, [], Progress()), loaded)
    assert lines[0].startswith("gsm8k          weak: pass@1 0.250 [")
    assert lines[1].startswith("gsm8k          strong: pass@1 1.000 [")
    assert lines[2].startswith("gsm8k          change of pass@1 +0.750 [+0.")
    folder = tmp_path / "strong" / f"against-{'weak'}"
    assert lines[-1] == f"page: {folder / 'report.html'}"
    summary = json.loads((folder / "summary.json").read_text())
    low, high = summary["domains"]["math500"]["interval"]
    assert 0 < low < 0.75 < high
    page = (folder / "report.html").read_text()
    assert all(f"evaluation/{label}" in page for label in ("weak", "strong"))
    assert not (tmp_path / "weak" / "report.html").exists()


def test_a_run_is_its_first_weights_and_its_newest(tmp_path):
    run = run_folder(tmp_path / "mine", [])
    (only,) = measured_of([str(run)])
    assert (only.label, only.model, only.folder, only.run) == ("final", str(run / "model"), run / "suites", run)
    (run / "recipe.yaml").write_text(dump(tiny({"name": "mine", "model": {"create": None, "path": "org/start"}})))
    first, last = measured_of([str(run)])
    assert (first.label, first.model) == ("start", "org/start")
    assert (last, first.run) == (only, None)
    # Next to another model, a run is its newest weights.
    other = tiny_model(tmp_path / "other")
    assert [m.model for m in measured_of([str(other), str(run)])] == [str(other), str(run / "model")]
    for names, said in ((["a", "b", "c"], "one model or two"), ([str(tmp_path)], "neither config.json nor")):
        with pytest.raises(ConfigError, match=said):
            measured_of(names)


def test_a_model_in_another_place_is_the_same_and_other_weights_are_not(tmp_path):
    model = tiny_model(tmp_path / "model")
    first = measured_of([str(model)])[0].fingerprint()
    model.rename(tmp_path / "moved")
    moved = measured_of([str(tmp_path / "moved")])[0]
    assert moved.fingerprint() == first
    weights = tmp_path / "moved" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert moved.fingerprint() != first


def test_questions_that_a_run_trained_on_are_counted_and_left_out_of_a_second_rate(tmp_path):
    (own,) = load_suites(["gsm8k"], write_rows(tmp_path / "rows", "gsm8k"), {})
    graded = {"answer": "1", "verifier": "math"}
    seen = [{"id": f"t{n}", **graded} | question(n) for n in (3, 5)]
    shown = {"id": "d", "question": question(7)["question"].upper(), **graded, "demonstration": "1"}
    (tmp_path / "shown.jsonl").write_text(json.dumps(shown) + "\n")
    source = {"file": str(tmp_path / "shown.jsonl")}
    run = run_folder(tmp_path / "mine", seen, {"data": {"demonstrations": [source]}})
    train, unread = trained_on(run)
    overlap = find_overlap(train, own.prompts)
    assert (overlap.counts, unread) == ({"exact": 2, "normalised": 1, "ngram": 0}, "")
    measures = {"by_prompt": [[p.id, 1.0 if i in (3, 5, 7) else 0.0] for i, p in enumerate(own.prompts)]}
    note = overlap_note(overlap, unread, measures)
    assert f"3 of {COUNT} evaluation prompts occur in training" in note
    assert "without them pass@1 is 0.000" in note
    (tmp_path / "shown.jsonl").unlink()
    assert "demonstrations could not be read" in trained_on(run)[1]


@pytest.mark.run
def test_the_overlap_with_what_a_run_trained_on_is_on_the_terminal_and_on_the_page(tmp_path):
    loaded = load_suites(["gsm8k"], write_rows(tmp_path / "rows", "gsm8k"), {})
    run = run_folder(tmp_path / "mine", [{"id": "t", "answer": "1", "verifier": "math"} | question(3)])
    with answering(answers_of(loaded, "right").__getitem__) as served:
        model = Measured("final", served.url, run / "suites", run=run, served="made")
        text = "\n".join(compared(evaluate_suites([model], loaded, [], Progress()), loaded))
    assert f"contamination: 1 of {COUNT} evaluation prompts occur in training" in text
    assert "without them pass@1 is 1.000" in text
    assert f"contamination: 1 of {COUNT}" in (run / "suites" / "report.html").read_text()


@pytest.mark.run
def test_a_promotion_on_suites_compares_the_answers_of_both_models(tmp_path, monkeypatch):
    loaded = load_suites(["gsm8k"], write_rows(tmp_path / "rows", "gsm8k"), {})
    right, near = answers_of(loaded, "right"), answers_of(loaded, "near")
    with answering(right.__getitem__) as strong, answering(near.__getitem__) as weak:
        urls = {"new": strong.url, "old": weak.url, "0001": weak.url}

        def at_its_address(label, model, folder, template):
            return Measured(label, urls[label], folder, served=label)

        monkeypatch.setattr("verizero.pipeline.commands.suites.models.Measured", at_its_address)
        on_suites = promote.suites_measured("gsm8k", tmp_path / "rows")
        registry = tmp_path / "registry"
        first = promote.compare_with_champion(run_folder(tmp_path / "old", []), registry, on_suites=on_suites)
        folder = promote.promote(first, registry, "first")
        assert first_cell((folder / "README.md").read_text(), "gsm8k") == cell(first.domains["gsm8k"]["pass@1"])
        new = run_folder(tmp_path / "new", [])
        (new / "model" / "other.txt").write_text("or it would be the champion itself")
        found = promote.compare_with_champion(new, registry, on_suites=on_suites)
    assert (found.verdict, found.num_prompts) == ("better", COUNT)
    assert found.difference.value == 1.0
    assert (folder / "suites" / "answers.jsonl").is_file()  # next to the champion's model


@pytest.mark.run
def test_a_killed_command_asks_no_question_again_and_ends_with_the_same_bytes(tmp_path):
    data = write_rows(tmp_path / "rows", "gsm8k", "ifeval")
    loaded = load_suites(["gsm8k", "ifeval"], data, {})
    answers = answers_of(loaded, "right")
    with answering(answers.__getitem__, most=9) as model:
        words = ["verizero.pipeline.cli", "eval", f"{model.url}#made", "--suite", "gsm8k,ifeval"]
        words += ["--data-dir", str(data), "--out", str(tmp_path / "out")]
        log, file = tmp_path / "log", tmp_path / "out" / "answers.jsonl"
        program = FarProgram(TRAINING, words, log, os.environ, ROOT)
        until(model.stalled.is_set, "the last answer")
        until(lambda: len(file.read_text().splitlines()) == 9, "its line")
        program.kill()
        program.wait(60)
        with model.lock:
            kept = set(model.answered)
            model.most = None
        assert FarProgram(TRAINING, words, log, os.environ, ROOT).wait(240) == 0, log.read_text()
        # What the killed command had sent, and the model had not read, is answered late, and asked again.
        assert not kept & set(model.answered[len(kept) :])
        assert len(kept) == 9
        assert len(set(model.answered)) == 16
        whole = [Measured("made", model.url, tmp_path / "whole", served="made")]
        compared(evaluate_suites(whole, loaded, [], Progress()), loaded)
    for name in ("rollouts.jsonl", "recipe.yaml", "run.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert "ifeval         made: pass@1 1.000" in log.read_text()
    assert "ask made: 16 steps, 9 of them done before" in log.read_text()
    assert "ask made 16/16" in log.read_text()
