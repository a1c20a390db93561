"""Patches of tests: what a test replaces in a module that both processes have, it replaces in the program's too.

The program then calls the test's object, as a mock, which answers and notes the call in the tests' process.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from importlib import import_module
from typing import Any

from .mirrors import MirrorType, ref_of

SEEN = {
    ("builtins", "input"), ("sys", "stdin"), ("sys", "stdout"), ("sys", "stderr"), ("sys", "argv"), ("os", "environ"),
}  # fmt: skip
"""Parts of the tests' process that the program sees in any case: each frame has them."""
_BUILTINS = ("open", "print")
_MISSING = object()

Place = tuple[str, str]
"""A module, and the path of an attribute within it."""


def place_of(target: Any, name: str) -> Place | None:
    """Return the place of an attribute; None if `target` is of the test or of the program alone."""
    if isinstance(target, types.ModuleType):
        module, path = target.__name__, ""
    elif isinstance(target, type) and not isinstance(target, MirrorType):
        module, path = target.__module__, target.__qualname__
    else:
        return None
    known = sys.modules.get(module)
    if type(known) is not types.ModuleType or (path and _at(known, path) is not target):
        return None
    return module, f"{path}.{name}".lstrip(".")


def problem_of(place: Place, target: Any, *value: Any) -> str | None:
    """Return why a patch cannot be made in the program's process; None if it can."""
    module, path = place
    if (module == "builtins" and path not in _BUILTINS) or place == ("sys", "modules"):
        return f"the test changes {module}.{path}, on which the program's process itself depends"
    if value and isinstance(target, type) and hasattr(type(value[0]), "__get__") and ref_of(value[0]) is None:
        return f"the test changes {module}.{path} to a method or property of its own, which does not travel"
    return None


def play_mock(patch_program: Callable[..., None]) -> None:
    """Have `unittest.mock.patch` patch the program's process too, by this function of target, name and value."""
    from unittest import mock

    patch: Any = mock._patch
    if hasattr(patch, "_verizero_enter"):
        return
    patch._verizero_enter, patch._verizero_exit = patch.__enter__, patch.__exit__

    def enter(self: Any) -> Any:
        entered = patch._verizero_enter(self)
        try:
            patch_program(self.target, self.attribute, vars(self.target).get(self.attribute))
        except BaseException:
            patch._verizero_exit(self, *sys.exc_info())
            raise
        return entered

    def leave(self: Any, *exc: Any) -> Any:
        patch_program(self.target, self.attribute)
        return patch._verizero_exit(self, *exc)

    patch.__enter__, patch.__exit__ = enter, leave


class Replaced:
    """The attributes that tests have replaced in the program's process, as they were before; the last one last."""

    def __init__(self) -> None:
        self.before: list[tuple[Place, Any]] = []

    def patch(self, module: str, path: str, *value: Any) -> None:
        """Replace an attribute; without a value, put back what it was before its last patch."""
        owner_path, _, name = path.rpartition(".")
        owner = _at(import_module(module), owner_path)
        if value:
            self.before.append(((module, path), vars(owner).get(name, _MISSING)))
            setattr(owner, name, value[0])
            return
        last = max(i for i, (place, _) in enumerate(self.before) if place == (module, path))
        _, before = self.before.pop(last)
        if before is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    def put_back(self) -> None:
        """Put back all that is still replaced."""
        while self.before:
            self.patch(*self.before[-1][0])


def _at(owner: Any, path: str) -> Any:
    for part in filter(None, path.split(".")):
        owner = getattr(owner, part, None)
    return owner
