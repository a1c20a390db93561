"""What a work pool is told, and what the forms promise; no server is needed."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from verizero.flows.deployments import FORMS, all_deployments, variables_for
from verizero.pipeline.errors import ConfigError


def test_a_process_pool_runs_where_the_command_was_given(tmp_path: Path) -> None:
    own = variables_for("process", tmp_path, None, None)
    assert own["working_dir"] == str(Path.cwd())
    assert own["env"]["VERIZERO_RECIPES"] == str(tmp_path)
    assert own["env"]["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == "30"
    assert "command" not in own


def test_on_slurm_srun_starts_each_flow(tmp_path: Path) -> None:
    words = shlex.split(variables_for("process", tmp_path, None, "--gpus=8 --time=8:00:00")["command"])
    assert words[0] == "srun"
    assert {"--ntasks=1", "--kill-on-bad-exit=1", "--gpus=8", "--time=8:00:00"} <= set(words)
    assert words[-3:] == [sys.executable, "-m", "prefect.engine"]


def test_a_kubernetes_pool_gets_an_image_and_no_path_of_this_machine(tmp_path: Path) -> None:
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
def test_what_does_not_fit_the_pool_is_refused(
    tmp_path: Path, kind: str, image: str | None, srun: str | None, named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        variables_for(kind, tmp_path, image, srun)


def test_every_field_of_every_form_is_described() -> None:
    made = all_deployments()
    assert [d.flow_name for d in made] == [d.name for d in made] == [f.name for f in FORMS]
    for deployment in made:
        schema = deployment._parameter_openapi_schema
        assert all(len(field["description"]) > 10 for field in schema.properties.values()), deployment.flow_name
        assert deployment.entrypoint is not None
        assert ":" not in deployment.entrypoint, "a module, not a path of this machine"
