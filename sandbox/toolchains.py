"""Paths of the compilers and interpreters of this machine, and the folders that they need to run behind the walls."""

from __future__ import annotations

import os
import shutil
from glob import glob
from pathlib import Path

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
