"""Read YAML with unique keys, numbers such as 3e-4, and a limit on the values that aliases (*name) can make."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from verizero.pipeline.errors import ConfigError

MAX_VALUES = 100_000
"""Maximum of values in a text with its aliases written out. The longest shipped recipe has a few hundred."""
MAX_DEPTH = 100
"""Maximum nesting of lists and mappings."""
TOO_DEEP = f"lists and mappings are in one another more than {MAX_DEPTH} deep; write fewer brackets"


class Loader(yaml.SafeLoader):
    """Safe YAML where a repeated key is an error, and 3e-4 is a number (YAML 1.1 reads it as text).

    A text with too many values is refused before they are made: nested aliases can stand for any number of values.
    """

    def construct_document(self, node: yaml.Node) -> Any:
        """Return the values, if they are not too many."""
        if _num_values(node, {}, 0) > MAX_VALUES:
            raise ConfigError(
                f"it has more than {MAX_VALUES:,} values with its aliases (*name) written out; write fewer aliases of "
                "aliases, and put rows of data into files of their own"
            )
        return super().construct_document(node)


def _num_values(node: yaml.Node, counts: dict[int, int], depth: int) -> int:
    """Return the number of values of a node with its aliases written out. `counts`: results for nodes, by id."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) in counts:
        if counts[id(node)] == 0:  # still being counted: it contains itself
            raise ConfigError("an alias is inside its own anchor; write the value out")
        return counts[id(node)]
    if depth == MAX_DEPTH:
        raise ConfigError(TOO_DEEP)
    counts[id(node)] = 0
    children = [child for pair in node.value for child in pair] if isinstance(node, yaml.MappingNode) else node.value
    counts[id(node)] = 1 + sum(_num_values(child, counts, depth + 1) for child in children)
    return counts[id(node)]


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


def read_yaml(text: str, name: str) -> Any:
    """Return the values of a YAML text. Raises: ConfigError with `name` and the line."""
    try:
        loader = Loader(text)
        loader.name = name
        return loader.get_single_data()
    except RecursionError:
        raise ConfigError(f"{name}: {TOO_DEEP}") from None
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
