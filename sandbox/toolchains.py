"""Compilers, interpreters and installed packages: their paths, and the folders that they need behind the walls."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from glob import glob
from importlib import metadata
from pathlib import Path

from verizero.pipeline.errors import ConfigError

_SYSTEM = (
    "/usr/bin", "/bin", "/usr/lib", "/lib", "/lib64", "/usr/lib64", "/usr/libexec", "/usr/include", "/usr/share",
    "/usr/local", "/etc/alternatives",
)  # fmt: skip
_PATH = "/usr/bin:/bin:/usr/local/bin:/usr/local/go/bin"
"""Folders whose programs need no others than those of the system."""
_RUST, _JAVA = "rustc", ("java", "javac")


def find(tool: str) -> str | None:
    """Return the path of a compiler or interpreter that programs may run; None if it is not installed."""
    if tool == _RUST and shutil.which("gcc", path=_PATH) is None:
        return None  # it cannot link
    if tool == _RUST and (root := _rust_toolchain()) is not None:
        return f"{root}/bin/{_RUST}"
    path = shutil.which(tool, path=_PATH)
    if path is None or _is_rustup(path):
        return None
    return str(Path(path).resolve()) if tool in _JAVA else path  # Java finds its libraries from its own folder


def folders() -> tuple[str, ...]:
    """Return the folders that programs may read and run: those of the system, of Java's settings and of Rust."""
    root = _rust_toolchain()
    return (*_SYSTEM, *sorted(glob("/etc/java-*")), *([root] if root is not None else []))


def _rust_toolchain() -> str | None:
    """Return the folder of Rust's toolchain, if rustup has installed one. Its own `rustc` only starts that one.

    A stable one goes first. rustup itself would need its settings behind the walls.
    """
    program = shutil.which(_RUST)
    if program is None or not _is_rustup(program):
        return None
    home = os.environ.get("RUSTUP_HOME") or str(Path.home() / ".rustup")
    compilers = sorted(glob(f"{home}/toolchains/*/bin/{_RUST}"), key=lambda path: ("/stable" not in path, path))
    return str(Path(compilers[0]).parents[1]) if compilers else None


def _is_rustup(program: str) -> bool:
    return Path(program).resolve().name == "rustup"


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
    """Return distributions by their name or module, with all that they require. Raises: ConfigError."""
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
