"""Find recipes by name, and load them with changed fields, as forms and commands request them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from verizero.pipeline.config.load import RECIPES, load_recipe
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.yaml_reader import read_mapping
from verizero.pipeline.errors import ConfigError, boundary
from verizero.pipeline.near import did_you_mean, near_path

OTHER_FOLDERS = ("data", "suites")
"""Folders of RECIPES that have no recipes, but column mappings and suites."""
SETTINGS = re.compile(r"(?:--set (?:'[^']*'|[\w./\[\]]+=(?:\{[^}]*\}|\[[^\]]*\]|[^\s,;]+)) ?)+")
"""Command-line options in a remedy, which words may follow."""
Resume = Literal["auto", "never", "must", "changed"]
"""auto: continue the run of that name, or begin one. never: fail if there is one. must: fail if there is none.
changed: as auto, and a stage that trained with a verifier or environment whose file changed continues with the new one.
"""


@dataclass(frozen=True)
class Request:
    """A loaded and checked recipe, and how it was requested."""

    path: Path
    overrides: tuple[str, ...]
    config: RunConfig

    @property
    def base_dir(self) -> Path:
        """The folder that paths in the recipe are relative to."""
        return self.path.resolve().parent

    def train_arguments(self, resume: Resume) -> list[str]:
        """Return the arguments of the `train` command that runs it as one rank of a group, without Prefect."""
        changes = [word for change in self.overrides for word in ("--set", change)]
        return ["train", str(self.path.resolve()), "--resume", resume, *changes, "--no-prefect"]

    def with_overrides(self, *overrides: str) -> Request:
        """Return the request with more overrides, which win over its own. Raises: ConfigError."""
        return read_request(self.path, (*self.overrides, *overrides))


def run_folder(config: RunConfig, base: Path | None = None) -> Path:
    """Return the run's folder, under the recipe's `output` (relative to the working folder)."""
    return (base or Path.cwd()) / config.output / config.name


def find_recipe(name: str, user_folder: Path | None = None) -> Path:
    """Return a recipe's file: the path `name`, or that name in `user_folder` or configs/. Raises: ConfigError."""
    if Path(name).is_file():
        return Path(name)
    without_suffix = name.removesuffix(".yaml")
    for folder in (user_folder, RECIPES):
        if folder is not None and (folder / f"{without_suffix}.yaml").is_file():
            return folder / f"{without_suffix}.yaml"
    known = recipe_names(user_folder)
    by_last_part = [n for n in known if n.endswith(f"/{without_suffix}")]
    near_recipe = f"did you mean {' or '.join(by_last_part)}?" if by_last_part else did_you_mean(without_suffix, known)
    near_file = near_path(f"{without_suffix}.yaml", pattern="*.yaml")
    hint = (near_file or near_recipe) if without_suffix != name else (near_recipe or near_file)
    hint = hint or f"give a YAML file, or one of {', '.join(known)}"
    raise ConfigError(f"recipe={name!r} is no file here, and no recipe of that name is shipped; {hint}")


def recipe_and_folder(name: str, overrides: Sequence[str] = ()) -> tuple[RunConfig, Path]:
    """Return the recipe that `find_recipe` finds, with `a.b=c` overrides, and its folder. Raises: ConfigError."""
    path = find_recipe(name)
    return load_recipe(path, overrides), path.resolve().parent


def with_model(model: str | Path) -> list[str]:
    """Return the overrides by which a recipe begins with `model`: a folder, a GGUF file or a hub id."""
    return [f"model.path={json.dumps(str(model))}", "model.create=null"]


def without_trackers(config: RunConfig) -> RunConfig:
    """Return the recipe without trackers: a try or an evaluation is no run that a tracker should show."""
    return config.model_copy(update={"report": config.report.model_copy(update={"trackers": ()})})


def recipe_names(user_folder: Path | None = None) -> list[str]:
    """Return the names that `find_recipe` knows, without suffix: demo, those of `user_folder`, then the shipped ones.

    A file of the user's folder that is no recipe (no mapping, or neither `model` nor `extends`) is left out.
    """
    names = ["demo"]
    if user_folder is not None and user_folder.is_dir():
        files = (p for p in sorted(user_folder.rglob("*.yaml")) if not p.resolve().is_relative_to(RECIPES))
        names += [_recipe_name(p, user_folder) for p in files if _may_be_recipe(p, user_folder)]
    shipped = [_recipe_name(p, RECIPES) for p in sorted(RECIPES.rglob("*.yaml"))]
    return list(dict.fromkeys([*names, *(n for n in shipped if n.split("/")[0] not in OTHER_FOLDERS)]))


def read_request(path: Path, overrides: Sequence[str] = ()) -> Request:
    """Load the recipe at `path` with `a.b=c` overrides. Raises: ConfigError naming file, field, value and remedy."""
    return Request(path, tuple(overrides), load_recipe(path, overrides))


def request_of(
    recipe: str,
    *,
    user_folder: Path | None = None,
    rounds: int | None = None,
    stages: Sequence[str] | None = None,
    run_name: str | None = None,
    overrides: str | Mapping[str, Any] | None = None,
) -> Request:
    """Return the request that the fields of a form ask for. An empty field leaves the recipe unchanged.

    `overrides`: values by dotted name, e.g. {"rl.group_size": 8}, or a text with a.b=c, as `settings_in` reads it.
    Raises: ConfigError naming the field, its value and the remedy.
    """
    path = find_recipe(str(recipe), user_folder)
    changes = override_texts("overrides", overrides or {})
    if rounds is not None:
        if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
            raise ConfigError(
                f"rounds must be a whole number >= 1, got {rounds!r}; leave it empty for the recipe's own"
            )
        changes.append(f"rl.rounds={rounds}")
    if stages:
        selected = load_recipe(path, changes, stages).stages
        changes.append(f"stages={json.dumps([s.model_dump() for s in selected])}")
    if run_name:
        changes.append(f"name={json.dumps(run_name)}")
    return read_request(path, changes)


def settings_in(field: str, text: str) -> list[str]:
    """Return the settings a.b=c of a command line, with --set or without, or of a line with a remedy.

    Raises: ConfigError, which calls the text `field`, for other words; those around a remedy are left out.
    """
    text = text.rpartition("Remedy:")[2].strip()
    options = SETTINGS.match(text)
    if options is not None and "=" not in text[options.end() :]:
        text = options[0]
    with boundary(ConfigError, f"{field}: {text!r}"):  # a quote without its end
        settings = [w.removeprefix("--set=") for w in shlex.split(text) if w != "--set"]
    if wrong := next((s for s in settings if "=" not in s), None):
        raise ConfigError(f"{field}: {wrong!r} is no setting a.b=c; keep only those, and quote a value with blanks")
    return settings


def override_texts(field: str, values: str | Mapping[str, Any]) -> list[str]:
    """Return a text's settings, or values by dotted name, as texts `a.b=c`. Raises: ConfigError that names `field`."""
    if isinstance(values, str):
        return settings_in(field, values)
    if not isinstance(values, Mapping):
        raise ConfigError(f'{field} must be an object of dotted names, e.g. {{"rl.group_size": 8}}, got {values!r}')
    texts = []
    for name, value in values.items():
        try:
            texts.append(f"{name}={json.dumps(value)}")
        except (TypeError, ValueError) as exc:
            raise ConfigError(
                f"{name}={value!r:.80} is {type(value).__name__}, which a recipe cannot hold; give a number, a text, a "
                "list or a dict"
            ) from exc
    return texts


def _recipe_name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).with_suffix("").as_posix()


def _may_be_recipe(path: Path, folder: Path) -> bool:
    if any(
        part.startswith(".") or part in ("runs", "campaigns", "registry") for part in path.relative_to(folder).parts
    ):
        return False
    try:
        return bool({"model", "extends"} & read_mapping(path).keys())
    except ConfigError:
        return False
