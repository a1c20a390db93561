"""Read YAML with unique keys, numbers such as 3e-4, and a limit on the values that aliases (*name) can make."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import yaml

from verizero.pipeline.errors import ConfigError

MAX_VALUES = 100_000
"""Maximum of values in a text with its aliases written out. The longest shipped recipe has a few hundred."""
MAX_DEPTH = 100
"""Maximum nesting of lists and mappings."""


class _LimitedLoader:
    """Refuses a text with too many values before they are made: nested aliases can stand for any number of values."""

    name = "the text"
    """Name of the text in errors; the C parser has no such attribute."""

    def construct_document(self, node: yaml.Node) -> Any:
        """Return the values, if they are not too many."""
        if _num_values(node, {}, 0) > MAX_VALUES:
            raise ConfigError(
                f"{self.name} has more than {MAX_VALUES:,} values with its aliases (*name) written out; write fewer "
                "aliases of aliases, and put rows of data into files of their own"
            )
        return super().construct_document(node)  # type: ignore[misc]


class SlowLoader(_LimitedLoader, yaml.SafeLoader):
    """Safe YAML where a repeated key is an error, and 3e-4 is a number (YAML 1.1 reads it as text)."""


_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # missing if PyYAML was built without libyaml


class FastLoader(_LimitedLoader, _Parser):  # type: ignore[misc]
    """The same with the C parser, seven times as fast. Its errors do not show the line or the names of aliases."""


def _num_values(node: yaml.Node, counts: dict[int, int], depth: int) -> int:
    """Return the number of values of a node with its aliases written out. `counts`: results for nodes, by id."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) in counts:
        if counts[id(node)] == 0:  # still being counted: it contains itself
            raise ConfigError("an alias is inside its own anchor; write the value out")
        return counts[id(node)]
    if depth == MAX_DEPTH:
        raise _too_deep()
    counts[id(node)] = 0
    children = [child for pair in node.value for child in pair] if isinstance(node, yaml.MappingNode) else node.value
    counts[id(node)] = 1 + sum(_num_values(child, counts, depth + 1) for child in children)
    return counts[id(node)]


def _too_deep() -> ConfigError:
    return ConfigError(f"lists and mappings are in one another more than {MAX_DEPTH} deep; write fewer brackets")


def _mapping(loader: SlowLoader | FastLoader, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
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


for _kind in (SlowLoader, FastLoader):
    _kind.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
        list("-+0123456789."),
    )


def read_yaml(text: str, name: str) -> Any:
    """Return the values of a YAML text; errors name `name` and the line.

    Raises: yaml.YAMLError; ConfigError for a key given twice, and for a text of too many values or too deep ones.
    """
    try:
        with suppress(yaml.YAMLError, ConfigError):
            return yaml.load(text, FastLoader)
        loader = SlowLoader(text)  # slower, but its errors show the line
        loader.name = name
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except RecursionError:
        raise _too_deep() from None
