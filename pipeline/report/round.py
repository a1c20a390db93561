"""Write a short view of a run after a round: curves as pictures in Markdown, and a table of answers."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verizero.pipeline.algorithms.base import chosen
from verizero.pipeline.config.rl import RlConfig
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.report.curves import Chart, build_charts
from verizero.pipeline.report.plots import draw
from verizero.pipeline.report.row_types import EvaluationRow, Numbers, alarm_line
from verizero.pipeline.report.run_files import RunFiles, read_rollouts, read_run
from verizero.pipeline.shown import in_markdown

CURVES = ("reward", "pass", "kl", "length", "groups")
MAX_ANSWERS = 40
MAX_TEXT = 400
MAX_ALARMS = 5


def data_uri(chart: Chart) -> str:
    """Return the chart as an address with the whole picture: `data:image/svg+xml;base64,…`."""
    return "data:image/svg+xml;base64," + base64.b64encode(draw(chart).svg.encode()).decode()


def round_markdown(folder: Path, causes: Sequence[str] = ()) -> str:
    """The curves of the run in `folder` so far, a table of its rounds, and where its report will be.

    `causes`: those that a diagnosis has found, a line each.
    """
    run = read_run(folder)
    charts = {c.name: c for c in build_charts(run)}
    pictures = [f"**{c.title}**\n\n![{c.title}]({data_uri(c)})" for n in CURVES if (c := charts.get(n)) is not None]
    alarms = [f"**Alarm.** {in_markdown(alarm_line(row))}" for row in run.alarms[-MAX_ALARMS:]]
    diagnosis = [f"**Diagnosis.** {in_markdown(line)}" for line in causes]
    return "\n\n".join(
        [*alarms, *diagnosis, _table(run), *pictures, f"Report: {in_markdown((folder / 'report.html').resolve())}\n"]
    )


def round_samples(folder: Path, stage: str, round_: int) -> list[dict[str, Any]]:
    """Return up to MAX_ANSWERS answers of the round's last steps, as rows of plain values."""
    own = (row for row in read_rollouts(folder) if row.stage == stage and row.round == round_)
    return [
        {
            "step": row.step,
            "domain": row.domain,
            "prompt": row.prompt[:MAX_TEXT],
            "response": row.response[:MAX_TEXT],
            "verdict": row.status,
            "score": row.score,
            "reason": row.reason,
            "reward": row.reward,
        }
        # The file is read through once; the deque keeps its end.
        for row in deque(own, maxlen=MAX_ANSWERS)
    ]


def run_tags(config: RunConfig) -> list[str]:
    """Return the tags that runs are searched by: the name, the model that it starts from, and its algorithms."""
    model = config.model.create.model_type if config.model.create else Path(config.model.path or "").name
    algorithms = [Path(chosen(rl.algorithm)[0]).stem for rl in config.sections_of(RlConfig).values()]
    return list(dict.fromkeys([config.name, model, *algorithms]))


def _table(run: RunFiles) -> str:
    """A line for each round: steps, mean reward and length, share of groups kept, last KL, held-out pass@1 after it."""
    names = ["round", "steps", "reward", "length", "groups kept", "KL", "pass@1"]
    lines = [f"| {' | '.join(names)} |", "| --- " * len(names) + "|"]
    after = {(e.stage, e.round): _pass_rate(e) for e in run.evaluations}
    rounds: dict[tuple[str, int], list[Numbers]] = {}
    for row in run.rl_steps:
        rounds.setdefault((row.stage, row.round), []).append(row.metrics)
    for (stage, round_), own in rounds.items():
        cells = [_mean(own, "reward/sampled"), _mean(own, "length/mean"), _share(own), _mean(own[-1:], "kl/k3")]
        cells.append(after.get((stage, round_), "-"))
        name = str(round_) if stage == "rl" else in_markdown(f"{stage} {round_}")
        lines.append(f"| {name} | {len(own)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _pass_rate(evaluation: EvaluationRow) -> str:
    rates = [row["pass@1"]["value"] for row in evaluation.domains.values() if "pass@1" in row]
    return f"{sum(rates) / len(rates):.3f}" if rates else "-"


def _mean(rows: list[Numbers], name: str) -> str:
    values = [row[name] for row in rows if name in row]
    return f"{sum(values) / len(values):.3g}" if values else "-"


def _share(rows: list[Numbers]) -> str:
    sampled = sum(row.get("groups/sampled", 0.0) for row in rows)
    return f"{sum(row.get('groups/kept', 0.0) for row in rows) / sampled:.0%}" if sampled else "-"
