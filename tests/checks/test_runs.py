"""What runs record for a diagnosis: numbers that show a wrong mask, a foreign sampler, another template."""

import json

import pytest

from tests.stages.start import started
from tests.stages.tiny import tiny
from verizero.pipeline.checks.diagnosis import diagnose
from verizero.pipeline.checks.run_facts import read
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.whole_run import train

pytestmark = pytest.mark.run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    base = tmp_path_factory.mktemp("recorded")
    train(tiny({"rl": {"steps_per_round": 4}}, started()), base, base / "run", "auto", Progress())
    return base / "run"


def steps(folder, stage):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["metrics"] for row in rows if row["kind"] == "step" and row["stage"] == stage]


def test_the_tokens_of_an_update_are_those_that_were_sampled_for_it(run):
    updates = [m for m in steps(run, "rl") if "responses/trained" in m]
    assert updates
    for m in updates:
        assert m["responses/tokens"] / m["responses/trained"] == pytest.approx(m["response/length_mean"])
        assert m["surprise"] > 0
        # a step whose groups were all carried in asks nothing
        assert m["groups/sampled"] == 0 or m["prompt/spaces_at_end"] == 0
    assert any(m["groups/sampled"] for m in updates)
    assert all("responses/trained" not in m for m in steps(run, "rl") if m["update/skipped"])


def test_rows_of_demonstrations_have_a_prompt_that_is_not_trained_and_an_end_that_is(run):
    for m in steps(run, "sft"):
        assert m["rows"] == 16
        # A sum of two digits is asked in four tokens, e.g. "3+4=".
        assert m["rows/tokens"] - m["tokens"] == 4 * m["rows"]
        assert m["ends/trained"] == 1
        assert m["prompt/spaces_at_end"] == 0


def after_another(tmp_path, run, **changes):
    return tiny({"stages": ["rl"], "sft": None, **changes}, [f"model={{path: {run / 'model'}}}"])


def test_a_models_folder_names_its_template_and_the_next_run_reads_it(run, tmp_path):
    template = {"name": "custom", "text": "{question}\n"}
    both = {"same": {}, "other": {"data": {"template": template}}}
    for name, changes in both.items():
        config = after_another(tmp_path, run, rl={"rounds": 1, "steps_per_round": 1}, **changes)
        train(config, tmp_path, tmp_path / name, "auto", Progress())
        assert json.loads((tmp_path / name / "run.json").read_text())["model_template"]["name"] == "plain"
        causes = {f.cause for f in diagnose(read(tmp_path / name))}
        assert ("other_template" in causes) == (name == "other")
    assert steps(tmp_path / "other", "rl")[0]["prompt/spaces_at_end"] == 1
