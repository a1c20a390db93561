"""Forms: what they promise, wrong values in them, refused before anything slow is loaded; what a work pool is told."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source import ROOT
from verizero.flows.deployments import FORMS, all_deployments, variables_for
from verizero.pipeline.errors import ConfigError

DEMO = {"recipe": "demo_short"}
CASES = [
    ("train", {**DEMO, "rounds": 0}, "rounds .*0;"),
    ("evaluate", {**DEMO, "overrides": {"evaluation.k": 0}}, "evaluation.k: "),
    ("rl-rounds", {**DEMO, "campaign": "a/b"}, "campaign: "),
    ("rl-rounds", {**DEMO, "campaign": "a", "target": 2}, "target: .* 2"),
    ("promote", {"run": "nowhere", "answer_within_hours": 0}, "answer_within_hours .* 0"),
    ("promote", {"run": "nowhere", "answer_within_hours": "0.0"}, "answer_within_hours .* 0.0"),
    ("promote", {"run": "nowhere", "answer_within_hours": "72"}, "nowhere .*metrics.jsonl"),
]
"""Flow, fields, and the names and values that the message must have."""


@pytest.mark.run
def test_a_wrong_value_is_refused_before_torch_is_loaded(tmp_path):
    (tmp_path / "cases.json").write_text(json.dumps([case[:2] for case in CASES]))
    done = subprocess.run(
        [sys.executable, "-m", "tests.flows.test_deployments", "cases.json"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "DO_NOT_TRACK": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for (flow, parameters, wanted), (error, text, has_torch) in zip(CASES, answers, strict=True):
        assert error in ("ConfigError", "DataError", "RunError"), (flow, parameters, text)
        assert re.search(wanted, text), (flow, parameters, text)
        assert not has_torch or flow == "promote", (flow, parameters)  # which reads the run's files with it
    left = {p.name for p in tmp_path.iterdir() if not p.name.startswith(".")}  # what libraries keep in a home is theirs
    assert left == {"cases.json"}


def test_every_field_of_every_form_is_described():
    made = all_deployments()
    assert [d.flow_name for d in made] == [d.name for d in made] == [f.name for f in FORMS]
    for deployment in made:
        schema = deployment._parameter_openapi_schema
        assert all(len(field["description"]) > 10 for field in schema.properties.values()), deployment.flow_name
        assert ":" not in deployment.entrypoint, "a module, not a path of this machine"


def test_a_process_pool_runs_where_the_command_was_given(tmp_path):
    own = variables_for("process", tmp_path, None, None)
    assert own["working_dir"] == str(Path.cwd())
    assert own["env"]["VERIZERO_RECIPES"] == str(tmp_path)
    assert own["env"]["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == "30"
    assert "command" not in own


def test_on_slurm_srun_starts_each_flow(tmp_path):
    words = shlex.split(variables_for("process", tmp_path, None, "--gpus=8 --time=8:00:00")["command"])
    assert words[0] == "srun"
    assert {"--ntasks=1", "--kill-on-bad-exit=1", "--gpus=8", "--time=8:00:00"} <= set(words)
    assert words[-3:] == [sys.executable, "-m", "prefect.engine"]


def test_a_kubernetes_pool_gets_an_image_and_no_path_of_this_machine(tmp_path):
    own = variables_for("kubernetes", tmp_path, "registry.example/verizero:1", None)
    assert own["image"] == "registry.example/verizero:1"
    assert str(tmp_path) not in str(own)
    assert str(Path.cwd()) not in str(own)


@pytest.mark.parametrize(
    ("kind", "image", "srun", "named"),
    [
        ("kubernetes", None, None, "--image"),
        ("kubernetes", "i", "--gpus=8", "--srun"),
        ("process", "i", None, "--image"),
        ("ecs", None, None, "'ecs'"),
    ],
)
def test_what_does_not_fit_the_pool_is_refused(tmp_path, kind, image, srun, named):
    with pytest.raises(ConfigError, match=named):
        variables_for(kind, tmp_path, image, srun)


def answer(cases):
    """Print a line of JSON for each case: what the form raised, its text, and whether torch was loaded by then."""
    from prefect.logging import disable_run_logger

    flows = {flow.name: flow for flow in FORMS}
    for name, parameters in json.loads(cases.read_text()):
        try:
            with disable_run_logger():
                flows[name].fn(**parameters)
        except Exception as exc:
            print(json.dumps([type(exc).__name__, str(exc), "torch" in sys.modules]))
        else:
            print(json.dumps(["nothing", "", "torch" in sys.modules]))


if __name__ == "__main__":
    answer(Path(sys.argv[1]))
