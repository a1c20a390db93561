"""Packages that programs may import: the folders of installed distributions, and of what they require."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

from verizero.pipeline.errors import ConfigError

_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True)
class Packages:
    """The files and folders of the packages that programs may import."""

    paths: tuple[str, ...] = ()

    @property
    def modules(self) -> frozenset[str]:
        """The names by which programs import them."""
        names = (os.path.basename(path).partition(".")[0] for path in self.paths if not path.endswith("-info"))
        return frozenset(name for name in names if name.isidentifier())


def resolve(names: Sequence[str]) -> Packages:
    """Return the installed distributions of these names, or with these modules, and all that they require.

    Raises: ConfigError naming one that is not installed.
    """
    paths, done = dict[str, None](), set[str]()
    todo = [(name, True) for name in names]
    while todo:
        name, is_asked = todo.pop()
        if name.lower() in done:
            continue
        done.add(name.lower())
        try:
            installed = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if is_asked:
                todo.append((_owner(name), False))
            continue
        for file in installed.files or ():
            path = os.path.realpath(str(installed.locate_file(file.parts[0])))
            if file.parts[0] not in ("..", "__pycache__") and not path.endswith(".pth") and os.path.exists(path):
                paths[path] = None
        required = (line for line in installed.requires or () if "extra ==" not in line)
        todo += [(match[0], False) for match in map(_NAME.match, required) if match]
    return Packages(tuple(paths))


def _owner(module: str) -> str:
    """Return the distribution that has a module. Raises: ConfigError."""
    if owners := metadata.packages_distributions().get(module):
        return owners[0]
    raise ConfigError(
        f"sandbox.packages: {module!r} is not installed; install it, e.g. `pip install {module}`, or drop it"
    )
