"""Packages that programs may import: the folders of installed distributions, and of what they require."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from verizero.pipeline.errors import ConfigError

_TIMEOUT_S = 60
_SCRIPT = """
import importlib.metadata as metadata, json, os, re, sys
asked, paths, missing = sys.argv[1:], {}, []
owners = metadata.packages_distributions()
todo, done = [(name, True) for name in asked], set()
while todo:
    name, is_asked = todo.pop()
    if name.lower() in done:
        continue
    done.add(name.lower())
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        if is_asked and name in owners:
            todo.append((owners[name][0], True))
        elif is_asked:
            missing.append(name)
        continue
    for file in found.files or ():
        path = os.path.realpath(found.locate_file(file.parts[0]))
        if file.parts[0] not in ("..", "__pycache__") and not path.endswith(".pth") and os.path.exists(path):
            paths[path] = None
    todo += [(re.match(r"[\\w.-]+", line)[0], False) for line in found.requires or () if "extra ==" not in line]
base = getattr(sys, "_base_executable", None) or sys.executable
print(json.dumps({"interpreter": base, "paths": list(paths), "missing": missing}))
"""
"""Prints the interpreter below a virtual environment, and the top-level files and folders of distributions in it."""


@dataclass(frozen=True, slots=True)
class Packages:
    """The interpreter of programs, and the files and folders of the packages that they may import."""

    interpreter: str
    paths: tuple[str, ...]

    @property
    def modules(self) -> frozenset[str]:
        """The names by which programs import them."""
        names = (os.path.basename(path).partition(".")[0] for path in self.paths if not path.endswith("-info"))
        return frozenset(name for name in names if name.isidentifier())


def resolve(names: Sequence[str], python: str | None) -> Packages | None:
    """Return the packages of these names and all that they require, installed for `python` (None: the one that runs).

    Returns None without names and `python`. Raises: ConfigError naming a package that is not installed.
    """
    if not names and python is None:
        return None
    command = [python or sys.executable, "-P", "-c", _SCRIPT, *names]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        answer = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as exc:
        raise ConfigError(
            f"sandbox.python: {command[0]!r} cannot be run ({exc}); name a Python of 3.11 or newer"
        ) from exc
    if answer["missing"]:
        raise ConfigError(
            f"sandbox.packages: {answer['missing'][0]!r} is not installed for {command[0]}; install it there, e.g. "
            f"`{command[0]} -m pip install {answer['missing'][0]}`, or drop it"
        )
    return Packages(answer["interpreter"], tuple(answer["paths"]))
