"""`verizero campaign`: train one policy in many runs, each of which starts from the model of the last.

    campaigns/math/campaign.json        what each run did, and why the campaign ended
    campaigns/math/data/                files of rows dropped here join the next run
    campaigns/math/runs/run-002/        a run like any other

A run starts from the newest model, which is also its reference. Its training rows are those of the last run and
of new files. Evaluation rows stay those of the first run, so that all runs are measured on the same prompts.
A killed run is continued by the next command.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

from verizero.pipeline.commands.arguments import CONTINUES, add_recipe
from verizero.pipeline.config.campaign import CampaignConfig, campaign_config, settings
from verizero.pipeline.config.data import FILE_TYPES, Source
from verizero.pipeline.config.recipes import Request, find_recipe, read_request, run_folder, with_model
from verizero.pipeline.config.rl import RlConfig, max_group_tokens, parts_of
from verizero.pipeline.errors import ConfigError, InUse
from verizero.pipeline.host.disk import locked, write_atomic
from verizero.pipeline.report.run_files import read_run
from verizero.pipeline.shown import show

Train = Callable[[Request], object]
"""Trains the requested run, or continues the one in its folder. The result is read from the run's files."""
Say = Callable[[str], None]
RECORD = "campaign.json"


def add(commands: Any) -> None:
    command = commands.add_parser("campaign", help="the next rounds of a campaign, from its newest model")
    command.add_argument("name", help="its folder under campaigns/")
    add_recipe(command)
    for name, field in settings().items():
        number = float if float in (field.annotation, *get_args(field.annotation)) else int
        default = "no limit" if field.default is None else field.default
        help_text = f"{field.description}; default: {default}"
        command.add_argument(f"--{name.replace('_', '-')}", type=number, help=help_text)
    command.set_defaults(run=run, after_stop=CONTINUES)


def run(arguments: argparse.Namespace) -> None:
    """Do one run and print its outcome."""
    from verizero.pipeline.launch import launch
    from verizero.pipeline.models.load import quiet
    from verizero.pipeline.report.progress import for_terminal
    from verizero.pipeline.whole_run import train

    quiet()

    def train_request(request: Request) -> None:
        config, folder = request.config, run_folder(request.config)
        if config.launch.kind == "none":
            train(config, request.base_dir, folder, "auto", progress)
        else:
            launch(config.launch, request.train_arguments("auto"), folder)

    config = campaign_config(name=arguments.name, **{name: getattr(arguments, name) for name in settings()})
    request = read_request(find_recipe(arguments.recipe), arguments.set)
    with closing(for_terminal()) as progress:
        outcome = fire(config, request, train_request, say=progress.say)
    show(outcome.message)


@dataclass(frozen=True)
class Outcome:
    """The result of a run. `skipped`: another run of the campaign is under way, or ran in its place."""

    did: Literal["trained", "skipped", "over"]
    message: str
    record: dict[str, Any]

    @property
    def run(self) -> Path | None:
        """The folder of the run; None if nothing was trained."""
        return Path(self.record["runs"][-1]["run"]) if self.did == "trained" else None


def fire(
    config: CampaignConfig,
    request: Request,
    train: Train,
    due: datetime | None = None,
    say: Say = print,
    base: Path | None = None,
) -> Outcome:
    """Do one run of the campaign: the next rounds, or the rest of a run that was killed.

    `due` is the time of the schedule that started it. If the last run began after that time, this one is skipped.
    Raises: ConfigError and DataError, which leave the campaign as it was; and what `train` raises. The run then
    stays in the record, and the next call continues it.
    """
    folder = (base or Path.cwd()) / config.folder / config.name
    check(config, request)
    try:
        with locked(folder):
            record = read_record(folder)
            outcome = _begin(config, request, due, say, folder, record)
            return outcome if outcome is not None else _finish(config, request, train, say, folder, record)
    except InUse as exc:
        return Outcome("skipped", f"skipped: {exc}: another run of this campaign is under way", read_record(folder))


def _begin(
    config: CampaignConfig, request: Request, due: datetime | None, say: Say, folder: Path, record: dict[str, Any]
) -> Outcome | None:
    """Write the next run into the record unless a killed one is to be continued; return why there is none."""
    entries: list[dict[str, Any]] = record["runs"]
    if entries and entries[-1]["state"] == "running":
        # Only a run with a checkpoint has something to continue.
        if any((Path(entries[-1]["run"]) / "checkpoints").glob("*")):
            say(f"continuing run {entries[-1]['number']}, which was stopped before its end")
            return None
        entries.pop()  # it had trained nothing, so a new one with the newest data takes its place
    # Schedules that came due while no runner was up all fire at once; one run serves them all.
    if entries and due is not None and due.timestamp() <= entries[-1]["began"]:
        last = entries[-1]["number"]
        return Outcome("skipped", f"skipped: run {last} started after this one was due, and replaces it", record)
    reason = why_over(config, record, request)
    if reason is not None:
        record["over"] = reason
        write_record(folder, record)
        return Outcome("over", f"the campaign is over: {reason}; raise the limit to continue", record)
    # Written down before training: if this is killed, the next call knows the run and continues it.
    entries.append(_planned(config, request, folder, record, say))
    write_record(folder, record)
    return None


def _finish(
    config: CampaignConfig, request: Request, train: Train, say: Say, folder: Path, record: dict[str, Any]
) -> Outcome:
    """Train the last run of the record to its end and write down its result."""
    entry, began = record["runs"][-1], time.time()
    # The plan of the record, not a new one: data and seed must be those that the run began with.
    train(request.with_overrides(*entry["overrides"]))
    _count(entry, time.time() - began)
    # Asked again at each run, so a raised limit lets the campaign continue.
    record["over"] = why_over(config, record, request)
    write_record(folder, record)
    rate = "" if entry["pass@1"] is None else f", pass@1 {entry['pass@1']:.3f}"
    over = f"; the campaign is over: {record['over']}" if record["over"] else ""
    message = f"run {entry['number']}: {entry['rounds']} rounds, {entry['tokens']} tokens{rate}{over}"
    say(message)
    return Outcome("trained", message, record)


def why_over(config: CampaignConfig, record: dict[str, Any], request: Request) -> str | None:
    """Return the limit that the runs have reached, in words; None if they have reached none."""
    done = [f for f in record["runs"] if f["state"] == "done"]
    rounds, tokens, hours = (sum(f[k] for f in done) for k in ("rounds", "tokens", "seconds"))
    hours /= 3600
    rates = [f["pass@1"] for f in done if f["pass@1"] is not None]
    if config.max_rounds is not None and rounds >= config.max_rounds:
        return f"{rounds} rounds of max_rounds={config.max_rounds}"
    # A run stops before a step that may exceed its limit, so fewer tokens than that train nothing.
    if config.max_tokens is not None and config.max_tokens - tokens < tokens_of_a_step(request):
        return f"{tokens} tokens of max_tokens={config.max_tokens}, so too few are left for a step"
    if config.max_hours is not None and hours >= config.max_hours:
        return f"{hours:.2f} hours of max_hours={config.max_hours:g}"
    if config.target is not None and rates and rates[-1] >= config.target:
        return f"pass@1 {rates[-1]:.3f} reached target={config.target:g}"
    wait = config.patience
    if wait is not None and len(rates) > wait and max(rates[-wait:]) <= max(rates[:-wait]):
        return f"no better pass@1 than {max(rates[:-wait]):.3f} in patience={wait} runs"
    return None


def check(config: CampaignConfig, request: Request) -> None:
    """Raise ConfigError for a recipe that a campaign cannot train or measure."""
    recipe = request.config
    if list(recipe.sections_of(RlConfig)) != [recipe.stage_names[-1]]:
        raise ConfigError(
            f"recipe {recipe.name!r} has the stages {', '.join(recipe.stage_names)}; a campaign needs exactly one RL "
            "stage, at the end"
        )
    if (config.target is not None or config.patience is not None) and not recipe.data.evaluation:
        raise ConfigError(f"target and patience need held-out prompts; give recipe {recipe.name!r} a data.evaluation")


def tokens_of_a_step(request: Request) -> int:
    """Return the most tokens that one RL step may generate."""
    rl = _rl_of(request)
    return rl.prompts_per_step * max_group_tokens(request.config, rl, parts_of(rl).needs_greedy)


def _rl_of(request: Request) -> RlConfig:
    """Return the section of the RL stage, with the stage's own changes."""
    return request.config.sections_of(RlConfig)[request.config.stage_names[-1]]


def read_record(folder: Path) -> dict[str, Any]:
    """Return campaign.json, or an empty record."""
    path = folder / RECORD
    record: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {"runs": [], "over": None}
    return record


def write_record(folder: Path, record: dict[str, Any]) -> None:
    """Replace campaign.json as a whole."""
    write_atomic(folder / RECORD, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())


def _planned(
    config: CampaignConfig, request: Request, folder: Path, record: dict[str, Any], say: Say
) -> dict[str, Any]:
    """Return the record of the next run. It is written before the run begins, which continues as planned."""
    done = record["runs"]
    number = len(done) + 1
    name = f"run-{number:03d}"
    rounds, rl = config.rounds, _rl_of(request)
    if config.max_rounds is not None:
        rounds = min(rounds, config.max_rounds - sum(f["rounds"] for f in done))
    overrides = [f"name={name}", f"output={json.dumps(str((folder / 'runs').resolve()))}", f"rl.rounds={rounds}"]
    # Another seed: the same one would draw the prompts of the last run in the same order.
    overrides.append(f"seed={request.config.seed + number - 1}")
    if config.max_tokens is not None:
        left = config.max_tokens - sum(f["tokens"] for f in done)
        overrides.append(f"rl.max_tokens={left if rl.max_tokens is None else min(left, rl.max_tokens)}")
    # By name, whatever became of the file since: one that was changed does not join twice.
    new = take_new(folder, number, {n for f in done for n in f["new_data"]}, say)
    sources = [{"file": str(folder.resolve() / "taken" / f"{number:03d}-{n}")} for n in new]
    if done:
        last = Path(done[-1]["run"])
        # Only the first run makes the base; later ones start from its model with RL alone.
        overrides.append(f"stages={json.dumps([request.config.stages[-1].model_dump()])}")
        overrides += with_model(last / "model")
        # The rows as the last run used them, which contain those of all earlier runs.
        train: list[Any] = [{"file": str(last / "data" / "train.jsonl")}]
        if request.config.data.evaluation:
            overrides.append(f"data.evaluation={json.dumps([{'file': str(last / 'data' / 'evaluation.jsonl')}])}")
    else:
        train = request.config.model_dump(mode="json")["data"]["train"]
    if done or new:
        overrides.append(f"data.train={json.dumps([*train, *sources])}")
    return {
        "number": number,
        "state": "running",
        "run": str((folder / "runs" / name).resolve()),
        "began": time.time(),
        "parent": done[-1]["run"] if done else None,
        "new_data": new,
        "overrides": overrides,
        "seconds": 0.0,
    }


def take_new(folder: Path, number: int, taken: set[str], say: Say) -> dict[str, int]:
    """Check the files in `data/` that no run has taken, and copy them; return their numbers of rows.

    A run reads the copies, so that later changes of a file do not affect it.
    Raises: DataError naming file and row.
    """
    from verizero.pipeline.data.prompts import load_prompts

    (folder / "data").mkdir(exist_ok=True)
    (folder / "taken").mkdir(exist_ok=True)
    counts = {}
    for path in sorted((folder / "data").iterdir()):
        if path.suffix not in FILE_TYPES or path.name.startswith(".") or path.name in taken:
            continue
        counts[path.name] = len(load_prompts([Source(file=str(path.resolve()))], 0))
        shutil.copyfile(path, folder / "taken" / f"{number:03d}-{path.name}")
        say(f"new data: {counts[path.name]} rows of {path.name} join run {number}")
    return counts


def _count(entry: dict[str, Any], seconds: float) -> None:
    """Write into the run's record what its run did, from the run's files."""
    files = read_run(Path(entry["run"]))
    last = files.evaluations[-1].domains if files.evaluations else {}
    rates = {d: row["pass@1"]["value"] for d, row in last.items() if "pass@1" in row}
    entry["state"] = "done"
    # This process's part; an interrupted one's is lost with it.
    entry["seconds"] = round(entry["seconds"] + seconds, 3)
    entry["rounds"] = len({row.round for row in files.rl_steps})
    entry["tokens"] = int(files.rl_steps[-1].metrics.get("tokens/generated", 0)) if files.rl_steps else 0
    entry["domains"] = rates
    entry["pass@1"] = fmean(rates.values()) if rates else None
