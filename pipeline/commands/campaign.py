"""A campaign: one policy trained over many firings, each a run that goes on from the model of the one before.

    campaigns/math/campaign.json        what each firing did, and why it ended
    campaigns/math/data/                files of rows dropped here join the next firing
    campaigns/math/runs/firing-002/     a run like any other

A firing starts from the newest model, its reference is that model, and its training rows are those of the firing
before and the new files. Evaluation rows stay those of the first firing, so that all are measured on the same prompts.
A firing that was killed is gone on with by the next one.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pipeline.config.campaign import CampaignConfig
from pipeline.config.data import FILE_TYPES, Source
from pipeline.config.recipes import Request
from pipeline.config.run import most_tokens, parts_of
from pipeline.config.stages import RlConfig
from pipeline.data.prompts import load_prompts
from pipeline.errors import ConfigError, InUse
from pipeline.files import locked, write_atomic
from pipeline.report.files import read_run

Run = Callable[[Request], object]
"""Trains what is asked for, going on where its folder says; its files tell the rest."""
RECORD = "campaign.json"


@dataclass(frozen=True)
class Outcome:
    """What came of a firing: `trained`; `skipped`, another is at work or made up for it; or the campaign is `over`."""

    did: Literal["trained", "skipped", "over"]
    said: str
    record: dict[str, Any]

    @property
    def run(self) -> Path | None:
        """The folder of the run, where one trained."""
        return Path(self.record["firings"][-1]["run"]) if self.did == "trained" else None


def fire(
    config: CampaignConfig,
    request: Request,
    run: Run,
    due: datetime | None = None,
    say: Callable[[str], None] = print,
    base: Path | None = None,
) -> Outcome:
    """One firing of the campaign: the next rounds, or those that a killed firing left.

    `due` is when a schedule wanted it: a firing that was due before the last one began was missed, and the last one
    made up for it.
    Raises: ConfigError, DataError and what the run raises; the campaign then is as it was before.
    """
    folder = (base or Path.cwd()) / config.folder / config.name
    check(config, request)
    try:
        with locked(folder):
            return _fire(config, request, run, due, say, folder)
    except InUse as exc:
        return Outcome("skipped", f"{exc}: another firing is at work", read_record(folder))


def _fire(
    config: CampaignConfig,
    request: Request,
    run: Run,
    due: datetime | None,
    say: Callable[[str], None],
    folder: Path,
) -> Outcome:
    record = read_record(folder)
    firings: list[dict[str, Any]] = record["firings"]
    going_on = bool(firings) and firings[-1]["state"] == "running"
    if going_on and not any((Path(firings[-1]["run"]) / "checkpoints").glob("*")):
        firings.pop()  # it ended before it had trained anything: it is planned anew
        going_on = False
    if going_on:
        say(f"going on with firing {firings[-1]['number']}, which was ended before it was done")
    else:
        if firings and due is not None and due.timestamp() <= firings[-1]["began"]:
            return Outcome("skipped", f"it was due before firing {firings[-1]['number']} began, which made up", record)
        if (reason := why_over(config, record, request)) is not None:
            return _over(folder, record, reason)
        firings.append(_planned(config, request, folder, record, say))
        write_record(folder, record)
    own, began = firings[-1], time.time()
    run(request.changed(*own["overrides"]))
    _count(own, time.time() - began)
    record["over"] = why_over(config, record, request)
    write_record(folder, record)
    rate = "" if own["pass@1"] is None else f", pass@1 {own['pass@1']:.3f}"
    over = f"; the campaign is over: {record['over']}" if record["over"] else ""
    said = f"firing {own['number']}: {own['rounds']} rounds, {own['tokens']} tokens{rate}{over}"
    say(said)
    return Outcome("trained", said, record)


def why_over(config: CampaignConfig, record: dict[str, Any], request: Request) -> str | None:
    """Which limit the firings so far have reached; None: none."""
    done = [f for f in record["firings"] if f["state"] == "done"]
    rounds, tokens, hours = (sum(f[k] for f in done) for k in ("rounds", "tokens", "seconds"))
    hours /= 3600
    rates = [f["pass@1"] for f in done if f["pass@1"] is not None]
    if config.max_rounds is not None and rounds >= config.max_rounds:
        return f"{rounds} rounds of max_rounds={config.max_rounds}"
    if config.max_tokens is not None and config.max_tokens - tokens < tokens_of_a_step(request):
        return f"{tokens} tokens of max_tokens={config.max_tokens}, too few are left for a step"
    if config.max_hours is not None and hours >= config.max_hours:
        return f"{hours:.2f} hours of max_hours={config.max_hours:g}"
    if config.target is not None and rates and rates[-1] >= config.target:
        return f"pass@1 {rates[-1]:.3f} reached target={config.target:g}"
    wait = config.patience
    if wait is not None and len(rates) > wait and max(rates[-wait:]) <= max(rates[:-wait]):
        return f"no better pass@1 than {max(rates[:-wait]):.3f} in patience={wait} firings"
    return None


def check(config: CampaignConfig, request: Request) -> None:
    """Raises: ConfigError for a recipe that a campaign cannot train or measure."""
    recipe = request.config
    if [s.kind for s in recipe.stages].count("rl") != 1 or recipe.stages[-1].kind != "rl":
        raise ConfigError(
            f"recipe {recipe.name!r} has the stages {', '.join(recipe.stage_names)}; a campaign is made of the rounds "
            "of one RL stage, the last"
        )
    if (config.target is not None or config.patience is not None) and not recipe.data.evaluation:
        raise ConfigError(f"target and patience need a measure; give recipe {recipe.name!r} a data.evaluation")


def tokens_of_a_step(request: Request) -> int:
    """The most tokens that one RL step may generate."""
    rl = _rl_of(request)
    return rl.prompts_per_step * most_tokens(rl, request.config.rollout.max_response_tokens, parts_of(rl).needs_greedy)


def _rl_of(request: Request) -> RlConfig:
    """The section of the RL stage, with what differs in that stage."""
    rl = request.config.of_stage(request.config.stages[-1].name).rl
    assert rl is not None
    return rl


def read_record(folder: Path) -> dict[str, Any]:
    """campaign.json, or an empty one."""
    path = folder / RECORD
    record: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {"firings": [], "over": None}
    return record


def write_record(folder: Path, record: dict[str, Any]) -> None:
    """Replace campaign.json as a whole."""
    write_atomic(folder / RECORD, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())


def _over(folder: Path, record: dict[str, Any], reason: str) -> Outcome:
    record["over"] = reason
    write_record(folder, record)
    return Outcome("over", f"the campaign is over: {reason}; raise the limit to go on", record)


def _planned(
    config: CampaignConfig, request: Request, folder: Path, record: dict[str, Any], say: Callable[[str], None]
) -> dict[str, Any]:
    """The next firing, written down before it begins: what killed it must not change what it is."""
    done = record["firings"]
    number, name = len(done) + 1, f"firing-{len(done) + 1:03d}"
    rounds, rl = config.rounds, _rl_of(request)
    if config.max_rounds is not None:
        rounds = min(rounds, config.max_rounds - sum(f["rounds"] for f in done))
    overrides = [f"name={name}", f"output={json.dumps(str((folder / 'runs').resolve()))}", f"rl.rounds={rounds}"]
    overrides.append(f"seed={request.config.seed + number - 1}")
    if config.max_tokens is not None:
        left = config.max_tokens - sum(f["tokens"] for f in done)
        overrides.append(f"rl.max_tokens={left if rl.max_tokens is None else min(left, rl.max_tokens)}")
    new = take_new(folder, number, {n for f in done for n in f["new_data"]}, say)
    sources = [{"file": str(folder.resolve() / "taken" / f"{number:03d}-{n}")} for n in new]
    if done:
        last = Path(done[-1]["run"])
        overrides.append(f"stages={json.dumps([request.config.stages[-1].model_dump()])}")
        overrides += [f"model.path={json.dumps(str(last / 'model'))}", "model.create=null"]
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


def take_new(folder: Path, number: int, taken: set[str], say: Callable[[str], None]) -> dict[str, int]:
    """Rows of each file in `data/` that no firing had, checked and copied aside: a later change of it changes nothing.

    Raises: DataError naming file and row.
    """
    (folder / "data").mkdir(exist_ok=True)
    (folder / "taken").mkdir(exist_ok=True)
    found = {}
    for path in sorted((folder / "data").iterdir()):
        if path.suffix not in FILE_TYPES or path.name.startswith(".") or path.name in taken:
            continue
        found[path.name] = len(load_prompts([Source(file=str(path.resolve()))], 0))
        shutil.copyfile(path, folder / "taken" / f"{number:03d}-{path.name}")
        say(f"new data: {found[path.name]} rows of {path.name} join firing {number}")
    return found


def _count(own: dict[str, Any], seconds: float) -> None:
    """Write down what the firing's run did."""
    files = read_run(Path(own["run"]))
    last = files.evaluations[-1]["domains"] if files.evaluations else {}
    rates = {d: row["pass@1"]["value"] for d, row in last.items() if "pass@1" in row}
    own["state"] = "done"
    own["seconds"] = round(own["seconds"] + seconds, 3)
    own["rounds"] = len({row["round"] for row in files.rl_steps})
    own["tokens"] = int(files.rl_steps[-1]["metrics"].get("tokens/generated", 0)) if files.rl_steps else 0
    own["domains"] = rates
    own["pass@1"] = fmean(rates.values()) if rates else None
