"""docs/recipes.md, made from the models that check a recipe: `python docs/make_recipes.py` writes it."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from verizero.pipeline.config.run import RunConfig

PAGE = Path(__file__).with_name("recipes.md")

OPENING = """# Recipes

A recipe is one YAML file that decides everything a run does: `verizero train my.yaml`. Two runs of equal recipes and
seeds give the same bytes. Shipped ones are in `configs/`; each opens with what it shows and the hardware it needs.

- `extends: base.yaml` (or a list) lays this file over another of this file's folder, or over a shipped one by its name,
  `extends: demo`. Mappings join, all else is replaced; a mapping with another `name` replaces the whole, so parameters
  of one algorithm never leak into another.
- `--set a.b=c` overrides one field, once or many times: `--set rl.steps_per_round=20`,
  `--set data.train.0.limit=100`, `--set 'rl.algorithm={name: dapo, clip_high: 0.3}'`. The value is YAML.
- `null` means off or absent. An unknown key, a wrong value or sections that do not fit are refused before anything
  starts, with the field, the value and what to do. A key given twice is refused; `3e-4` is a number.
- The resolved recipe, with every default, is written to `recipe.yaml` in the run's folder and loads to the same run.
- `verizero check my.yaml` prints the objective of its algorithm as a formula with its numbers.

The tables below are made from the models that check a recipe (`make docs`). A field without a default must be given.
"""


def page() -> str:
    """The whole page: the opening, then a table for each section, outer ones first."""
    parts = [OPENING]
    todo: list[tuple[str, type[BaseModel]]] = [("", RunConfig)]
    seen: dict[type[BaseModel], str] = {}
    while todo:
        path, model = todo.pop(0)
        if model in seen:
            continue
        seen[model] = path
        parts.append(section(path, model, seen))
        inner = [(f"{path}.{name}" if path else name, field.annotation) for name, field in model.model_fields.items()]
        todo = [*((p, m) for p, a in inner for m in models_in(a)), *todo]
    return "\n".join(parts)


def section(path: str, model: type[BaseModel], seen: Mapping[type[BaseModel], str]) -> str:
    """Heading, first line of the docstring, and the table of fields of one section."""
    text = (inspect.getdoc(model) or "").split("\n\n")[0].replace("\n", " ")
    rows = [row(name, field, seen) for name, field in model.model_fields.items()]
    head = f"## {f'`{path}`' if path else 'The whole'}"
    return "\n".join([head, "", text, "", "| field | values | default | |", "|---|---|---|---|", *rows, ""])


def row(name: str, field: FieldInfo, seen: Mapping[type[BaseModel], str]) -> str:
    """One line of a table; a section that has its table already, at `seen`, is pointed to."""
    above = [f"as `{seen[model]}`" for model in models_in(field.annotation) if model in seen]
    values = [words(field.annotation), *bounds(field)]
    cells = [f"`{field.alias or name}`", ", ".join([*values, *above]), default(field), field.description or ""]
    return (
        "| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;").replace("\n", "\\n") for cell in cells) + " |"
    )


def bounds(field: FieldInfo) -> list[str]:
    """Return the limits of a field, as signs."""
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "min_length": "at least"}
    return [f"{sign} {getattr(m, name):g}" for m in field.metadata for name, sign in signs.items() if hasattr(m, name)]


def default(field: FieldInfo) -> str:
    """The default as YAML writes it; a section's is in its own table."""
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "**given**"
    if isinstance(value, BaseModel):
        changed: Any = value.model_dump(mode="json", exclude_defaults=True)
        if not isinstance(changed, dict):
            return f"`{scalar(changed)}`"
        return ", ".join(f"{k}: {scalar(v)}" for k, v in changed.items()) if changed else "its defaults"
    return f"`{scalar(value)}`"


def scalar(value: Any) -> str:
    """A plain value as YAML."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(scalar(v) for v in value)}]"
    if isinstance(value, BaseModel):
        return scalar(value.model_dump(mode="json"))
    return str(value)


def words(annotation: Any) -> str:
    """A type in a reader's words."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return words(inner[0])
    if origin is Literal:
        return " or ".join(f"`{a}`" for a in inner)
    if origin in (Union, types.UnionType):
        return " or ".join("null" if a is type(None) else words(a) for a in inner)
    if origin is tuple:
        return f"list of {words(inner[0])}" if inner[-1] is Ellipsis else f"[{', '.join(words(a) for a in inner)}]"
    if origin is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return {str: "text", int: "integer", float: "number", bool: "true or false"}.get(annotation, str(annotation))


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a type holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in models_in(inner)]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
