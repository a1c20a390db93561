"""`verizero.train`: a run out of a model, data and a reward, or out of a recipe."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from verizero.pipeline.api.given import Data, Rewards
from verizero.pipeline.api.recipe import FILE, FOLDER, Wish, refuse_ranks, write_recipe
from verizero.pipeline.api.trained import TrainedRun
from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.other_names import NEAR, SAME
from verizero.pipeline.config.recipes import Resume, find_recipe, override_texts, run_folder
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import ConfigError, require_training
from verizero.pipeline.host.disk import write_atomic
from verizero.pipeline.host.openmp import REMEDY, TOO_LATE
from verizero.pipeline.near import did_you_mean
from verizero.pipeline.report.progress import Progress, for_terminal

if TYPE_CHECKING:
    from verizero.pipeline.run.callbacks import Callback


def train(
    model: str | Path | Mapping[str, Any],
    data: Data | None = None,
    *,
    reward: Rewards | None = None,
    evaluation: Data | None = None,
    name: str | None = None,
    algorithm: str | None = None,
    steps: int | None = None,
    weights: Sequence[float] | Mapping[str, float] | None = None,
    success: float | None = None,
    output: str | None = None,
    resume: Resume = "auto",
    quiet: bool = False,
    callbacks: Sequence[str | Callback] = (),
    **fields: Any,
) -> TrainedRun:
    """Train and return the run. Called again with the same arguments, it continues a run that was stopped.

    model: a folder, a hub id or a GGUF file, to be trained on `data`; or, without data, a recipe: a file, the name of a
        shipped one, or a dict.
    data: a file (JSON lines, JSON, CSV, TSV, Parquet) or a pattern of several, a folder of `save_to_disk`, a hub id, a
        list of dicts, a dict of lists, a `Dataset`, a `DataFrame` or a table of Arrow. Its columns are guessed, and the
        guess is shown.
    reward: a function in any form of docs/rewards.md, "file.py:function", the name of a verifier, or a list or dict of
        those; None: the verifier of numbers, formulas or tests, SFT for responses to imitate, DPO for pairs.
    evaluation: held-out data; None: a tenth of the questions of `data`.
    algorithm: None: "grpo" without a KL term. steps: None: 100. weights: of several rewards. success: the reward from
        which on a response counts as right. output: the folder of runs; None: "runs".
    name: the run's name; None: of model and data. resume: "auto" continues a run of this name, "never" refuses one,
        "must" refuses to start a new one, and "changed" continues one whose reward function has changed. quiet: True:
        no output.
    callbacks: functions f(event), or "file.py:function", called after each step and each evaluation; one that returns
        `vz.STOP` ends the run. They are no part of the recipe.
    fields: the settings that docs/python.md lists, such as learning_rate=1e-5 or num_generations=8, and any field of a
        recipe by its dotted name, `**{"rl.group_size": 4}`.

    Raises: ConfigError, DataError before training, with the argument and the remedy; else what the run raises.
    """
    arguments = {
        "reward": reward, "evaluation": evaluation, "algorithm": algorithm, "steps": steps, "weights": weights,
        "success": success, "output": output, "name": name, **fields,
    }  # fmt: skip
    with asked_run(model, data, arguments, quiet) as asked:
        return run_recipe(asked.path, asked.overrides, resume, asked.progress, callbacks)


WISHES = ("reward", "evaluation", "algorithm", "steps", "weights", "success", "output", "name")
"""Arguments of `train` that say what a recipe is made of; all others are its fields."""


@dataclass(frozen=True, slots=True)
class AskedRun:
    """The recipe of a run that was asked for from Python, and where it is shown."""

    path: Path
    overrides: list[str]
    progress: Progress


@contextmanager
def asked_run(
    model: str | Path | Mapping[str, Any], data: Data | None, arguments: Mapping[str, Any], quiet: bool
) -> Iterator[AskedRun]:
    """Yield the recipe that is named, or the one that is made of a model and data, and show what was guessed.

    `arguments`: the other arguments of `train` by name, its fields among them.
    """
    asked = {name: arguments[name] for name in WISHES if arguments.get(name) is not None}
    fields = {name: value for name, value in arguments.items() if name not in WISHES}
    name = asked.get("name")
    _refuse_unknown(fields, has_data=data is not None)
    require_training()
    if data is None:
        if others := [argument for argument in asked if argument != "name"]:
            raise ConfigError(
                f"{others[0]}= goes with data=, and without data the first argument is a recipe; put it there"
            )
        path = _recipe(model, name)
        lines: list[str] = []
        overrides = [f"name={name}"] if name is not None else []
        overrides += override_texts("fields", fields)
    else:
        if isinstance(model, Mapping):
            raise ConfigError(
                "model is a dict, which is a recipe, and a recipe has its own data; drop data=, or name a model"
            )
        path, lines = write_recipe(Wish(str(model), data, **asked, fields=fields))
        overrides = []
    progress: Progress = Progress() if quiet else for_terminal(beats=True)
    with closing(progress):
        if TOO_LATE:
            progress.say(REMEDY)
        for line in lines:
            progress.say(line)
        yield AskedRun(path, overrides, progress)


def run_recipe(
    path: Path, overrides: Sequence[str], resume: Resume, progress: Progress, callbacks: Sequence[str | Callback] = ()
) -> TrainedRun:
    """Run the recipe at `path` in this process, without an orchestrator; return the run."""
    from verizero.pipeline.whole_run import train as train_all

    config = load_recipe(path, overrides)
    refuse_ranks(config, path)
    folder = run_folder(config)
    train_all(config, path.resolve().parent, folder, resume, progress, callbacks=callbacks)
    return TrainedRun(folder)


def _refuse_unknown(fields: Mapping[str, Any], has_data: bool) -> None:
    """Raise ConfigError for a name that is no argument, no setting and no field, with the one to write."""
    for name, value in fields.items():
        if "." in name or name in RunConfig.model_fields or isinstance(value, Mapping):
            continue
        if name in NEAR:
            raise ConfigError(f"vz.train has no argument {name!r}; write {NEAR[name]} (docs/trl.md)")
        if name not in SAME:
            known = [*list(inspect.signature(train).parameters)[:-1], *SAME]
            fields_too = 'docs/python.md lists them; any field of a recipe is **{"rl.group_size": 4}'
            raise ConfigError(f"vz.train has no argument {name!r}; {did_you_mean(name, known, fields_too)}")
        if not has_data:
            raise ConfigError(f"{name}= goes with data=; for a recipe write **{{{SAME[name]!r}: {value!r}}}")


def _recipe(model: str | Path | Mapping[str, Any], name: str | None) -> Path:
    if not isinstance(model, Mapping):
        return find_recipe(str(model))
    name = name or str(model.get("name") or "")
    if not name:
        raise ConfigError("a recipe that is a dict needs a name: {'name': 'mine', ...}")
    path = Path(str(model.get("output", "runs"))) / name / FOLDER / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump({**model, "name": name}, sort_keys=False, allow_unicode=True)
    write_atomic(path, text.encode())
    return path
