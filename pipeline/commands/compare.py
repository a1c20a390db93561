"""`verizero compare`: train recipes from the same start, with the same budget of tokens, and show them on one page."""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from verizero.pipeline.commands.arguments import CONTINUES, add_overrides
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.recipes import find_recipe, with_model
from verizero.pipeline.config.rl import RlConfig
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.stages import Stage
from verizero.pipeline.errors import ConfigError, RunError
from verizero.pipeline.host.child import end, import_path, module_command, start
from verizero.pipeline.host.disk import write_atomic
from verizero.pipeline.shown import show

SAME = ("stages", "model", "data", "rollout", "scoring", "evaluation")
"""Sections that must be equal in compared recipes, so that only their algorithms are compared."""
RECORD = "compare.json"


def add(commands: Any) -> None:
    command = commands.add_parser("compare", help="recipes side by side from the same start, on one page")
    command.add_argument("recipes", nargs="+", help="YAML files, or names of recipes in configs/")
    add_overrides(command)
    command.add_argument("--seeds", type=int, default=3, help="runs of each recipe; default: 3")
    command.add_argument(
        "--from", dest="start", type=Path, help="a Hugging Face folder to start from; default: trained by SFT, per seed"
    )
    command.add_argument("--tokens", type=int, help="generated tokens of each run; default: as many as its rounds take")
    command.add_argument("--folder", type=Path, default=Path("runs/compare"), help="default: runs/compare")
    command.set_defaults(run=run, after_stop=CONTINUES)


def run(arguments: argparse.Namespace) -> None:
    """Train the recipes, and print the table and the page's path."""
    from verizero.pipeline.report.compare_page import text_table

    rows = compare(
        [find_recipe(name) for name in arguments.recipes],
        arguments.folder,
        overrides=arguments.set,
        seeds=arguments.seeds,
        start=arguments.start,
        max_tokens=arguments.tokens,
    )
    show(text_table(rows))
    show(f"page: {arguments.folder / 'compare.html'}")


def compare(
    recipes: Sequence[Path],
    folder: Path,
    *,
    overrides: Sequence[str] = (),
    seeds: int = 3,
    start: Path | None = None,
    max_tokens: int | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Run each recipe with `seeds` seeds; return the results by recipe, and write compare.json and compare.html.

    Runs start from `start` (a Hugging Face folder), or from the model that the stages before RL train once a seed. RL
    generates at most `max_tokens` tokens, or as many as its rounds take. Each run is its own process. Finished runs
    are not repeated; a killed run continues from its checkpoint.

    Raises: ConfigError for recipes that differ in more than their algorithm; RunError naming a run that failed.
    """
    from verizero.pipeline.report.compare_page import build_compare_page

    if seeds < 1:
        raise ConfigError(f"seeds must be >= 1, got {seeds}")
    if max_tokens is not None and max_tokens < 1:
        raise ConfigError(f"tokens must be >= 1, got {max_tokens}; leave it out to take as many as the rounds do")
    if start is not None and not (start / "config.json").is_file():
        raise ConfigError(f"start={str(start)!r} is not a model's folder; give one with config.json, e.g. runs/x/model")
    configs = {path: load_recipe(path, overrides) for path in recipes}
    check_comparable(list(configs.values()))
    folder.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {"max_tokens": max_tokens, "order": [c.name for c in configs.values()], "runs": []}
    # Runs of an earlier, interrupted call.
    before = {tuple(r["run"]): r for r in _recorded(folder, max_tokens)}
    for seed in range(seeds):
        # Made from the first recipe: `check_comparable` has made sure that all would make the same.
        begin = start if start is not None else _made_start(next(iter(configs.items())), folder, seed, overrides, say)
        for path, config in configs.items():
            changes = [*overrides, f"name={_name(config, seed)}", f"output={folder.resolve()}"]
            changes += [f"seed={config.seed + seed}", _stages(config.stages[-1:]), *with_model(begin.resolve())]
            changes.append("evaluation.before_training=true")
            changes += [] if max_tokens is None else [f"rl.max_tokens={max_tokens}"]
            run = (config.name, seed)
            if run not in before:
                say(f"{config.name}, seed {config.seed + seed}")
                _trained(path, changes)
                before[run] = {"run": list(run), "folder": _name(config, seed)}
            record["runs"].append(before[run])
            # After each run, so that an interruption loses one run at most.
            write_atomic(folder / RECORD, json.dumps(record, indent=1).encode())
    return build_compare_page(folder)


def check_comparable(configs: Sequence[RunConfig]) -> None:
    """Raise ConfigError for recipes that cannot be compared, naming the first section in which they differ."""
    if len(configs) < 1:
        raise ConfigError("compare needs at least one recipe")
    names = [c.name for c in configs]
    if len(set(names)) < len(names):
        raise ConfigError(f"compared recipes need different names, got {', '.join(names)}; set name in each")
    for config in configs:
        stages = config.sections_of(RlConfig)
        if not stages:
            raise ConfigError(f"recipe {config.name!r} has no RL stage; there is nothing to compare")
        if list(stages) != [config.stage_names[-1]]:
            raise ConfigError(
                f"recipe {config.name!r} has the stages {', '.join(config.stage_names)}; compared recipes have one RL "
                "stage, the last"
            )
        if not config.data.evaluation:
            raise ConfigError(f"recipe {config.name!r} has no data.evaluation; runs are compared on held-out prompts")
        for section in (*SAME, *(s.kind for s in config.stages[:-1])):
            ours, theirs = getattr(configs[0], section), getattr(config, section)
            if section == "scoring":  # components may differ: they are rewards, and part of what is compared
                ours, theirs = (x.model_copy(update={"components": ()}) for x in (ours, theirs))
            if ours != theirs:
                raise ConfigError(
                    f"recipes {configs[0].name!r} and {config.name!r} differ in {section!r}, so a comparison would "
                    "not be of their algorithms; make the section equal in both"
                )


def _recorded(folder: Path, max_tokens: int | None) -> list[dict[str, Any]]:
    path = folder / RECORD
    if not path.is_file():
        return []
    record = json.loads(path.read_text())
    if record["max_tokens"] != max_tokens:
        raise RunError(
            f"{folder} has a comparison with max_tokens {record['max_tokens']}, but {max_tokens} is requested; "
            "use another folder"
        )
    runs: list[dict[str, Any]] = record["runs"]
    return runs


def _name(config: RunConfig, seed: int) -> str:
    return f"{config.name}-{seed}"


def _stages(stages: Sequence[Stage]) -> str:
    """Return the override that keeps only these stages of a recipe."""
    return f"stages={json.dumps([s.model_dump() for s in stages])}"


def _made_start(
    recipe: tuple[Path, RunConfig], folder: Path, seed: int, overrides: Sequence[str], say: Callable[[str], None]
) -> Path:
    """Return the model that the stages before RL train with that seed, or without such stages the recipe's model."""
    path, config = recipe
    stages = config.stages[:-1]
    if not stages:
        if config.model.path is None:
            raise ConfigError("a recipe of RL alone needs a model to start from; set model.path, or give --from")
        return Path(config.model.path)
    made = folder / f"start-{seed}" / "model"
    # The final model is written whole or not at all, so a folder means a finished run.
    if not made.is_dir():
        say(f"{', '.join(s.name for s in stages)}, seed {config.seed + seed}")
        changes = [f"name=start-{seed}", f"output={folder.resolve()}", f"seed={config.seed + seed}"]
        _trained(path, [*overrides, *changes, _stages(stages), "evaluation.before_training=false"])
    return made


def _trained(path: Path, overrides: Sequence[str]) -> None:
    """Run the recipe in a process of its own. Raises: RunError if it fails."""
    command = [*module_command("verizero.pipeline.cli"), "train", str(path), "--no-prefect"]
    for override in overrides:
        command += ["--set", override]
    child = start(command, import_path(), dies=True, stdout=subprocess.DEVNULL)
    try:
        status = child.wait()
    except BaseException:
        end(child)
        raise
    if status != 0:
        raise RunError(f"the run of {path} failed with status {status}; its own message is above")
