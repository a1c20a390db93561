"""A run's result and its rounds: as lines for a terminal, and as Markdown."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verizero.pipeline.algorithms.base import chosen
from verizero.pipeline.config.rl import RlConfig
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.report.curves import Chart, build_charts
from verizero.pipeline.report.plots import draw
from verizero.pipeline.report.row_types import EvaluationRow, Numbers, alarm_line
from verizero.pipeline.report.run_files import RunFiles, read_rollouts, read_run
from verizero.pipeline.report.summary import gives_part
from verizero.pipeline.shown import in_markdown

MEASURES = ("pass@1", "score", "pass@k", "maj@k", "greedy", "reward")


def result_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the measures of every domain before and after, and the parts of the gain."""
    lines = []
    measures = _measures(summary)
    for domain, before, after in _rows(summary):
        gain = (summary["domains"].get(domain) or {}).get("interval")
        inside = {"pass@1": f" (gain {gain[0]:+.3f} to {gain[1]:+.3f})" if gain else ""}
        shown = "  ".join(
            f"{measure_name(m, summary)} {_number(before, m)} -> {_number(after, m)}{inside.get(m, '')}"
            for m in measures
        )
        lines.append(f"{domain:<12} {shown}")
    if not lines:
        lines.append("no evaluation: the recipe has no data.evaluation")
    if summary.get("sharpening"):
        lines.append(str(summary["sharpening"]))
    return [*lines, *_failures(summary)]


def result_markdown(summary: Mapping[str, Any], page: Path) -> str:
    """Return `result_lines` as a markdown table, with the path of the page."""
    measures = _measures(summary)
    head = ["domain", *(measure_name(m, summary) for m in measures)]
    rows = [
        [in_markdown(domain), *(f"{_number(before, m)} → {_number(after, m)}" for m in measures)]
        for domain, before, after in _rows(summary)
    ]
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows])
    notes = "\n\n".join(map(in_markdown, [summary.get("sharpening") or "", *_failures(summary)]))
    return f"{table}\n\n{notes}\n\nReport: {in_markdown(page)}\n"


def evaluation_lines(domains: Mapping[str, Any], k: int) -> list[str]:
    """Return an evaluation as a line for each domain: each measure with its interval; `k` is that of pass@k."""
    measures = _measured(domains)
    return [
        f"{domain:<12} " + "  ".join(f"{measure_name(m, {'k': k})} {_estimate(row.get(m))}" for m in measures)
        for domain, row in sorted(domains.items())
    ]


def _measured(domains: Mapping[str, Any]) -> list[str]:
    is_partial = any("score_by_prompt" in row for row in domains.values())
    return [m for m in MEASURES if any(m in row for row in domains.values()) and (m != "score" or is_partial)]


def evaluation_markdown(domains: Mapping[str, Any]) -> str:
    """Return an evaluation as a Markdown table: each measure with its interval, by domain."""
    measures = _measured(domains)
    head = ["domain", *measures]
    rows = [
        [in_markdown(domain), *(_estimate(row.get(m)) for m in measures)] for domain, row in sorted(domains.items())
    ]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows]) + "\n"


def _estimate(value: Mapping[str, float] | None) -> str:
    return "-" if value is None else f"{value['value']:.3f} ({value['low']:.3f} to {value['high']:.3f})"


def _failures(summary: Mapping[str, Any]) -> list[str]:
    """Return a line for each domain and evaluation in which graders failed."""
    return [
        f"graders failed on {side['grader_failures']} of {side['num_responses']} answers of {domain} {when} RL; they "
        "stand in no measure"
        for domain, before, after in _rows(summary)
        for when, side in (("before", before), ("after", after))
        if side.get("grader_failures")
    ]


def _rows(summary: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    before, after = summary.get("before") or {}, summary.get("after") or {}
    return [(domain, before.get(domain, {}), after.get(domain, {})) for domain in sorted({*before, *after})]


def _measures(summary: Mapping[str, Any]) -> list[str]:
    """Return the measures that say something: the score where credit is partial, those of k where k is above 1."""
    is_partial = any(gives_part(before, after) for _, before, after in _rows(summary))
    left_out = {"score"} if not is_partial else set()
    left_out |= {"pass@k", "maj@k"} if summary.get("k") == 1 else set()
    present = {name for _, *sides in _rows(summary) for side in sides for name in side}
    if "reward" not in present:
        left_out.add("reward")
    elif "pass@1" not in present:
        return ["reward"]
    return [m for m in MEASURES if m not in left_out]


def measure_name(measure: str, summary: Mapping[str, Any]) -> str:
    """Return a measure's name for people, with its k."""
    if measure == "score":
        return "mean score"
    return measure.replace("@k", f"@{summary.get('k', 'k')}")


def _number(row: Mapping[str, Any], measure: str) -> str:
    value = row.get(measure)
    return "-" if value is None else f"{value:.3f}"


CURVES = ("reward", "pass", "kl", "length", "groups")
MAX_ANSWERS = 40
MAX_TEXT = 400
MAX_ALARMS = 5


def data_uri(chart: Chart) -> str:
    """Return the chart as an address with the whole picture: `data:image/svg+xml;base64,…`."""
    return "data:image/svg+xml;base64," + base64.b64encode(draw(chart).svg.encode()).decode()


def round_markdown(folder: Path, causes: Sequence[str] = ()) -> str:
    """The curves of a run so far, a table of its rounds, and its report's place. `causes`: of a diagnosis, as lines."""
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
