"""Names to plug-ins: `name: dapo` is the file `dapo.py` of its package, else an installed package's entry point.

There is no list to edit. An unknown name answers with the ones that are near.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from pipeline.errors import ConfigError, UnknownName

Kind = Literal["algorithms", "verifiers", "preferences", "generators"]

PACKAGES: dict[Kind, str] = {
    "algorithms": "pipeline.algorithms",
    "verifiers": "verifiers",
    "preferences": "pipeline.preferences",
    "generators": "pipeline.data.generators",
}
FORMER_NAMES: dict[Kind, dict[str, str]] = {"verifiers": {"reference_model": "reward_model"}}
"""Names that recipes may still use, each with the name that it stands for now."""
SUPPORT = frozenset({"base"})
"""Files of a plug-in package that are no plug-ins; sub-packages and names with a leading underscore are none either."""


def names(kind: Kind) -> list[str]:
    """All names of this kind that load here, files first, each once."""
    package = importlib.import_module(PACKAGES[kind])
    files = [m.name for m in pkgutil.iter_modules(package.__path__) if not m.ispkg and _is_plugin(m.name)]
    installed = [e.name for e in _installed(kind, tuple(sys.path))]
    return list(dict.fromkeys([*sorted(files), *sorted(installed)]))


def find(kind: Kind, name: str) -> Any:
    """The plug-in `name`: the module of that file, or whatever the entry point loads.

    Raises: UnknownName if there is none, ConfigError if a file and an installed package both claim the name.
    """
    name = FORMER_NAMES.get(kind, {}).get(name, name)
    claimed = [e for e in _installed(kind, tuple(sys.path)) if e.name == name]
    module = f"{PACKAGES[kind]}.{name}"
    spec = importlib.util.find_spec(module) if name.isidentifier() and _is_plugin(name) else None
    is_file = spec is not None and spec.submodule_search_locations is None
    if len(claimed) + is_file > 1:
        owners = ", ".join(e.value for e in claimed)
        raise ConfigError(f"{kind} name {name!r} is claimed more than once (also by {owners}); uninstall or rename one")
    if is_file:
        return importlib.import_module(module)
    if claimed:
        return claimed[0].load()
    known = names(kind)
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
    raise UnknownName(f"no {kind[:-1]} is called {name!r}; {hint}")


@lru_cache(maxsize=32)
def _installed(kind: Kind, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Return the entry points of installed packages; `path` is where Python looks for packages."""
    # A search reads the metadata of every installed package, which takes 40 ms, and a recipe asks ten times and more.
    return tuple(entry_points(group=f"verizero.{kind}"))


def refused_parameters(errors: Sequence[Mapping[str, Any]], known: Sequence[str]) -> str:
    """Return a sentence for each error that a plug-in's parameter model reports, joined by "; "."""
    lines = []
    for error in errors:
        field = ".".join(str(p) for p in error["loc"]) or "parameters"
        if error["type"] == "extra_forbidden":
            near = difflib.get_close_matches(field, known, n=2)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
            lines.append(f"no parameter {field!r}; {hint}")
        else:
            lines.append(f"{field} = {error['input']!r}: {error['msg']}")
    return "; ".join(lines)


def _is_plugin(name: str) -> bool:
    return name not in SUPPORT and not name.startswith("_")
