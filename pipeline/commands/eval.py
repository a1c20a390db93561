"""`verizero eval`: measure a model on a recipe's held-out prompts, or one model or two on named suites, on one page."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verizero.pipeline.commands.arguments import add_model, add_overrides, recipe_with_model
from verizero.pipeline.config.recipes import with_model
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.shown import in_json, show

if TYPE_CHECKING:
    from verizero.pipeline.commands.suites.asking import Loaded
    from verizero.pipeline.commands.suites.models import Measured
    from verizero.pipeline.commands.suites.results import Measurement
    from verizero.pipeline.report.progress import Progress

OF_SUITES = ("data_dir", "limit", "samples", "max_tokens", "template", "out")
"""Arguments that are for suites alone."""


def add(commands: Any) -> None:
    command = commands.add_parser(
        "eval", help="a model on a recipe's held-out prompts, or one or two on named suites: math500, gsm8k, …"
    )
    command.add_argument(
        "models",
        nargs="+",
        metavar="model",
        help="with --suite: a folder, a hub id, a run (its first and newest weights), or the URL of an endpoint; two "
        "are compared. Without: a recipe, or a run, whose held-out prompts are asked",
    )
    command.add_argument("--suite", help="names with commas between them, or files of your own, x.yaml")
    add_model(command)
    command.add_argument("--data-dir", type=Path, help="a folder with the rows of suites: math500.jsonl, .parquet, …")
    command.add_argument("--limit", type=int, help="most rows of a suite, drawn by a fixed seed; default: all")
    command.add_argument("--samples", type=int, help="answers to each row; default: the suite's")
    command.add_argument("--max-tokens", type=int, help="most tokens of an answer; default: the suite's")
    command.add_argument("--template", choices=("plain", "chat"), help="default: the run's, else chat if there is one")
    command.add_argument("--out", type=Path, help="folder of answers and results; default: suites/ next to the model")
    command.add_argument("--json", action="store_true", help="the measures of held-out prompts as JSON")
    add_overrides(command)
    command.set_defaults(run=run, after_stop="The same command asks only what is not answered yet.")


def run(arguments: argparse.Namespace) -> None:
    """Print the results, of suites with the page's path."""
    from contextlib import closing

    from verizero.pipeline.models.load import quiet
    from verizero.pipeline.report.progress import Lines, for_terminal

    quiet()
    if arguments.suite is None:
        from verizero.pipeline.report.result import evaluation_lines
        from verizero.pipeline.whole_run import evaluate_model

        config, base = held_out_of(arguments)
        measured, k = evaluate_model(config, base, Lines()), config.evaluation.k
        show(in_json(measured, indent=1) if arguments.json else "\n".join(evaluation_lines(measured, k)))
        return
    from verizero.pipeline.commands.suites.asking import load_suites
    from verizero.pipeline.commands.suites.models import measured_of

    if arguments.model is not None:
        raise ConfigError(f"--model={arguments.model} is for a recipe's held-out prompts; with --suite name it first")
    changes = {name: getattr(arguments, name) for name in ("limit", "samples", "max_tokens")}
    loaded = load_suites(arguments.suite.split(","), arguments.data_dir, changes)
    overrides = list(arguments.set)
    if arguments.template is not None:
        overrides.append(f"data.template={arguments.template}")
    models = measured_of(arguments.models, arguments.out)
    with closing(for_terminal()) as progress:
        measurements = evaluate_suites(models, loaded, overrides, progress)
    for line in compared(measurements, loaded):
        show(line)


def held_out_of(arguments: argparse.Namespace) -> tuple[RunConfig, Path]:
    """Return the recipe whose held-out prompts are asked, with the model of --model, and its folder.

    Of a run: its recipe, with the rows as it used them and its own model. Raises: ConfigError.
    """
    name, *others = arguments.models
    if others or (alone := [n for n in OF_SUITES if getattr(arguments, n) is not None]):
        what = f"{len(arguments.models)} models are" if others else f"--{alone[0].replace('_', '-')} is"
        raise ConfigError(f"{what} for suites; name them with --suite, e.g. --suite math500,gsm8k")
    model, folder = arguments.model, Path(name)
    if not ((folder / "recipe.yaml").is_file() and (folder / "data").is_dir()):
        return recipe_with_model(argparse.Namespace(recipe=name, model=model, set=arguments.set))
    if model is None and not (folder / "model" / "config.json").is_file():
        raise ConfigError(f"{folder} has no trained model yet; let the run end, or name a model with --model")
    return held_out_of_run(folder, model or (folder / "model").resolve(), arguments.set)


def held_out_of_run(folder: Path, model: str | Path, overrides: Sequence[str] = ()) -> tuple[RunConfig, Path]:
    """Return the recipe of a run with another model, and its folder; its rows are those that the run itself used."""
    from verizero.pipeline.run.saving import recipe_of_run

    files = {part: (folder / "data" / f"{part}.jsonl").resolve() for part in ("train", "evaluation")}
    rows = [f"data.{part}={json.dumps([{'file': str(file)}])}" for part, file in files.items()]
    return recipe_of_run(folder, [*rows, *overrides, *with_model(model)])


def evaluate_suites(
    models: Sequence[Measured], loaded: Sequence[Loaded], overrides: Sequence[str], progress: Progress
) -> list[Measurement]:
    """Return the results of each model. What was asked before is not asked again."""
    import time

    from verizero.pipeline.commands.suites.asking import answers_in, ask, config_of
    from verizero.pipeline.commands.suites.results import grade, measure

    done = []
    for model in models:
        config, begin = config_of(model, overrides), time.monotonic()
        with answers_in(model.folder) as answers:
            questions = ask(model, loaded, overrides, answers, progress)
            asked = time.monotonic()
            groups = grade(config, loaded, questions, answers)
        seconds = {"generate": round(asked - begin, 3), "verify": round(time.monotonic() - asked, 3)}
        done.append(measure(model, loaded, questions, groups, seconds))
    return done


def compared(measurements: Sequence[Measurement], loaded: Sequence[Loaded]) -> list[str]:
    """Write the page next to the last model, and return the results as lines, with the page's path."""
    from verizero.pipeline.commands.suites.results import text_lines, write_page

    first, last = measurements[0].model, measurements[-1].model
    folder = last.folder
    if first.folder != last.folder:
        folder = folder / f"against-{first.folder.parent.name if first.folder.name == 'suites' else first.folder.name}"
    page = write_page(folder, measurements, [own.suite for own in loaded])
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return [*text_lines(measurements, summary), f"page: {page}"]
