"""The manifests of deploy/: valid by Kubernetes' and Slurm's own rules, and their commands are ones that we have."""

from __future__ import annotations

import copy
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from pipeline.cli import parser
from pipeline.config.load import load_recipe
from pipeline.config.recipes import find_recipe
from pipeline.config.run import RunConfig

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
OBJECTS: list[dict[str, Any]] = [o for f in FILES for o in yaml.safe_load_all(f.read_text())]
SCRIPTS = sorted((ROOT / "deploy" / "slurm").glob("*.sbatch"))
KUBERNETES = ("1.28", "1.35")
DURATION = re.compile(r"(\d+-)?\d{1,2}:\d{2}:\d{2}|\d+")
SBATCH = {
    "job-name": re.compile(r"[\w.-]+"),
    "nodes": re.compile(r"\d+(-\d+)?"),
    "ntasks": re.compile(r"\d+"),
    "ntasks-per-node": re.compile(r"\d+"),
    "cpus-per-task": re.compile(r"\d+"),
    "gpus-per-node": re.compile(r"([\w.-]+:)?\d+"),
    "gres": re.compile(r"gpu(:[\w.-]+)?:\d+"),
    "mem": re.compile(r"\d+[KMGT]?"),
    "exclusive": None,
    "requeue": None,
    "time": DURATION,
    "open-mode": re.compile("append|truncate"),
    "output": re.compile(r"[\w./%-]+"),
    "error": re.compile(r"[\w./%-]+"),
    "signal": re.compile(r"([RB]{1,2}:)?[A-Z0-9]+(@\d{1,5})?"),
    "partition": re.compile(r"[\w,.-]+"),
    "account": re.compile(r"[\w.-]+"),
}
"""Options of sbatch (its manual page, "OPTIONS") that a script of ours may use, and their values; None: no value."""


def named(kind: str) -> dict[str, dict[str, Any]]:
    return {o["metadata"]["name"]: o for o in OBJECTS if o["kind"] == kind}


def pods() -> dict[str, dict[str, Any]]:
    """The pod template of each object that has one."""
    owners = [o for o in OBJECTS if "template" in o.get("spec", {})]
    return {f"{o['kind']} {o['metadata']['name']}": o["spec"]["template"] for o in owners}


def recipe_of(words: list[str]) -> RunConfig:
    """The recipe that a `verizero train …` would run; an option that the command lacks ends the test."""
    assert words[0] == "verizero"
    asked = parser().parse_args(words[1:])
    path = find_recipe(asked.recipe)
    assert path.is_relative_to(ROOT), f"{asked.recipe} is no shipped recipe"
    return load_recipe(path, asked.set)


def directives(script: Path) -> list[tuple[str, str | None]]:
    """The #SBATCH options, which count only before the first command."""
    found = []
    for line in script.read_text().splitlines():
        if line.startswith("#SBATCH"):
            (word,) = shlex.split(line.removeprefix("#SBATCH"), comments=True)
            name, equals, value = word.partition("=")
            assert name.startswith("--"), line
            found.append((name.removeprefix("--"), value if equals else None))
        elif line and not line.startswith("#"):
            break
    assert len(found) == script.read_text().count("#SBATCH"), "one stands below the first command, where Slurm skips it"
    return found


def faults(options: list[tuple[str, str | None]]) -> list[str]:
    """What sbatch would refuse."""
    out = [f"--{name} stands twice" for name in {n for n, _ in options} if [n for n, _ in options].count(name) > 1]
    for name, value in options:
        pattern = SBATCH.get(name)
        if name not in SBATCH:
            out.append(f"--{name} is no option")
        elif (pattern is None) != (value is None) or (pattern and value and not pattern.fullmatch(value)):
            out.append(f"--{name} cannot be {value!r}")
    return out


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize(
    "index", range(len(OBJECTS)), ids=lambda i: f"{OBJECTS[i]['kind']}-{OBJECTS[i]['metadata']['name']}"
)
def test_kubernetes_accepts_each_object(index: int, version: str) -> None:
    kubernetes_validate.validate(OBJECTS[index], version, strict=True)


def test_a_misspelt_field_would_be_found() -> None:
    wrong = copy.deepcopy(named("Job")["verizero-train"])
    wrong["spec"]["backofLimit"] = wrong["spec"].pop("backoffLimit")
    with pytest.raises(kubernetes_validate.ValidationError, match="backofLimit"):
        kubernetes_validate.validate(wrong, KUBERNETES[0], strict=True)


def test_what_the_objects_name_is_there() -> None:
    """Claims, service accounts, services by their host names, and labels that selectors look for."""
    claims, accounts, services = named("PersistentVolumeClaim"), named("ServiceAccount"), named("Service")
    labels = [template["metadata"]["labels"] for template in pods().values()]
    for name, template in pods().items():
        spec = template["spec"]
        volumes = {v["name"]: v for v in spec.get("volumes", [])}
        for volume in volumes.values():
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims, name
        assert spec.get("serviceAccountName") in (None, *accounts), name
        assert spec.get("subdomain") in (None, *services), name
        for container in spec["containers"]:
            assert {m["name"] for m in container.get("volumeMounts", [])} == set(volumes), name
            for variable in container.get("env", []):
                if variable["name"] == "PREFECT_API_URL":
                    host, port = re.fullmatch(r"http://([\w-]+):(\d+)/api", variable["value"]).groups()  # type: ignore[union-attr]
                    assert [str(p["port"]) for p in services[host]["spec"]["ports"]] == [port]
    for service in services.values():
        assert service["spec"]["selector"] in labels
    for deployment in named("Deployment").values():
        assert deployment["spec"]["selector"]["matchLabels"] == deployment["spec"]["template"]["metadata"]["labels"]
    (binding,) = named("RoleBinding").values()
    assert binding["roleRef"]["name"] in named("Role")
    assert {s["name"] for s in binding["subjects"]} <= set(accounts)


@pytest.mark.parametrize("name", sorted(named("Job")))
def test_a_job_runs_a_recipe_on_what_it_asks_for(name: str) -> None:
    spec = named("Job")[name]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    launch = recipe_of(container["command"]).launch
    nodes = spec.get("completions", 1)
    assert nodes == spec.get("parallelism", 1) == launch.nodes
    assert int(container["resources"]["limits"]["nvidia.com/gpu"]) == launch.gpus_per_node
    if nodes > 1:
        assert launch.kind == "torchrun"
        service = spec["template"]["spec"]["subdomain"]
        assert launch.address == f"{name}-0.{service}"  # the first pod of an indexed Job has this host name
        assert [p["port"] for p in named("Service")[service]["spec"]["ports"]] == [launch.port]
        (rank,) = [v for v in container["env"] if v["name"] == "NODE_RANK"]
        assert "job-completion-index" in rank["valueFrom"]["fieldRef"]["fieldPath"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_slurm_accepts_each_script(script: Path) -> None:
    assert faults(directives(script)) == []
    checked = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert script.read_text().startswith("#!/bin/bash\n")


def test_a_wrong_directive_would_be_found() -> None:
    wrong = [("gpu-per-node", "8"), ("time", "a day"), ("requeue", "yes"), ("nodes", "2"), ("nodes", "4")]
    assert len(faults(wrong)) == 4


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_a_script_runs_a_recipe_on_what_it_asks_for(script: Path, tmp_path: Path) -> None:
    """The script is run by bash with a `verizero` that writes down how it was called."""
    said = tmp_path / "words"
    (tmp_path / "verizero").write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" > {said}\n')
    (tmp_path / "verizero").chmod(0o755)
    subprocess.run(["bash", str(script)], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, cwd=tmp_path, check=True)
    config = recipe_of(["verizero", *said.read_text().splitlines()])
    options = dict(directives(script))
    assert config.launch.kind == "slurm"
    assert config.launch.nodes == int(options["nodes"] or 0)
    assert config.launch.gpus_per_node == int(options["ntasks-per-node"] or 0) == int(options["gpus-per-node"] or 0)
    assert config.output == str(tmp_path / "runs")
