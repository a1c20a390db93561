"""`verizero eval`: ask a model, or two, the questions of named suites, and show the results on one page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from verizero.pipeline.commands.arguments import add_overrides
from verizero.pipeline.shown import show

if TYPE_CHECKING:
    from verizero.pipeline.commands.suites.asking import Loaded
    from verizero.pipeline.commands.suites.models import Measured
    from verizero.pipeline.commands.suites.results import Measurement
    from verizero.pipeline.report.progress import Progress


TASK_TOKENS = 4096
"""Most tokens of an answer to a task of inspect."""


class Tasks(NamedTuple):
    """Tasks of inspect, the most rows of each, and the most tokens of an answer."""

    names: tuple[str, ...]
    limit: int | None = None
    max_tokens: int = TASK_TOKENS


NO_TASKS = Tasks(())


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("eval", help="a model, or two side by side, on named suites: math500, gsm8k, …")
    command.add_argument(
        "models",
        nargs="+",
        metavar="model",
        help="a folder, a hub id, a run (its first and newest weights), or the URL of an endpoint; two are compared",
    )
    command.add_argument("--suite", help="names with commas between them, or files of your own, x.yaml")
    command.add_argument(
        "--inspect",
        action="append",
        default=[],
        metavar="TASK",
        help="a task of inspect, e.g. inspect_evals/gpqa_diamond or file.py@task; repeatable",
    )
    command.add_argument("--data-dir", type=Path, help="a folder with the rows of suites: math500.jsonl, .parquet, …")
    command.add_argument("--limit", type=int, help="most rows of a suite, drawn by a fixed seed; default: all")
    command.add_argument("--samples", type=int, help="answers to each row; default: the suite's")
    command.add_argument("--max-tokens", type=int, help="most tokens of an answer; default: the suite's")
    command.add_argument("--template", choices=("plain", "chat"), help="default: the run's, else chat if there is one")
    command.add_argument("--out", type=Path, help="folder of answers and results; default: suites/ next to the model")
    add_overrides(command)
    command.set_defaults(run=run, after_stop="The same command asks only what is not answered yet.")


def run(arguments: argparse.Namespace) -> None:
    """Ask, grade, and print the results and the page's path."""
    from contextlib import closing

    from verizero.pipeline.commands.suites.models import measured_of
    from verizero.pipeline.commands.suites.rows import load_suites
    from verizero.pipeline.errors import ConfigError
    from verizero.pipeline.models.load import quiet
    from verizero.pipeline.report.progress import for_terminal

    quiet()
    if arguments.suite is None and not arguments.inspect:
        raise ConfigError("nothing is asked: name suites with --suite, or tasks of inspect with --inspect")
    changes = {name: getattr(arguments, name) for name in ("limit", "samples", "max_tokens")}
    loaded = load_suites(arguments.suite.split(",") if arguments.suite else [], arguments.data_dir, changes)
    overrides = list(arguments.set)
    if arguments.template is not None:
        overrides.append(f"data.template={arguments.template}")
    tasks = Tasks(tuple(arguments.inspect), arguments.limit, arguments.max_tokens or TASK_TOKENS)
    models = measured_of(arguments.models, arguments.out)
    with closing(for_terminal()) as progress:
        measurements = evaluate_suites(models, loaded, overrides, progress, tasks)
    for line in compared(measurements, loaded):
        show(line)


def evaluate_suites(
    models: Sequence[Measured],
    loaded: Sequence[Loaded],
    overrides: Sequence[str],
    progress: Progress,
    tasks: Tasks = NO_TASKS,
) -> list[Measurement]:
    """Return the results of each model. What was asked before is not asked again."""
    from verizero.pipeline.commands.suites.answers import answers_in
    from verizero.pipeline.commands.suites.asking import ask, config_of
    from verizero.pipeline.commands.suites.inspect_tasks import inspect_groups
    from verizero.pipeline.commands.suites.results import Stopwatch, grade, measure

    done = []
    for model in models:
        watch, config = Stopwatch(), config_of(model, overrides)
        with answers_in(model.folder) as answers:
            questions = ask(model, loaded, overrides, answers, progress) if loaded else []
            watch.lap("generate")
            groups = grade(config, loaded, questions, answers) if loaded else []
            watch.lap("verify")
            of_tasks = {
                name: inspect_groups(model, name, tasks.limit, tasks.max_tokens, config.train.device, progress)
                for name in tasks.names
            }
            watch.lap("inspect")
        done.append(measure(model, loaded, questions, groups, of_tasks, watch.seconds))
    return done


def compared(measurements: Sequence[Measurement], loaded: Sequence[Loaded]) -> list[str]:
    """Write the page next to the last model, and return the results as lines, with the page's path."""
    import json

    from verizero.pipeline.commands.suites.results import text_lines, write_page

    first, last = measurements[0].model, measurements[-1].model
    folder = last.folder
    if first.folder != last.folder:
        folder = folder / f"against-{first.folder.parent.name if first.folder.name == 'suites' else first.folder.name}"
    page = write_page(folder, measurements, [own.suite for own in loaded])
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return [*text_lines(measurements, summary), f"page: {page}"]
