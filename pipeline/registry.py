"""Names to plug-ins: `name: math` is the file `math.py` of its package, or what a file of several calls so, else an
installed package's entry point.

There is no list to edit. An unknown name answers with the ones that are near.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

from verizero.pipeline.errors import ConfigError, UnknownName
from verizero.pipeline.near import did_you_mean, near_path

T = TypeVar("T")
Kind = Literal[
    "algorithms",
    "verifiers",
    "layouts",
    "preferences",
    "generators",
    "environments",
    "tools",
    "call_forms",
    "servers",
    "stages",
    "trackers",
]

PACKAGES: dict[Kind, str] = {
    "algorithms": "verizero.pipeline.algorithms",
    "verifiers": "verizero.verifiers",
    "layouts": "verizero.verifiers.layouts",
    "preferences": "verizero.pipeline.preferences",
    "generators": "verizero.pipeline.data.generators",
    "environments": "verizero.pipeline.environments",
    "tools": "verizero.pipeline.environments.tools",
    "call_forms": "verizero.pipeline.data.calls",
    "servers": "verizero.pipeline.rollout.servers",
    "stages": "verizero.pipeline.stages",
    "trackers": "verizero.pipeline.report.trackers",
}
Plugins = dict[str, "Named"]
PICKLED = ".pkl"
"""Ending of the files of functions that were passed as objects."""
OF_SEVERAL: frozenset[Kind] = frozenset({"algorithms", "preferences", "layouts"})
"""Kinds whose files may hold several plug-ins, by name in the file's `PLUGINS`. To load one loads no tensors."""
SUPPORT = frozenset({"base", "conversing"})
"""Files of a plug-in package that are no plug-ins; sub-packages and names with a leading underscore are none either."""


@dataclass(frozen=True, slots=True)
class Named:
    """A plug-in of a file of several; it has the names that a file of one has."""

    Params: Any
    SOURCE: str
    DEPARTURES: tuple[str, ...]

    def __getattr__(self, name: str) -> Any:
        """Return the method of `Params` that is called like the function of a file of one."""
        return getattr(self.Params, name)


def named(plugins: Plugins, name: str, source: str, *departures: str) -> Callable[[type[T]], type[T]]:
    """Return a decorator that puts a class of parameters into `plugins` under that name."""

    def put(params: type[T]) -> type[T]:
        plugins[name] = Named(params, source, departures)
        return params

    return put


def names(kind: Kind) -> list[str]:
    """All names of this kind that load here, files first, each once."""
    files = _files(kind)
    own = {name for file in files for name in getattr(_of_several(kind, file), "PLUGINS", [file])}
    return list(dict.fromkeys([*sorted(own), *installed(kind)]))


def installed(kind: Kind) -> list[str]:
    """The names that entry points of installed packages give to plug-ins of this kind."""
    return sorted(e.name for e in _installed(kind, tuple(sys.path)))


def find(kind: Kind, name: str) -> Any:
    """The plug-in `name`: the module of that file, what a file of several has by it, or what the entry point loads.

    Raises: UnknownName if there is none, ConfigError if a file and an installed package both claim the name.
    """
    claimed = [e for e in _installed(kind, tuple(sys.path)) if e.name == name]
    own = _own(kind, name)
    if len(claimed) + (own is not None) > 1:
        owners = ", ".join(e.value for e in claimed)
        raise ConfigError(f"{kind} name {name!r} is claimed more than once (also by {owners}); uninstall or rename one")
    if own is not None:
        return own
    if claimed:
        return claimed[0].load()
    known = names(kind)
    hint = did_you_mean(name, known, f"known: {', '.join(known)}", most=3)
    raise UnknownName(f"no {kind[:-1].replace('_', ' ')} is called {name!r}; {hint}")


def _own(kind: Kind, name: str) -> Any:
    """Return the plug-in of that name in the package; None if there is none."""
    if not (name.isidentifier() and _is_plugin(name)):
        return None
    module = f"{PACKAGES[kind]}.{name}"
    spec = importlib.util.find_spec(module)
    if spec is not None and spec.submodule_search_locations is None:
        file = importlib.import_module(module)
        if kind not in OF_SEVERAL or not hasattr(file, "PLUGINS"):
            return file
    for named in (getattr(_of_several(kind, file), "PLUGINS", {}) for file in _files(kind) if kind in OF_SEVERAL):
        if name in named:
            return named[name]
    return None


def _files(kind: Kind) -> list[str]:
    package = importlib.import_module(PACKAGES[kind])
    return [m.name for m in pkgutil.iter_modules(package.__path__) if not m.ispkg and _is_plugin(m.name)]


def _of_several(kind: Kind, file: str) -> Any:
    """Return the module of a file that may hold several plug-ins; None for kinds that have none."""
    return importlib.import_module(f"{PACKAGES[kind]}.{file}") if kind in OF_SEVERAL else None


@lru_cache(maxsize=32)
def _installed(kind: Kind, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Return the entry points of installed packages; `path` is where Python looks for packages."""
    # A search reads the metadata of every installed package, which takes 40 ms, and a recipe asks ten times and more.
    return tuple(entry_points(group=f"verizero.{kind}"))


def at_path(path: str, base: Path | None, what: str) -> tuple[Any, Path]:
    """Return the attribute that a path names ("checks.py:my_check"), and the file.

    A relative path starts from `base`, by default from the working folder. A file is imported once in a process.
    Raises: ConfigError, which calls the plug-in `what`.
    """
    file, _, attribute = path.rpartition(":")
    where = (base or Path.cwd()) / file
    if not where.is_file() or not attribute:
        raise ConfigError(
            f"{what} path {path!r}: expected 'file.py:function', looked for {where}; "
            + near_path(where, "give its path")
        )
    if where.suffix == PICKLED:
        return _pickled(where, what), where
    module = import_file(where, what)
    if not hasattr(module, attribute):
        known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        hint = did_you_mean(attribute, known, f"it has {', '.join(known) or 'no function'}")
        raise ConfigError(f"{what} path {path!r}: {where} has no {attribute!r}; {hint}")
    return getattr(module, attribute), where


def _pickled(where: Path, what: str) -> Any:
    """Return the function that a notebook or a script passed, which `api/given.py` has kept in a file."""
    import pickle

    try:
        return pickle.loads(where.read_bytes())
    except Exception as exc:
        raise ConfigError(f"{what} file {where} does not load: {type(exc).__name__}: {exc}") from exc


def cached(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    """Return the function behind an `lru_cache`: what a cache of a notebook or a script is pickled as."""
    return lru_cache(**parameters)(function)


def import_file(where: Path, what: str) -> ModuleType:
    """Return the module of a file, which is imported once in a process. Raises: ConfigError, if it cannot be."""
    if not where.is_file():
        raise ConfigError(f"{what} path {str(where)!r}: there is no such file")
    name = f"verizero_plugin_{where.stem}_{abs(hash(str(where.resolve())))}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, where)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as exc:
        del sys.modules[name]
        if isinstance(exc, KeyboardInterrupt):
            raise
        raise ConfigError(f"{what} file {where} does not import: {type(exc).__name__}: {exc}") from exc
    return module


def refused_parameters(errors: Sequence[Mapping[str, Any]], known: Sequence[str]) -> str:
    """Return a sentence for each error that a plug-in's parameter model reports, joined by "; "."""
    lines = []
    for error in errors:
        field, message = ".".join(str(p) for p in error["loc"]), error["msg"].removeprefix("Value error, ")
        if error["type"] == "extra_forbidden":
            hint = did_you_mean(field, known, f"known: {', '.join(known)}")
            lines.append(f"no parameter {field!r}; {hint}")
        else:
            lines.append(f"{field} = {error['input']!r:.200}: {message}" if field else message)
    return "; ".join(lines)


def _is_plugin(name: str) -> bool:
    return name not in SUPPORT and not name.startswith("_")
