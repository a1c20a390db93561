"""Read YAML with unique keys and numbers such as 3e-4, and merge trees of values: a recipe over the one it extends."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from verizero.pipeline.errors import ConfigError


class Loader(yaml.SafeLoader):
    """Safe YAML where a repeated key is an error, and as in YAML 1.2 3e-4 is a number, and `on` and `off` are words."""


def _mapping(loader: Loader, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
    keys: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":  # `<<: *a` puts the keys of `a` below those that are written here
            continue
        if not isinstance(key_node, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "a key must be a word or number", key_node.start_mark)
        key = str(loader.construct_object(key_node, deep=True))
        if key in keys:
            raise ConfigError(f"key {key!r} is given twice{key_node.start_mark}; keep one")
        keys.add(key)
    return {str(k): v for k, v in yaml.SafeLoader.construct_mapping(loader, node, deep=True).items()}


Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
)

for letter in "oOyYnN":
    known = Loader.yaml_implicit_resolvers[letter]
    Loader.yaml_implicit_resolvers[letter] = [(tag, word) for tag, word in known if tag != "tag:yaml.org,2002:bool"]


def read_yaml(text: str, name: str) -> Any:
    """Return the values of a YAML text. Raises: ConfigError with `name` and the line."""
    try:
        loader = Loader(text)
        loader.name = name
        return loader.get_single_data()
    except RecursionError:
        raise ConfigError(f"{name}: lists and mappings are too deep in one another; write fewer brackets") from None
    except ConfigError as exc:
        raise ConfigError(f"{name}: {exc}") from exc
    except yaml.YAMLError as exc:
        raise ConfigError(f"{name} is not YAML: {' '.join(str(exc).split())}") from exc


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the keys and values of a YAML file. Raises: ConfigError naming it."""
    try:
        tree = read_yaml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}") from exc
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} must hold keys and values, got {type(tree).__name__}")
    return tree


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `over`: mappings are merged, everything else is replaced.

    A mapping with another `name`, e.g. `algorithm`, replaces the old one as a whole.
    """
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            other = "name" in value and old.get("name", value["name"]) != value["name"]
            out[key] = dict(value) if other else merge(old, value)
        else:
            out[key] = value
    return out
