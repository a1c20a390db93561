"""Load recipes from YAML, with `extends` and overrides `a.b=c`. Errors name field, value and remedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from verizero.pipeline.config.other_names import NEAR, SAME
from verizero.pipeline.config.run import RunConfig, with_plugins
from verizero.pipeline.config.yaml_reader import merge, read_mapping, read_yaml
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.near import did_you_mean, near_path

RECIPES = Path(__file__).resolve().parents[2] / "configs"
"""Folder of the recipes that come with the project."""
Tree = dict[str, Any]


def load_recipe(path: Path | str, overrides: Sequence[str] = (), stages: Sequence[str] = ()) -> RunConfig:
    """Load the recipe at `path` with `a.b=c` overrides, and only `stages` if they are named. Raises: ConfigError."""
    base = Path(path).resolve().parent
    config = parse(read_tree(Path(path)), overrides, source=str(path), base=base)
    return only_stages(config, stages, base) if stages else config


def only_stages(config: RunConfig, names: Sequence[str], base: Path | None = None) -> RunConfig:
    """Return the recipe with only those stages, in that order; `base` as in `parse`.

    A name is that of a stage, or of a section that defines a kind of stage. Raises: ConfigError for an unknown name,
    or for a stage that needs the result of a stage that is left out.
    """
    stages: dict[str, Any] = {k: k for k in config.kinds() if getattr(config, k) is not None}
    stages |= {s.name: s.model_dump() for s in config.stages}
    for name in names:
        if name not in stages:
            raise ConfigError(f"the recipe has no stage {name!r}; it has {', '.join(config.stage_names)}")
    tree = config.model_dump(mode="json", exclude_unset=True)
    tree["stages"] = [stages[name] for name in names]
    return parse(tree, source=f"stages {', '.join(names)}", base=base)


def parse(tree: Tree, overrides: Sequence[str] = (), source: str = "recipe", base: Path | None = None) -> RunConfig:
    """Return the recipe of a tree of plain values, with overrides; the tree is not changed.

    Paths in parameters of verifiers are relative to `base`, by default the working folder.

    Raises: ConfigError naming the source, field, value and remedy.
    """
    try:
        tree = _without_aliases(tree)
    except RecursionError as exc:
        raise ConfigError(f"{source}: an alias is inside its own anchor; write the value out") from exc
    for text in overrides:
        _override(tree, text)
    try:
        recipe = with_plugins(_possible_kinds(tree))
        return recipe.model_validate(tree, context={"base": base})
    except ValidationError as exc:
        raise ConfigError(f"{source}: " + "; ".join(_explain(e, recipe) for e in _causes(exc))) from exc
    except ConfigError as exc:
        raise ConfigError(f"{source}: {exc}") from exc


def _causes(exc: ValidationError) -> list[ErrorDetails]:
    """Return the errors without those that follow from others: a list without its refused items is "too short"."""
    errors = exc.errors()
    places = [e["loc"] for e in errors]
    return [
        e
        for e in errors
        if e["type"] != "too_short" or not any(p != e["loc"] and p[: len(e["loc"])] == e["loc"] for p in places)
    ]


def read_tree(path: Path, _chain: tuple[Path, ...] = ()) -> Tree:
    """Return the YAML at `path`, merged over the recipes that it `extends`: paths from its folder, or shipped names."""
    path = path.resolve()
    if path in _chain:
        raise ConfigError(f"{path} extends itself through {' -> '.join(p.name for p in _chain)}; break the circle")
    if not path.is_file():
        raise ConfigError(f"no recipe at {path}; {near_path(path, 'name a YAML file', '*.yaml')}")
    tree = read_mapping(path)
    parents = tree.pop("extends", None) or []
    parents = [parents] if isinstance(parents, str) else parents
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise ConfigError(f"{path}: extends must name a recipe or a list of them, got {parents!r}")
    merged: Tree = {}
    for parent in parents:
        own, shipped = path.parent / parent, RECIPES / f"{parent.removesuffix('.yaml')}.yaml"
        merged = merge(merged, read_tree(shipped if shipped.is_file() and not own.is_file() else own, (*_chain, path)))
    return merge(merged, tree)


def dump(config: RunConfig) -> str:
    """Return the whole recipe as YAML, which loads to the same recipe."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)


def _without_aliases(value: Any) -> Any:
    """Return a copy without shared values (YAML aliases), so that an override changes one field only."""
    if isinstance(value, dict):
        return {key: _without_aliases(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_aliases(item) for item in value]
    return value


def _possible_kinds(tree: Tree) -> Iterator[str]:
    """Yield all names of a recipe that may be kinds of stages: its keys, and the kinds of its stages."""
    yield from (key for key in tree if isinstance(key, str))
    stages = tree.get("stages")
    for stage in stages if isinstance(stages, list) else []:
        kind = stage.get("kind", stage.get("name")) if isinstance(stage, dict) else stage
        if isinstance(kind, str):
            yield kind


def _override(tree: Tree, text: str) -> None:
    name, equals, raw = text.partition("=")
    keys = name.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"override {text!r} must read a.b=value, e.g. rl.steps_per_round=20")
    value = read_yaml(raw, f"override {text[:200]!r}: {raw[:200]!r}")
    container: Any = tree
    for depth, key in enumerate(keys):
        if not isinstance(container, (dict, list)):
            raise ConfigError(f"override {text!r}: {'.'.join(keys[:depth])} is {container!r}, it has no keys")
        item_key: Any = _index(container, key, text) if isinstance(container, list) else key
        if depth == len(keys) - 1:
            container[item_key] = value
        elif isinstance(container, dict) and container.get(item_key) is None:
            container[item_key] = {}
        container = container[item_key]


def _index(items: list[Any], key: str, text: str) -> int:
    if not key.isdecimal() or int(key) >= len(items):
        raise ConfigError(f"override {text!r}: {key!r} must be an index below {len(items)}")
    return int(key)


def _explain(error: Any, recipe: type[RunConfig]) -> str:
    """Return one validation error in words: field, value and remedy."""
    location = ".".join(str(x) for x in error["loc"])
    if error["type"] == "extra_forbidden":
        *parents, key = error["loc"]
        if parents in ([], ["rl"]) and (ours := (SAME | NEAR).get(str(key))):
            return f"unknown key {location!r}; write {ours} (docs/trl.md)"
        section: type[BaseModel] = recipe
        if (kind := error.get("ctx", {}).get("stage_kind")) is not None:  # at stages.0.with: a section of that kind
            section, parents = recipe.kinds()[kind], parents[3:]
        known = _fields(section, [str(p) for p in parents])
        hint = did_you_mean(str(key), known, f"known here: {', '.join(known)}")
        return f"unknown key {location!r}; {hint}"
    if error["type"] == "missing":
        return f"{location!r} is missing; add it"
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{location}: {message}" if location else message
    return f"{location}: {message}, got {error['input']!r:.200}"


def _fields(model: Any, path: list[str]) -> list[str]:
    """Return the field names of the section at `path` below `model`. List indices and union branches are skipped."""
    for key in path:
        fields = getattr(model, "model_fields", {})
        if key not in fields:
            continue
        model = _section(fields[key].annotation) or model
    return [field.alias or name for name, field in getattr(model, "model_fields", {}).items()]


def _section(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, UnionType, list, tuple):
        for argument in get_args(annotation):
            section = _section(argument)
            if section is not None:
                return section
    return None
