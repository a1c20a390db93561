"""Recipes by name, and requests of forms and commands: a recipe with some fields changed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.yaml_reader import read_yaml
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.near import did_you_mean, near_path

RECIPES = Path(__file__).resolve().parents[2] / "configs"
"""Folder of the recipes that come with the project."""
NO_RECIPES = ("data",)
"""Folders of RECIPES that hold something else: column mappings."""
Resume = Literal["auto", "never", "must"]
"""auto: continue a run of the name or begin one. never: fail if there is one. must: fail if there is none."""


@dataclass(frozen=True)
class Request:
    """A requested recipe, loaded and checked."""

    path: Path
    overrides: tuple[str, ...]
    config: RunConfig

    @property
    def base_dir(self) -> Path:
        """The folder that paths in the recipe are relative to."""
        return self.path.resolve().parent

    def words(self, resume: Resume) -> list[str]:
        """The words of a `train` command that runs it without an orchestrator, for each rank of a group."""
        changes = [word for change in self.overrides for word in ("--set", change)]
        return ["train", str(self.path.resolve()), "--resume", resume, *changes, "--no-prefect"]

    def changed(self, *overrides: str) -> Request:
        """The same with further overrides, which win. Raises: ConfigError."""
        return read_request(self.path, (*self.overrides, *overrides))


def run_folder(config: RunConfig, base: Path | None = None) -> Path:
    """Return the run's folder, under the recipe's `output` (relative to the working folder)."""
    return (base or Path.cwd()) / config.output / config.name


def find_recipe(name: str, own: Path | None = None) -> Path:
    """The recipe at path `name`; else that of the folder `own`; else the shipped one of that name.

    Raises: ConfigError saying which names are near.
    """
    if Path(name).is_file():
        return Path(name)
    plain = name.removesuffix(".yaml")
    for folder in (own, RECIPES):
        if folder is not None and (folder / f"{plain}.yaml").is_file():
            return folder / f"{plain}.yaml"
    known = recipe_names(own)
    by_last_part = [n for n in known if n.endswith(f"/{plain}")]
    shipped = f"did you mean {' or '.join(by_last_part)}?" if by_last_part else did_you_mean(plain, known)
    file = near_path(f"{plain}.yaml", pattern="*.yaml")
    hint = (file or shipped) if plain != name else (shipped or file)
    hint = hint or f"give a YAML file, or one of {', '.join(known)}"
    raise ConfigError(f"recipe={name!r} is no file here, and no recipe of that name is shipped; {hint}")


def recipe_names(own: Path | None = None) -> list[str]:
    """The names that `find_recipe` knows: the user's own first, then the shipped ones; no path, no suffix.

    A file of the user's folder that is no recipe (no mapping, or neither `model` nor `extends`) is left out.
    """
    names: list[str] = []
    if own is not None and own.is_dir():
        names += [_name(p, own) for p in sorted(own.rglob("*.yaml")) if _may_be_recipe(p, own)]
    shipped = [_name(p, RECIPES) for p in sorted(RECIPES.rglob("*.yaml"))]
    return list(dict.fromkeys([*names, *(n for n in shipped if n.split("/")[0] not in NO_RECIPES)]))


def read_request(path: Path, overrides: Sequence[str] = ()) -> Request:
    """The recipe at `path` with `a.b=c` overrides. Raises: ConfigError naming file, field, value and remedy."""
    return Request(path, tuple(overrides), load_recipe(path, overrides))


def asked_for(
    recipe: str,
    *,
    own: Path | None = None,
    rounds: int | None = None,
    stages: Sequence[str] | None = None,
    run_name: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Request:
    """Return the request of a form. Empty fields leave the recipe unchanged.

    `overrides` are values by dotted name, {"rl.group_size": 8}.
    Raises: ConfigError naming the field, its value and the remedy.
    """
    path = find_recipe(str(recipe), own)
    changes = _as_text("overrides", overrides or {})
    if rounds is not None:
        if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
            raise ConfigError(
                f"rounds must be a whole number >= 1, got {rounds!r}; leave it empty for the recipe's own"
            )
        changes.append(f"rl.rounds={rounds}")
    if stages:
        chosen = load_recipe(path, changes, stages).stages
        changes.append(f"stages={json.dumps([s.model_dump() for s in chosen])}")
    if run_name:
        changes.append(f"name={json.dumps(run_name)}")
    return read_request(path, changes)


def _as_text(field: str, values: Mapping[str, Any]) -> list[str]:
    if not isinstance(values, Mapping):
        raise ConfigError(f'{field} must be an object of dotted names, e.g. {{"rl.group_size": 8}}, got {values!r}')
    return [f"{name}={json.dumps(value)}" for name, value in values.items()]


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).with_suffix("").as_posix()


def _may_be_recipe(path: Path, folder: Path) -> bool:
    if any(
        part.startswith(".") or part in ("runs", "campaigns", "registry") for part in path.relative_to(folder).parts
    ):
        return False
    try:
        tree = read_yaml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ConfigError):
        return False
    return isinstance(tree, dict) and bool({"model", "extends"} & tree.keys())
