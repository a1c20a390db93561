"""Merging of trees of values: a recipe over the recipe that it extends, a stage over its kind's section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
