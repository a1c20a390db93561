"""Reading YAML: strict keys, numbers such as 3e-4, and a bound on what aliases (*name) make of a short text."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import yaml

from verizero.pipeline.errors import ConfigError

MOST_VALUES = 100_000
"""Values of a text with its aliases written out; the longest shipped recipe has a few hundred."""
MOST_DEPTH = 100
"""Lists and mappings in one another."""


class _Bounded:
    """Refuses a text before its values are made: an alias of aliases of aliases stands for any number of them."""

    name = "the text"
    """The name of the text in errors; the parser in C has none of its own."""

    def construct_document(self, node: yaml.Node) -> Any:
        """Return the values, if they are not too many."""
        if _num_values(node, {}, 0) > MOST_VALUES:
            raise ConfigError(
                f"{self.name} has more than {MOST_VALUES:,} values with its aliases (*name) written out; write fewer "
                "aliases of aliases, and put rows of data into files of their own"
            )
        return super().construct_document(node)  # type: ignore[misc]


class SlowLoader(_Bounded, yaml.SafeLoader):
    """Safe YAML in which a key given twice is an error, and 3e-4 is a number (YAML 1.1 reads it as text)."""


_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML that was built without libyaml lacks it


class FastLoader(_Bounded, _Parser):  # type: ignore[misc]
    """The loader above by a parser in C, seven times as fast. Its errors lack the line's text and names of aliases."""


def _num_values(node: yaml.Node, known: dict[int, int], depth: int) -> int:
    """Return the number of values of a node with its aliases written out. `known`: those of nodes that are counted."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) in known:
        if known[id(node)] == 0:  # its own values are being counted
            raise ConfigError("an alias is inside its own anchor; write the value out")
        return known[id(node)]
    if depth == MOST_DEPTH:
        raise _too_deep()
    known[id(node)] = 0
    inner = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
    known[id(node)] = 1 + sum(_num_values(part, known, depth + 1) for part in inner)
    return known[id(node)]


def _too_deep() -> ConfigError:
    return ConfigError(f"lists and mappings are in one another more than {MOST_DEPTH} deep; write fewer brackets")


def _mapping(loader: SlowLoader | FastLoader, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":  # `<<: *a` puts the keys of `a` below those that are written here
            continue
        if not isinstance(key_node, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "a key must be a word or number", key_node.start_mark)
        key = str(loader.construct_object(key_node, deep=True))
        if key in seen:
            raise ConfigError(f"key {key!r} is given twice{key_node.start_mark}; keep one")
        seen.add(key)
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
