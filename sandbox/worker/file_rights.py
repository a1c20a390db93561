"""`shutil` in the sandbox: it copies files without their rights and times, which the kernel lets no program set here.

`shutil.copy`, `copy2`, `move` and `copytree` would fail after they have copied the content.
"""

from __future__ import annotations

import errno
import functools
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class _Finder:
    """Finds `shutil` as Python does, and changes it once it is loaded. To import it here would make forks slower."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of `shutil`, None for any other module."""
        if name != "shutil":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name)
        if spec is not None and spec.loader is not None:
            load, loader = spec.loader.exec_module, spec.loader

            def exec_module(module: ModuleType) -> None:
                load(module)
                for function in ("copystat", "copymode"):
                    setattr(module, function, _without_rights(getattr(module, function)))

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Have `shutil` do without rights and times."""
    sys.meta_path.insert(0, _Finder())


def _without_rights(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def copy(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except OSError as exc:
            if exc.errno != errno.EPERM:
                raise

    return copy
